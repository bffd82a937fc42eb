//! Servers of which something is known. Of one that knows only TCP each new connection would lose a round
//! trip before it is told so again; one that has answered by Trickles may be sent a program's first bytes at
//! once.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use viaduct_proto::time::Instant;

/// Servers that are remembered, at most.
const MOST: usize = 1024;

/// Those that are known.
#[derive(Debug)]
pub(super) struct Known {
    known: HashMap<SocketAddr, Instant>,
    /// How long it is taken to be so: a server may be given another program.
    holds: Duration,
}

impl Known {
    /// Of none, and of each for so long.
    pub(super) fn new(holds: Duration) -> Known {
        Known { known: HashMap::new(), holds }
    }

    /// It is so of the server at `to`, as it seems.
    pub(super) fn learn(&mut self, to: SocketAddr, now: Instant) {
        if self.known.len() >= MOST {
            self.known.retain(|_, until| now < *until);
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(to, now + self.holds);
    }

    /// It is so no more.
    pub(super) fn forget(&mut self, to: SocketAddr) {
        self.known.remove(&to);
    }

    /// Whether that is known.
    pub(super) fn holds(&self, to: SocketAddr, now: Instant) -> bool {
        self.known.get(&to).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_server_is_forgotten_and_bounded() {
        const HOLDS: Duration = Duration::from_secs(60);
        let mut plain = Known::new(HOLDS);
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let late = Instant::ZERO + HOLDS;
        plain.learn(at(80), Instant::ZERO);
        assert!(plain.holds(at(80), Instant::ZERO) && !plain.holds(at(81), Instant::ZERO));
        assert!(!plain.holds(at(80), late));
        plain.forget(at(80));
        assert!(!plain.holds(at(80), Instant::ZERO));
        (0..3 * MOST as u16).for_each(|port| plain.learn(at(port), late));
        assert!(plain.known.len() <= MOST && plain.holds(at(3 * MOST as u16 - 1), late));
    }
}
