//! State of sockets with intercepted connects.

use std::collections::HashMap;
use std::net::SocketAddr;

use viaduct_proto::wrap::Errno;
use viaduct_sys::socket::tcp::Mirrored;

use super::Answer;
use super::recent::Recent;

/// Addresses to report for a socket.
#[derive(Debug)]
pub(super) struct Addresses {
    /// The destination of the program's `connect`.
    pub(super) peer: SocketAddr,
    /// The local address, as the far end sees it.
    pub(super) own: Option<SocketAddr>,
    /// Error of a failed connect, until the program has read it.
    pub(super) refused: Option<Errno>,
}

/// A connect in progress.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// Number that distinguishes this connect from earlier connects of the same socket, which the
    /// program has given up.
    number: u64,
    /// Answers to the calls that wait for this connect.
    pub(super) answers: Vec<Answer>,
}

/// State of sockets, by cookie.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    pub(super) addresses: Recent<Addresses>,
    attempts: HashMap<u64, Attempt>,
    /// Options that programs have set on their sockets.
    pub(super) mirrored: Recent<Mirrored>,
    /// Number of the next attempt.
    next: u64,
}

impl SocketTable {
    /// Takes the error of a socket's failed connect.
    pub(super) fn take_refusal(&mut self, cookie: u64) -> Option<Errno> {
        let errno = self.addresses.get(cookie)?.refused.take()?;
        self.addresses.remove(cookie);
        Some(errno)
    }

    /// Begins an attempt of this socket, which replaces an earlier one. Returns the attempt's
    /// number.
    pub(super) fn begin_attempt(&mut self, cookie: u64, answer: Option<Answer>) -> u64 {
        let number = self.next;
        self.next += 1;
        let answers = answer.into_iter().collect();
        self.attempts.insert(cookie, Attempt { number, answers });
        number
    }

    /// Returns the current attempt of this socket.
    pub(super) fn attempt(&mut self, cookie: u64) -> Option<&mut Attempt> {
        self.attempts.get_mut(&cookie)
    }

    /// Ends the current attempt of this socket.
    pub(super) fn end_attempt(&mut self, cookie: u64) -> Option<Attempt> {
        self.attempts.remove(&cookie)
    }

    /// Returns whether `number` is the current attempt of this socket.
    pub(super) fn is_current(&self, cookie: u64, number: u64) -> bool {
        self.attempts.get(&cookie).is_some_and(|attempt| attempt.number == number)
    }

    /// Ends attempt `number` of this socket; `None` if that is not the current attempt.
    pub(super) fn end_attempt_number(&mut self, cookie: u64, number: u64) -> Option<Attempt> {
        if self.is_current(cookie, number) { self.end_attempt(cookie) } else { None }
    }
}
