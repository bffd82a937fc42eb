//! The cgroup programs for connections.

use std::net::{IpAddr, SocketAddr};

use super::endpoints::{BOUND, END, ENDS, INTERFACE, MAPPED};
use super::listeners::ListenerRedirect;
use super::options::Options;
use super::rules::{ActionLabels, IP4, IP6, PORT, RuleAction, note_destination};
use super::{EVENT, EventKind, KIND, Offload, ProgramContext, RedirectConfig, VALUE, datagrams};
use crate::bpf::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, Width};
use crate::bpf::events::Events;
use crate::bpf::kernel::Map;
use crate::bpf::sock_ops::{
    self, ACCEPTED, CONNECT, ESTABLISHED, FAMILY, FLAGS, LENGTH, LISTENS, LOCAL_IP4, LOCAL_IP6,
    LOCAL_PORT, OP, WANTS_OPTIONS,
};
use crate::socket::tcp::INSIDE;

// More fields of `struct bpf_sock_addr`.
const PROTOCOL: i16 = 36;
const SOCKET: i16 = 64;
// Fields of `struct bpf_sock`.
const BOUND_INTERFACE: i16 = 0;
const MARK: i16 = 16;
const PRIORITY: i16 = 20;
const SOURCE_PORT: i16 = 44;
// More fields of `struct bpf_sock_ops`.
const NEW_STATE: i16 = 8;
const STATE: i16 = 88;
const FIRST_UNACKNOWLEDGED: i16 = 108;
const RECEIVED: i16 = 168;
const ACKNOWLEDGED: i16 = 176;
/// Callback code of a state change.
const STATE_CHANGED: u32 = 10;
/// Flag that enables state callbacks.
const WANTS_STATES: u32 = 1 << 2;
const SYN_SENT: u32 = 2;
const CLOSED: u32 = 7;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;

// On the stack: a cookie and its note (the endpoints that the map stores for it), or an event.
pub(super) const COOKIE: i16 = -8;
pub(super) const NOTE: i16 = COOKIE - ENDS as i16;
const EVENT_AT: i16 = -(EVENT as i16);
/// Event on a stack that also has a note.
const EVENT_BESIDE_NOTE: i16 = NOTE - EVENT as i16;
/// Argument of a helper call.
const NUMBER: i16 = EVENT_BESIDE_NOTE - 8;

/// Builds the connect program, which redirects to the rendezvous socket and notes the destination.
pub(super) fn connect(context: &ProgramContext<'_>, v4: bool) -> Vec<Insn> {
    let ProgramContext { map, events, config, netns, .. } = *context;
    let mut asm = Asm::default();
    let [datagrams, redirect, pass, refuse, done] = [(); 5].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.store_cookie(R1, COOKIE);
    note_destination(&mut asm, NOTE, ENDS, v4);
    asm.load(Width::Word, R2, R6, PROTOCOL);
    asm.if_different(R2, TCP, datagrams);
    asm.load(Width::Double, R2, R6, SOCKET);
    asm.load(Width::Word, R2, R2, MARK);
    asm.if_equal(R2, INSIDE.cast_unsigned(), done);
    asm.load(Width::Double, R2, R6, SOCKET);
    asm.load(Width::Word, R2, R2, SOURCE_PORT);
    asm.store(Width::Half, FP, NOTE + BOUND, R2);
    asm.load(Width::Double, R2, R6, SOCKET);
    asm.load(Width::Word, R2, R2, BOUND_INTERFACE);
    asm.store(Width::Word, FP, NOTE + INTERFACE, R2);
    let labels = ActionLabels { redirect, pass, refuse };
    config.streams.emit(&mut asm, NOTE, labels);
    if config.streams.has_action(RuleAction::Redirect) {
        asm.place(redirect);
        // The rendezvous socket exists only in our network namespace.
        if config.offload.is_none() {
            asm.if_in_other_namespace(R6, netns, refuse);
        }
        // Without the note, the destination would be lost.
        if config.needs_notes() {
            asm.keep(map, COOKIE, NOTE);
            asm.if_different(R0, 0, refuse);
        }
        if config.offload.is_none() {
            to_rendezvous(&mut asm, config, v4, refuse);
        }
        asm.goto(done);
    }
    if config.streams.has_action(RuleAction::Pass) {
        asm.place(pass);
        // The same socket may have been redirected before.
        if config.needs_notes() {
            asm.forget(map, COOKIE);
        }
        report_if_enabled(&mut asm, events, config, EventKind::PassedStream);
        asm.goto(done);
    }
    asm.place(datagrams);
    asm.if_different(R2, UDP, done);
    datagrams::emit_verdict(&mut asm, context, v4);
    asm.place(done);
    asm.exit(1);
    // Connects are also refused in another network namespace, if there is no rendezvous of their
    // family, or if the destination cannot be noted.
    let notes = config.needs_notes() && config.streams.has_action(RuleAction::Redirect);
    if notes || config.streams.has_action(RuleAction::Refuse) {
        asm.place(refuse);
        report_if_enabled(&mut asm, events, config, EventKind::RefusedStream);
        asm.exit(0);
    }
    asm.finish().expect("MAX_RULES keeps every jump within reach")
}

