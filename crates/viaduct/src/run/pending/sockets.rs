//! State of sockets with intercepted connects.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use viaduct_proto::wrap::Errno;

use super::Answer;
use super::options::Options;

/// Sockets whose addresses are remembered; the oldest are dropped first.
const MAX_SOCKETS: usize = 65_536;

/// Addresses to report for a socket.
#[derive(Debug)]
pub(super) struct Addresses {
    /// The destination that the program asked for.
    pub(super) peer: SocketAddr,
    /// The local address, as the far end sees it.
    pub(super) own: Option<SocketAddr>,
    /// Reason of the failure, until the program has read it.
    pub(super) refused: Option<Errno>,
}

/// A connect in progress.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// Distinguishes it from earlier connects of the same socket, which their program has given up.
    number: u64,
    /// Calls of the program that wait for it.
    pub(super) answers: Vec<Answer>,
}

/// State of sockets, by cookie.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    pub(super) addresses: HashMap<u64, Addresses>,
    /// Cookies in order of insertion.
    order: VecDeque<u64>,
    attempts: HashMap<u64, Attempt>,
    /// Options that programs have set on their sockets.
    pub(super) mirrored: Options,
    /// Number of the next attempt.
    next: u64,
}

impl SocketTable {
    pub(super) fn set_addresses(&mut self, cookie: u64, addresses: Addresses) {
        if self.addresses.insert(cookie, addresses).is_some() {
            return;
        }
        self.order.push_back(cookie);
        while self.order.len() > MAX_SOCKETS {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.addresses.remove(&oldest));
        }
    }

    /// Removes the addresses of a socket. Its place in the order stays until it expires.
    pub(super) fn forget_addresses(&mut self, cookie: u64) {
        self.addresses.remove(&cookie);
    }

    /// Takes the reason why a socket's connect has failed.
    pub(super) fn take_refusal(&mut self, cookie: u64) -> Option<Errno> {
        let errno = self.addresses.get_mut(&cookie)?.refused.take()?;
        self.forget_addresses(cookie);
        Some(errno)
    }

    /// Begins an attempt of this socket, in place of an earlier one. Returns its number.
    pub(super) fn begin_attempt(&mut self, cookie: u64, answer: Option<Answer>) -> u64 {
        let number = self.next;
        self.next += 1;
        let answers = answer.into_iter().collect();
        self.attempts.insert(cookie, Attempt { number, answers });
        number
    }

    /// The current attempt of this socket.
    pub(super) fn attempt(&mut self, cookie: u64) -> Option<&mut Attempt> {
        self.attempts.get_mut(&cookie)
    }

    /// Ends the current attempt of this socket.
    pub(super) fn end_attempt(&mut self, cookie: u64) -> Option<Attempt> {
        self.attempts.remove(&cookie)
    }

    /// Ends attempt `number` of this socket; `None` if it is not the current one.
    pub(super) fn end_attempt_number(&mut self, cookie: u64, number: u64) -> Option<Attempt> {
        self.attempts.get(&cookie).filter(|attempt| attempt.number == number)?;
        self.end_attempt(cookie)
    }
}
