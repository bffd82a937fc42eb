//! Socket options that a program sets on its connection, applied to the connection that
//! replaces it.

use std::io;
use std::os::fd::AsFd;

use libc::c_int;
use rustix::net::{AddressFamily, SocketType};

use crate::os;

/// Number of mirrored options.
pub const MIRRORED: usize = 11;

/// Level and name of each option.
pub(crate) const MIRRORED_OPTIONS: [(c_int, c_int); MIRRORED] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_TCP, libc::TCP_KEEPIDLE),
    (libc::SOL_TCP, libc::TCP_KEEPINTVL),
    (libc::SOL_TCP, libc::TCP_KEEPCNT),
    (libc::SOL_TCP, libc::TCP_USER_TIMEOUT),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_IP, libc::IP_TOS),
    (libc::SOL_IP, libc::IP_TTL),
    (libc::SOL_IPV6, libc::IPV6_TCLASS),
    (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS),
];
const KEEPALIVE: usize = 0;
const TIMES: std::ops::Range<usize> = 1..4;
const USER_TIMEOUT: usize = 4;
const MARK: usize = 5;
const PRIORITY: usize = 6;
/// Highest priority that requires no privilege.
const MAX_PRIORITY: i32 = 6;

/// Values of the mirrored options that a program has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mirrored(pub [Option<i32>; MIRRORED]);

impl Mirrored {
    /// Returns whether this option is mirrored.
    pub fn has(level: c_int, name: c_int) -> bool {
        index(level, name).is_some()
    }

    /// Returns whether this option may require a privilege (`CAP_NET_ADMIN` or `CAP_NET_RAW`).
    pub fn is_privileged(level: c_int, name: c_int) -> bool {
        matches!(index(level, name), Some(MARK | PRIORITY))
    }

    /// Returns whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == Mirrored::default()
    }

    /// Returns the level, name and value of each option that is set and differs from its value
    /// in `before`.
    pub fn since(self, before: Mirrored) -> impl Iterator<Item = (c_int, c_int, c_int)> {
        let values = self.0.into_iter().zip(before.0);
        MIRRORED_OPTIONS.into_iter().zip(values).filter_map(|((level, name), (value, before))| {
            Some((level, name, value.filter(|_| value != before)?))
        })
    }

    /// Sets the value of an option, if it is mirrored.
    pub fn set(&mut self, level: c_int, name: c_int, value: c_int) {
        if let Some(at) = index(level, name) {
            self.0[at] = Some(value);
        }
    }

    /// Reads the value of an option that was just set on a program's socket. Errors: the socket has
    /// no such option.
    pub fn read(&mut self, socket: impl AsFd, level: c_int, name: c_int) -> io::Result<()> {
        let Some(at) = index(level, name) else { return Ok(()) };
        self.0[at] = Some(os::getsockopt(socket.as_fd(), level, name)?);
        Ok(())
    }

    /// Sets the mark and the priority to a socket's `values`; 0 means not set.
    pub(crate) fn set_privileged(&mut self, values: [u32; 2]) {
        for (at, value) in [MARK, PRIORITY].into_iter().zip(values) {
            self.0[at] = Some(value.cast_signed()).filter(|value| *value != 0);
        }
    }

    /// Removes the values that require a privilege.
    pub fn unprivileged(mut self) -> Mirrored {
        self.0[MARK] = None;
        self.0[PRIORITY] =
            self.0[PRIORITY].filter(|priority| (0..=MAX_PRIORITY).contains(priority));
        self
    }

    /// Returns whether the program has set its own limit for vanished peers, which replaces ours.
    pub fn decides_liveness(&self) -> bool {
        let is_set = |at: usize| self.0[at].is_some_and(|value| value != 0);
        is_set(USER_TIMEOUT) || is_set(KEEPALIVE) && self.0[TIMES].iter().any(Option::is_some)
    }

    /// Sets the options on a socket that is not connected. Keepalive options and the user timeout
    /// are set only if they [decide the liveness](Mirrored::decides_liveness). Options that the
    /// kernel refuses are ignored.
    pub fn apply(&self, socket: impl AsFd) {
        let socket = socket.as_fd();
        let decides = self.decides_liveness();
        for (at, (level, name)) in MIRRORED_OPTIONS.into_iter().enumerate() {
            let Some(value) = self.0[at] else { continue };
            if decides || at > USER_TIMEOUT {
                // If this fails, the kernel has refused the option to the program too, or the
                // option is for another address family.
                let _ = os::setsockopt(socket, level, name, &value);
            }
        }
    }

    /// Sets the options on a connection. If they [decide its liveness](Mirrored::decides_liveness),
    /// the options that the program left unset get the kernel's defaults, so that none of our
    /// limits remains.
    pub fn apply_later(&self, socket: impl AsFd) {
        let socket = socket.as_fd();
        let mut all = *self;
        if self.decides_liveness() {
            let unset = defaults().unwrap_or_default();
            for at in 0..=USER_TIMEOUT {
                all.0[at] = all.0[at].or(unset.0[at]);
            }
        }
        all.apply(socket);
    }
}

/// Returns the values that a new socket has for the options that detect vanished peers.
fn defaults() -> io::Result<Mirrored> {
    let fresh = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    let mut all = Mirrored::default();
    for (level, name) in &MIRRORED_OPTIONS[..=USER_TIMEOUT] {
        all.read(&fresh, *level, *name)?;
    }
    Ok(all)
}

fn index(level: c_int, name: c_int) -> Option<usize> {
    MIRRORED_OPTIONS.iter().position(|of| *of == (level, name))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::sockopt;

    use super::*;
    use crate::socket::tcp::set_dead_after;

    const COUNT: (c_int, c_int) = (libc::SOL_TCP, libc::TCP_KEEPCNT);
    const ALIVE: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_KEEPALIVE);

    fn mirrored(options: &[(c_int, c_int, i32)]) -> Mirrored {
        let mut mirrored = Mirrored::default();
        for &(level, name, value) in options {
            mirrored.set(level, name, value);
        }
        mirrored
    }

    #[test]
    fn a_programs_own_limit_replaces_ours() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_dead_after(&stream, Duration::from_secs(60)).unwrap();
        // A program that only enables probes has set no limit.
        mirrored(&[(ALIVE.0, ALIVE.1, 1)]).apply_later(&stream);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 60_000);
        mirrored(&[(ALIVE.0, ALIVE.1, 1), (COUNT.0, COUNT.1, 3)]).apply_later(&stream);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 0);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 3);
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), Duration::from_secs(7200));
    }

    #[test]
    fn since_returns_only_changed_options() {
        let before = mirrored(&[(ALIVE.0, ALIVE.1, 1), (COUNT.0, COUNT.1, 3)]);
        let mut after = before;
        after.set(COUNT.0, COUNT.1, 4);
        after.set(libc::SOL_SOCKET, libc::SO_SNDBUF, 4);
        assert_eq!(after.since(before).collect::<Vec<_>>(), [(COUNT.0, COUNT.1, 4)]);
        assert_eq!(before.since(Mirrored::default()).count(), 2);
    }

    #[test]
    fn values_that_require_a_privilege_are_removed() {
        let all = mirrored(&[
            (libc::SOL_SOCKET, libc::SO_MARK, 7),
            (libc::SOL_SOCKET, libc::SO_PRIORITY, 7),
            (libc::SOL_IP, libc::IP_TOS, 16),
        ]);
        assert_eq!(all.unprivileged().0.iter().flatten().collect::<Vec<_>>(), [&16]);
    }
}