/// Emits the redirection of a connect to the rendezvous socket.
fn to_rendezvous(asm: &mut Asm, config: &RedirectConfig<'_>, v4: bool, refuse: Label) {
    rewrite_destination(asm, NOTE, (config.v4, config.v6), v4, refuse);
}

/// Emits the redirection of a call to one of two addresses, by the family of the destination
/// at `note`.
pub(super) fn rewrite_destination(
    asm: &mut Asm,
    note: i16,
    (at4, at6): (SocketAddr, Option<SocketAddr>),
    v4: bool,
    refuse: Label,
) {
    if v4 {
        return set_destination(asm, at4, true);
    }
    let [native, done] = [(); 2].map(|()| asm.label());
    for (at, word) in [(0, 0), (4, 0), (8, MAPPED)] {
        asm.load(Width::Word, R2, FP, note + at);
        asm.if_different(R2, word, native);
    }
    set_destination(asm, at4, false);
    asm.goto(done);
    asm.place(native);
    match at6 {
        Some(at) => set_destination(asm, at, false),
        None => asm.goto(refuse),
    }
    asm.place(done);
}

/// Emits the redirection of a connect to `at`.
fn set_destination(asm: &mut Asm, at: SocketAddr, v4: bool) {
    let put = |asm: &mut Asm, field: i16, word: [u8; 4]| {
        asm.set(R2, i32::from_ne_bytes(word));
        asm.store(Width::Word, R6, field, R2);
    };
    match at.ip() {
        IpAddr::V4(ip) => put(asm, if v4 { IP4 } else { IP6 + 12 }, ip.octets()),
        IpAddr::V6(ip) => {
            for (at, word) in (0..).step_by(4).zip(ip.octets().as_chunks::<4>().0) {
                put(asm, IP6 + at, *word);
            }
        }
    }
    asm.set(R2, at.port().to_be().into());
    asm.store(Width::Word, R6, PORT, R2);
}

/// Emits a report of the noted destination to this process, if reports are on.
pub(super) fn report_if_enabled(
    asm: &mut Asm,
    events: &Events<EVENT>,
    config: &RedirectConfig<'_>,
    kind: EventKind,
) {
    if config.reports {
        report_note(asm, events, kind);
    }
}

/// Emits a report of the noted destination to this process.
pub(super) fn report_note(asm: &mut Asm, events: &Events<EVENT>, kind: EventKind) {
    asm.clear(EVENT_BESIDE_NOTE, EVENT as i16);
    asm.copy_memory((FP, EVENT_BESIDE_NOTE + 8), (FP, NOTE), END);
    send_event(asm, events, EVENT_BESIDE_NOTE, kind);
}

pub(super) fn send_event(asm: &mut Asm, events: &Events<EVENT>, at: i16, kind: EventKind) {
    asm.set(R2, kind as i32);
    asm.store(Width::Word, FP, at + KIND as i16, R2);
    asm.set_map(R1, events);
    asm.point(R2, at);
    asm.set(R3, EVENT as i32);
    asm.set(R4, 0);
    asm.call(Helper::RingOutput);
}

