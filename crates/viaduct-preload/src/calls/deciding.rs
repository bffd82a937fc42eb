//! What becomes of a call that begins a flow, or sends without one.

use std::ffi::c_int;
use std::net::SocketAddr;

use viaduct_proto::wrap::wire::{Answer, Call, Request};
use viaduct_proto::wrap::{Datagrams, Errno, MSG_FASTOPEN, Sockaddr, Verdict, parse_sockaddr};

use super::socket_of;
use crate::raw;
use crate::state::{State, Wrapped, state};

/// What is to be done with a call, when rules and master have spoken.
pub(super) enum Decided {
    /// It is the kernel's.
    Pass,
    /// It has happened, and this is what came of it.
    Done(c_int),
}

/// Whether a send with these flags must be looked at.
pub(super) fn is_judged(flags: c_int) -> bool {
    match state() {
        Wrapped::No => false,
        Wrapped::Deaf => true,
        Wrapped::By(state) => {
            flags & MSG_FASTOPEN != 0 || state.welcome.rules.datagrams() != Datagrams::Free
        }
    }
}

/// Asks the rules, and the master if they say so; and the word that lets the call pass.
pub(super) fn decide(fd: c_int, flags: c_int, sockaddr: &[u8], call: Call) -> (Decided, u64) {
    let Sockaddr::Ip(to) = parse_sockaddr(sockaddr) else {
        return (Decided::Pass, if let Wrapped::By(state) = state() { state.word } else { 0 });
    };
    let state = match state() {
        Wrapped::No => return (Decided::Pass, 0),
        Wrapped::Deaf => return (Decided::Done(libc::ENETUNREACH), 0),
        Wrapped::By(state) => state,
    };
    // The kernel says what is wrong with what is no socket.
    let Some(socket) = socket_of(fd) else { return (Decided::Pass, state.word) };
    let rules = &state.welcome.rules;
    let verdict = match call {
        Call::Send => rules.send(socket, flags, sockaddr),
        _ => rules.connect(socket, sockaddr),
    };
    let decided = match verdict {
        // Seccomp tells the master of what bears no word.
        Verdict::Pass if state.welcome.tells => return (Decided::Pass, 0),
        Verdict::Pass => Decided::Pass,
        Verdict::Resolve(_) => return (Decided::Pass, 0),
        Verdict::Refuse(errno) => {
            report(state, call, socket.is_of_datagrams(), Some(to), errno);
            Decided::Done(errno.0)
        }
        Verdict::Divert(to) => match state.welcome.offload {
            Some(rate) => {
                pace(fd, rate);
                Decided::Pass
            }
            None => Decided::Done(divert(state, fd, to)),
        },
    };
    (decided, state.word)
}

/// Has the kernel send at most so many bytes a second; 0 leaves it as it is.
fn pace(fd: c_int, rate: u64) {
    let [level, name] = [libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE].map(|of| of as usize);
    let arguments = [fd as usize, level, name, (&raw const rate) as usize, size_of::<u64>(), 0];
    if rate > 0 {
        // SAFETY: the kernel reads the rate, which lives through the call.
        unsafe { raw::call(libc::SYS_setsockopt, arguments) };
    }
}

/// Has the master make a flow of it; what the program is told.
fn divert(state: &State, fd: c_int, to: SocketAddr) -> c_int {
    // SAFETY: it takes no pointers.
    let flags =
        unsafe { raw::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    let wait = flags & libc::O_NONBLOCK as isize == 0;
    match crate::ask::ask(state, &Request::Connect { to, wait }, Some(fd)) {
        Ok(Answer::Done(errno)) => errno.0,
        Ok(_) => libc::ENETUNREACH,
        Err(errno) => errno,
    }
}

pub(super) fn report(
    state: &State,
    call: Call,
    datagrams: bool,
    to: Option<SocketAddr>,
    errno: Errno,
) {
    let refused = Request::Refused { call, datagrams, to, errno };
    crate::ask::tell(state, &refused);
}
