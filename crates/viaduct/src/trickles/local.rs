//! Which addresses are this machine's: a tap sees what passes it, too.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};

use viaduct_proto::time::{Duration, Instant};

/// How long an answer holds: an address may come to this machine, or leave it.
const HOLDS: Duration = Duration::from_millis(100);
/// Answers that are kept, at most.
const MOST: usize = 1024;

/// Asks the kernel, and keeps what it says for a moment.
#[derive(Debug, Default)]
pub(super) struct Local {
    known: HashMap<IpAddr, (bool, Instant)>,
}

impl Local {
    /// Whether `ip` is this machine's, or led to it.
    pub(super) fn is(&mut self, now: Instant, ip: IpAddr) -> bool {
        if let Some(&(local, until)) = self.known.get(&ip)
            && now < until
        {
            return local;
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        // What cannot be bound to is not ours; no packet leaves by this.
        let local = UdpSocket::bind((ip, 0)).is_ok();
        self.known.insert(ip, (local, now + HOLDS));
        local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_ours_and_documentation_is_not() {
        let mut local = Local::default();
        for (ip, ours) in [("127.0.0.5", true), ("192.0.2.1", false), ("::1", true)] {
            let ip = ip.parse().unwrap();
            assert_eq!([local.is(Instant::ZERO, ip), local.is(Instant::ZERO, ip)], [ours; 2]);
        }
    }
}