/// Builds the sock_ops program, which counts listeners. It reports each SYN of a redirected
/// connect, or the start and the end of an offloaded connection.
pub(super) fn sock_ops_program(
    map: &Map<ENDS>,
    events: &Events<EVENT>,
    options: &Options,
    listener_redirect: Option<&ListenerRedirect>,
    offload: Option<Offload>,
    netns: u64,
) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [wanted, known, changes, listens, done] = [(); 5].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R7, R6, OP);
    for op in [CONNECT, LENGTH, ESTABLISHED, ACCEPTED] {
        asm.if_equal(R7, op, wanted);
    }
    if offload.is_some() {
        asm.if_equal(R7, STATE_CHANGED, wanted);
    } else if listener_redirect.is_some() {
        asm.if_equal(R7, STATE_CHANGED, changes);
        asm.if_equal(R7, LISTENS, listens);
    }
    asm.goto(done);
    if let (Some(listener_redirect), None) = (listener_redirect, offload) {
        asm.place(listens);
        // Clients do not connect to a socket between a program and its own master.
        asm.load(Width::Double, R2, R6, sock_ops::SOCKET);
        asm.if_nothing(R2, done);
        asm.load(Width::Word, R2, R2, MARK);
        asm.if_equal(R2, INSIDE.cast_unsigned(), done);
        asm.if_in_other_namespace(R6, netns, done);
        asm.set_flags(R6, FLAGS, |asm| asm.or(R2, WANTS_STATES));
        listener_redirect.on_listen(&mut asm);
        asm.goto(done);
        asm.place(changes);
        listener_redirect.on_state_change(&mut asm, done);
        asm.goto(done);
    }
    asm.place(wanted);
    asm.store_cookie(R6, EVENT_AT);
    asm.look_for(map, EVENT_AT, known);
    if let (Some(listener_redirect), None) = (listener_redirect, offload) {
        asm.if_different(R7, ACCEPTED, done);
        forget_options(&mut asm, options);
        listener_redirect.on_accept(&mut asm, map, EVENT_AT, done);
        asm.set_flags(R6, FLAGS, |asm| asm.and(R2, !WANTS_STATES));
    }
    asm.goto(done);
    asm.place(known);
    asm.copy(R8, R0);
    match offload {
        None => report_redirected(&mut asm, events, done),
        Some(offload) => report_offloaded(&mut asm, events, offload, done),
    }
    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short")
}

/// Emits the removal of the options of an earlier socket that had the accepted socket's
/// kernel address.
fn forget_options(asm: &mut Asm, options: &Options) {
    let none = asm.label();
    asm.load(Width::Double, R2, R6, sock_ops::SOCKET);
    asm.if_nothing(R2, none);
    options.forget(asm, R2, NUMBER);
    asm.place(none);
}

/// Emits the pacing of an offloaded connection, whose note is at R8, and its start and end events.
fn report_offloaded(asm: &mut Asm, events: &Events<EVENT>, offload: Offload, done: Label) {
    let [begun, changes] = [(); 2].map(|()| asm.label());
    asm.if_equal(R7, CONNECT, begun);
    asm.if_equal(R7, STATE_CHANGED, changes);
    asm.goto(done);
    asm.place(begun);
    asm.set_flags(R6, FLAGS, |asm| asm.or(R2, WANTS_STATES));
    if let Some(rate) = offload.rate {
        asm.set(R2, rate.cast_signed());
        asm.store(Width::Word, FP, NUMBER, R2);
        asm.copy(R1, R6);
        asm.set(R2, libc::SOL_SOCKET);
        asm.set(R3, libc::SO_MAX_PACING_RATE);
        asm.point(R4, NUMBER);
        asm.set(R5, 4);
        asm.call(Helper::SetOption);
    }
    asm.clear(EVENT_AT, EVENT as i16);
    asm.copy_memory((FP, EVENT_AT + 8), (R8, 0), END);
    send_event(asm, events, EVENT_AT, EventKind::OffloadStarted);
    asm.goto(done);
    asm.place(changes);
    asm.load(Width::Word, R2, R6, NEW_STATE);
    asm.if_different(R2, CLOSED, done);
    asm.clear(EVENT_AT, EVENT as i16);
    asm.copy_memory((FP, EVENT_AT + 8), (R8, 0), END);
    asm.load(Width::Double, R2, R6, ACKNOWLEDGED);
    asm.store(Width::Double, FP, EVENT_AT + 32, R2);
    asm.load(Width::Double, R2, R6, RECEIVED);
    asm.store(Width::Double, FP, EVENT_AT + 40, R2);
    send_event(asm, events, EVENT_AT, EventKind::OffloadEnded);
}

