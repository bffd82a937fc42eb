//! Programs that pass or refuse datagrams, and redirect DNS queries (`dns`). Datagrams for handlers
//! pass here, and are held in a queue later ([`crate::nft::datagram_queue`]).

use super::endpoints::ENDS;
use super::programs::{COOKIE, NOTE, report_if_enabled, report_note};
use super::rules::{ActionLabels, RuleAction, note_destination};
use super::{DatagramMode, EVENT, EventKind, ProgramContext, RedirectConfig};
use crate::bpf::asm::{Asm, FP, Insn, R0, R1, R2, R6, Width};
use crate::bpf::events::Events;
use crate::bpf::kernel::Map;

/// Builds the sendmsg program, which passes or refuses datagrams whose destination is an argument
/// of the call.
pub(super) fn message(context: &ProgramContext<'_>, v4: bool) -> Vec<Insn> {
    let mut asm = Asm::default();
    asm.copy(R6, R1);
    note_destination(&mut asm, NOTE, ENDS, v4);
    emit_verdict(&mut asm, context, v4);
    asm.finish().expect("MAX_RULES keeps every jump within reach")
}

/// Emits the verdict on a datagram to the noted destination. All paths end the BPF program.
pub(super) fn emit_verdict(asm: &mut Asm, context: &ProgramContext<'_>, v4: bool) {
    let ProgramContext { map, events, config, dns_servers, netns } = *context;
    let [redirect, pass, refuse] = [(); 3].map(|()| asm.label());
    if let Some(dns_servers) = dns_servers {
        dns_servers.ask(asm, NOTE, COOKIE, v4);
    }
    let rules = &config.datagrams;
    rules.emit(asm, NOTE, ActionLabels { redirect, pass, refuse });
    if rules.has_action(RuleAction::Refuse) {
        asm.place(refuse);
        report_if_enabled(asm, events, config, EventKind::RefusedDatagram);
        asm.exit(0);
    }
    if rules.has_action(RuleAction::Pass) {
        asm.place(pass);
        report_if_enabled(asm, events, config, EventKind::PassedDatagram);
        asm.exit(1);
    }
    if rules.has_action(RuleAction::Redirect) {
        asm.place(redirect);
        match config.datagram_mode {
            DatagramMode::Held => {
                // Datagrams of another network namespace do not reach our queue.
                let elsewhere = asm.label();
                asm.if_in_other_namespace(R6, netns, elsewhere);
                asm.exit(1);
                asm.place(elsewhere);
                report_if_enabled(asm, events, config, EventKind::RefusedDatagram);
                asm.exit(0);
            }
            DatagramMode::Passed => {
                report_once(asm, map, events, config, EventKind::PassedDatagram);
                asm.exit(1);
            }
            DatagramMode::Refused => {
                report_once(asm, map, events, config, EventKind::RefusedDatagram);
                asm.exit(0);
            }
        }
    }
}

/// Emits a report to this process. Without [`RedirectConfig::reports`] only the first datagram is
/// reported, to tell the user that handlers do not see datagrams.
fn report_once(
    asm: &mut Asm,
    map: &Map<ENDS>,
    events: &Events<EVENT>,
    config: &RedirectConfig<'_>,
    kind: EventKind,
) {
    if config.reports {
        return report_if_enabled(asm, events, config, kind);
    }
    // An entry for the cookie 0, which no socket has, records that a datagram was reported.
    let reported = asm.label();
    asm.set(R2, 0);
    asm.store(Width::Double, FP, COOKIE, R2);
    asm.look_for(map, COOKIE, reported);
    asm.keep(map, COOKIE, NOTE);
    asm.if_different(R0, 0, reported);
    report_note(asm, events, kind);
    asm.place(reported);
}
