//! Detection of vanished peers: idle, with unacknowledged data, or with a shut receive window.
//!
//! Keepalive probes cover an idle connection and `TCP_USER_TIMEOUT` covers unacknowledged data.
//! With a shut window the kernel's probes back off to two minutes, and `TCP_USER_TIMEOUT` ends
//! the connection even if the peer answers all of them. [`ShutWindow::look`] therefore moves
//! that timeout ahead while probes are answered, which also bounds the time between two probes:
//! the kernel never sleeps beyond the timeout.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::{clock, os};

/// Largest keepalive time that the kernel accepts, seconds.
const MAX_KEEPALIVE: u64 = 32_767;

/// Interval of looks that is allowed however short the limit is: half a second, and some delay.
const MIN_INTERVAL: Duration = Duration::from_millis(600);

/// Ends a connection whose peer acknowledges nothing for `after`: neither data nor, on an idle
/// connection, any of the keepalive probes that begin after half of the time. The connection
/// then fails with `ETIMEDOUT`.
///
/// A live peer whose receive window stays shut for `after` is ended too, unless
/// [`ShutWindow::look`] is called. Keepalive times are whole seconds: an idle peer of `after`
/// below 2 s is noticed up to a second later.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn set_dead_after(stream: impl AsFd, after: Duration) -> io::Result<()> {
    set_dead_after_quiet(stream, Some(after / 2), after)
}

/// Sets the limit of [`set_dead_after`] with the first keepalive probe after `quiet`, or after
/// half of `after` if that is sooner. `None` disables probes of an idle peer.
///
/// # Errors
/// As [`set_dead_after`].
pub fn set_dead_after_quiet(
    stream: impl AsFd,
    quiet: Option<Duration>,
    after: Duration,
) -> io::Result<()> {
    let stream = stream.as_fd();
    sockopt::set_tcp_user_timeout(stream, millis(after))?;
    let Some(quiet) = quiet else { return Ok(()) };
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, MAX_KEEPALIVE));
    sockopt::set_tcp_keepidle(stream, seconds(quiet.min(after / 2)))?;
    // With a user timeout the kernel counts time, not probes.
    sockopt::set_tcp_keepintvl(stream, seconds(after / 8))?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Returns whether a limit such as [`set_dead_after`]'s has been set, by this process or for a
/// program.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn has_dead_after(stream: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::tcp_user_timeout(stream)? != 0)
}

fn millis(time: Duration) -> u32 {
    let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    millis.clamp(1, i32::MAX.cast_unsigned())
}

/// Time for which a connection's peer has had its receive window shut.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShutWindow {
    /// Time when it was shut or before, in nanoseconds of the monotonic clock; `None` while it
    /// is open.
    since: Option<u64>,
    /// Last look that found it open.
    open: Option<u64>,
}

impl ShutWindow {
    /// Keeps a connection with [`set_dead_after`]`(after)` open while its peer answers window
    /// probes. Call it at intervals of at most `after / 8`, or half a second if that is more,
    /// for as long as the connection lasts.
    ///
    /// # Errors
    /// The socket is not a TCP socket.
    pub fn look(&mut self, stream: impl AsFd, after: Duration) -> io::Result<()> {
        let stream = stream.as_fd();
        let info: os::TcpInfo = os::getsockopt(stream, libc::SOL_TCP, libc::TCP_INFO)?;
        let now = clock::now();
        if info.unacknowledged() > 0 || info.unsent == 0 {
            // The window is open (again).
            self.open = Some(now);
            return match self.since.take() {
                Some(_) => Ok(sockopt::set_tcp_user_timeout(stream, millis(after))?),
                None => Ok(()),
            };
        }
        // The kernel counts from when the window was shut: after the last data were sent and,
        // if none had been sent for long, after the last look that found it open.
        let last_sent = now.saturating_sub(info.last_sent().as_nanos() as u64);
        let since = last_sent.max(self.since.or(self.open).unwrap_or_default());
        self.since = Some(since);
        let shut_for = Duration::from_nanos(now - since);
        if info.unanswered_probes() > 0 {
            return Ok(());
        }
        // The next look is one interval later, and a probe has its answer by then.
        let interval = (after / 8).max(MIN_INTERVAL);
        let until = after.max(shut_for + after / 4 + 2 * interval);
        Ok(sockopt::set_tcp_user_timeout(stream, millis(until))?)
    }
}