/// Emits the report of the SYN of a redirected connection, whose note is at R8.
fn report_redirected(asm: &mut Asm, events: &Events<EVENT>, done: Label) {
    let [begun, length, v6, named] = [(); 4].map(|()| asm.label());
    asm.if_equal(R7, CONNECT, begun);
    asm.if_equal(R7, LENGTH, length);
    asm.set_flags(R6, FLAGS, |asm| asm.and(R2, !WANTS_OPTIONS));
    asm.goto(done);
    asm.place(begun);
    asm.set_flags(R6, FLAGS, |asm| asm.or(R2, WANTS_OPTIONS));
    asm.goto(done);

    asm.place(length);
    asm.load(Width::Word, R2, R6, STATE);
    asm.if_different(R2, SYN_SENT, done);
    asm.copy_memory((FP, EVENT_AT + 8), (R8, 0), END);
    asm.load(Width::Word, R2, R6, FAMILY);
    asm.if_different(R2, libc::AF_INET as u32, v6);
    asm.set(R2, 0);
    asm.store(Width::Double, FP, EVENT_AT + 32, R2);
    asm.set(R2, MAPPED.cast_signed());
    asm.store(Width::Word, FP, EVENT_AT + 40, R2);
    asm.load(Width::Word, R2, R6, LOCAL_IP4);
    asm.store(Width::Word, FP, EVENT_AT + 44, R2);
    asm.goto(named);
    asm.place(v6);
    for at in [0, 4, 8, 12] {
        asm.load(Width::Word, R2, R6, LOCAL_IP6 + at);
        asm.store(Width::Word, FP, EVENT_AT + 32 + at, R2);
    }
    asm.place(named);
    asm.set(R2, 0);
    asm.store(Width::Word, FP, EVENT_AT + 48, R2);
    asm.load(Width::Word, R2, R6, LOCAL_PORT);
    asm.store(Width::Word, FP, EVENT_AT + 52, R2);
    asm.load(Width::Word, R2, R6, FIRST_UNACKNOWLEDGED);
    asm.store(Width::Word, FP, EVENT_AT + 56, R2);
    let [socket, said] = [(); 2].map(|()| asm.label());
    asm.load(Width::Double, R3, R6, sock_ops::SOCKET);
    asm.if_something(R3, socket);
    asm.clear(EVENT_AT + VALUE, 16);
    asm.goto(said);
    asm.place(socket);
    asm.store(Width::Double, FP, EVENT_AT + VALUE, R3);
    asm.load(Width::Word, R2, R3, MARK);
    asm.store(Width::Word, FP, EVENT_AT + VALUE + 8, R2);
    asm.load(Width::Word, R2, R3, PRIORITY);
    asm.store(Width::Word, FP, EVENT_AT + VALUE + 12, R2);
    asm.place(said);
    send_event(asm, events, EVENT_AT, EventKind::Connect);
}

/// Builds the getpeername or getsockname program, which returns the address at `which` in the note.
pub(super) fn sock_name(map: &Map<ENDS>, which: i16, v4: bool) -> Vec<Insn> {
    let mut asm = Asm::default();
    let done = asm.label();
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, PROTOCOL);
    asm.if_different(R2, TCP, done);
    asm.store_cookie(R6, COOKIE);
    asm.look_up(map, COOKIE, done);
    asm.copy(R8, R0);
    asm.load(Width::Half, R7, R8, which + 16);
    asm.if_equal(R7, 0, done);
    asm.store(Width::Word, R6, PORT, R7);
    let words: &[(i16, i16)] = match v4 {
        true => &[(12, IP4)],
        false => &[(0, IP6), (4, IP6 + 4), (8, IP6 + 8), (12, IP6 + 12)],
    };
    for &(at, field) in words {
        asm.load(Width::Word, R2, R8, which + at);
        asm.store(Width::Word, R6, field, R2);
    }
    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short")
}
