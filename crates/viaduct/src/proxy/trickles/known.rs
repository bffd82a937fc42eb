//! Servers that know only TCP: each new connection would lose a round trip before it is told so again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use viaduct_proto::time::Instant;

/// How long it is taken to be so: a server may be given another program.
const HOLDS: Duration = Duration::from_secs(60);
/// Servers that are remembered, at most.
const MOST: usize = 1024;

/// Those that are known.
#[derive(Debug, Default)]
pub(super) struct Plain {
    known: HashMap<SocketAddr, Instant>,
}

impl Plain {
    /// The server at `to` knows only TCP, as it seems.
    pub(super) fn learn(&mut self, to: SocketAddr, now: Instant) {
        if self.known.len() >= MOST {
            self.known.retain(|_, until| now < *until);
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(to, now + HOLDS);
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
        let mut plain = Plain::default();
        let at = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let late = Instant::ZERO + HOLDS;
        plain.learn(at(80), Instant::ZERO);
        assert!(plain.holds(at(80), Instant::ZERO) && !plain.holds(at(81), Instant::ZERO));
        assert!(!plain.holds(at(80), late));
        (0..3 * MOST as u16).for_each(|port| plain.learn(at(port), late));
        assert!(plain.known.len() <= MOST && plain.holds(at(3 * MOST as u16 - 1), late));
    }
}
