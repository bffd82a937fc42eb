//! Decisions about calls that begin a flow or send a datagram.

use std::ffi::c_int;
use std::net::SocketAddr;

use viaduct_wrap::wire::{Answer, Call, Request};
use viaduct_wrap::{Datagrams, Errno, MSG_FASTOPEN, Sockaddr, Verdict, parse_sockaddr};

use super::socket_of;
use crate::raw;
use crate::state::{State, Wrapped, state};

/// Decision about a call, by the rules and the master.
pub(super) enum Decision {
    /// The call is passed to the kernel.
    Pass,
    /// The call does not reach the kernel, and returns this error number. 0 means that the socket
    /// is connected: a connect succeeds, and a Fast Open send still has to send its data.
    Done(c_int),
}

/// Returns whether a send with these flags needs a decision.
pub(super) fn needs_decision(flags: c_int) -> bool {
    match state() {
        Wrapped::No => false,
        Wrapped::Unreachable => true,
        Wrapped::By(state) => {
            flags & MSG_FASTOPEN != 0 || state.welcome.rules.datagrams() != Datagrams::Free
        }
    }
}

/// Decides about a call by the rules, and asks the master if the rules divert it. Returns the
/// decision, and the word with which the call passes seccomp; 0 if seccomp is to report the call.
pub(super) fn decide(fd: c_int, flags: c_int, sockaddr: &[u8], call: Call) -> (Decision, u64) {
    let state = match state() {
        Wrapped::No => return (Decision::Pass, 0),
        Wrapped::Unreachable if is_not_ip(sockaddr) => return (Decision::Pass, 0),
        Wrapped::Unreachable => return (Decision::Done(libc::ENETUNREACH), 0),
        Wrapped::By(state) if sockaddr.is_empty() => return (Decision::Pass, state.word),
        Wrapped::By(state) => state,
    };
    // The kernel reports the error of a descriptor that is not a socket.
    let Some(socket) = socket_of(fd) else { return (Decision::Pass, state.word) };
    let rules = &state.welcome.rules;
    if !socket.is_of_ip() {
        // The master knows which UNIX sockets belong to daemons that connect on behalf of programs.
        let judged = call == Call::Connect && (rules.names || rules.strict);
        return (Decision::Pass, if judged { 0 } else { state.word });
    }
    let (sent, length) = socket.as_sent(sockaddr);
    let read = if call == Call::Send { &sent[..length] } else { sockaddr };
    let to = match parse_sockaddr(read) {
        Sockaddr::Ip(to) => to,
        // The master must learn that the program has abandoned a connect in progress.
        Sockaddr::None if call == Call::Connect => return (Decision::Pass, 0),
        // Without seccomp's report, Landlock would refuse the call before the kernel reports the
        // invalid address.
        Sockaddr::Other if call == Call::Connect && rules.strict => return (Decision::Pass, 0),
        Sockaddr::None | Sockaddr::Other => return (Decision::Pass, state.word),
    };
    let verdict = match call {
        Call::Send => rules.send(socket, flags, sockaddr),
        _ => rules.connect(socket, sockaddr),
    };
    let decided = match verdict {
        // Without the word, seccomp reports the call to the master. The master checks that
        // datagrams which the chain carries have a route; in strict mode, it connects on behalf of
        // the program.
        Verdict::Pass if state.welcome.reports || rules.strict || rules.carries_of(socket) => {
            return (Decision::Pass, 0);
        }
        Verdict::Pass => Decision::Pass,
        Verdict::Resolve(_) => return (Decision::Pass, 0),
        Verdict::Refuse(errno) => {
            report(state, call, socket.is_of_datagrams(), Some(to), errno);
            Decision::Done(errno.0)
        }
        Verdict::Divert(to) => match state.welcome.offload {
            Some(rate) => {
                pace(fd, rate);
                if rules.strict {
                    return (Decision::Pass, 0);
                }
                Decision::Pass
            }
            None => match divert(state, fd, to, flags & libc::MSG_DONTWAIT == 0) {
                Some(errno) => Decision::Done(errno),
                None => return (Decision::Pass, 0),
            },
        },
    };
    (decided, state.word)
}

/// Returns whether `sockaddr` is an address of a family other than IP.
fn is_not_ip(sockaddr: &[u8]) -> bool {
    let family = sockaddr.first_chunk().copied().map(u16::from_ne_bytes);
    let families = [libc::AF_UNSPEC, libc::AF_INET, libc::AF_INET6];
    family.is_none_or(|family| !families.contains(&family.into()))
}

/// Limits the socket to `rate` bytes a second; 0 sets no limit.
fn pace(fd: c_int, rate: u64) {
    let [level, name] = [libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE].map(|of| of as usize);
    let arguments = [fd as usize, level, name, (&raw const rate) as usize, size_of::<u64>(), 0];
    if rate > 0 {
        // SAFETY: the kernel reads the rate, which lives through the call.
        unsafe { raw::call(libc::SYS_setsockopt, arguments) };
    }
}

/// Requests a flow to `to` from the master; `may_wait` is false if the call does not block even if
/// the socket does. Returns the result for the program, or `None` if seccomp is to report the call.
fn divert(state: &State, fd: c_int, to: SocketAddr, may_wait: bool) -> Option<c_int> {
    // SAFETY: the call takes no pointers.
    let flags =
        unsafe { raw::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    let wait = may_wait && flags & libc::O_NONBLOCK as isize == 0;
    match crate::ask::ask(state, &Request::Connect { to, wait }, Some(fd)) {
        // The connect in progress is not, or is no longer, a flow of the master. The program's own
        // call, which seccomp reports, gets the right result.
        Ok(Answer::Done(Errno::ALREADY)) if wait && state.welcome.has_seccomp => None,
        Ok(Answer::Done(errno)) => Some(errno.0),
        Ok(_) => Some(libc::ENETUNREACH),
        // A request to the master requires a descriptor; the program's own call, which seccomp
        // reports, does not.
        Err(errno) if crate::ask::is_full(errno) && state.welcome.has_seccomp => None,
        Err(errno) => Some(errno),
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
    crate::ask::notify(state, &refused);
}
