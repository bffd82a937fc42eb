//! Detection of vanished peers on connections that are idle, have unacknowledged data, or face a
//! zero receive window.
//!
//! Keepalive probes cover an idle connection and `TCP_USER_TIMEOUT` covers unacknowledged data.
//! While the receive window is zero, the kernel's probes back off to two minutes, and
//! `TCP_USER_TIMEOUT` ends the connection even if the peer answers all probes. [`ZeroWindow::look`]
//! therefore extends that timeout while probes are answered. The timeout also bounds the time
//! between two probes, as the kernel never sleeps beyond it.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::{clock, os};

/// Longest keepalive time that the kernel accepts, in seconds.
const MAX_KEEPALIVE: u64 = 32_767;

/// Interval between calls of [`ZeroWindow::look`] that is assumed for short limits: half a second,
/// plus some delay.
const MIN_INTERVAL: Duration = Duration::from_millis(600);

/// Makes a connection fail with `ETIMEDOUT` when its peer acknowledges nothing for `after`: neither
/// data nor, on an idle connection, keepalive probes, which begin after half of `after`. A
/// connection to a live peer whose receive window stays zero for `after` fails too, unless
/// [`ZeroWindow::look`] is called. Keepalive times are whole seconds: if `after` is below 2 s, a
/// vanished idle peer is detected up to a second later. Errors: the socket is not a TCP socket.
pub fn set_dead_after(stream: impl AsFd, after: Duration) -> io::Result<()> {
    set_dead_after_quiet(stream, Some(after / 2), after)
}

/// Does the same as [`set_dead_after`], but sends the first keepalive probe after `quiet`, or after
/// half of `after` if that is earlier. `None` disables probes of an idle peer. Errors: those of
/// [`set_dead_after`].
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
    // With a user timeout the kernel ignores the number of probes.
    sockopt::set_tcp_keepintvl(stream, seconds(after / 8))?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Returns whether [`set_dead_after`] or the wrapped program has set a limit (`TCP_USER_TIMEOUT`).
/// Errors: the socket is not a TCP socket.
pub fn has_dead_after(stream: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::tcp_user_timeout(stream)? != 0)
}

fn millis(time: Duration) -> u32 {
    let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    millis.clamp(1, i32::MAX.cast_unsigned())
}

/// Measurement of how long the receive window of a connection's peer has been zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZeroWindow {
    /// Time since which the window has been zero, in ns on the monotonic clock; `None` while the
    /// window is open.
    since: Option<u64>,
    /// Time of the last call that found the window open, on the same clock.
    open: Option<u64>,
}

impl ZeroWindow {
    /// Keeps a connection with [`set_dead_after`]`(after)` open while its peer answers window
    /// probes. Must be called at intervals of at most `after / 8`, or half a second if that is
    /// longer, during the whole life of the connection. Errors: the socket is not a TCP socket.
    pub fn look(&mut self, stream: impl AsFd, after: Duration) -> io::Result<()> {
        let stream = stream.as_fd();
        let info: os::TcpInfo = os::getsockopt(stream, libc::SOL_TCP, libc::TCP_INFO)?;
        let now = clock::now();
        if info.unacknowledged() > 0 || info.unsent == 0 {
            // The window is open.
            self.open = Some(now);
            return match self.since.take() {
                Some(_) => Ok(sockopt::set_tcp_user_timeout(stream, millis(after))?),
                None => Ok(()),
            };
        }
        // The kernel counts from the moment when the window became zero. That was after the last
        // data was sent, and after the last call that found the window open.
        let last_sent = now.saturating_sub(info.last_sent().as_nanos() as u64);
        let since = last_sent.max(self.since.or(self.open).unwrap_or_default());
        self.since = Some(since);
        let zero_for = Duration::from_nanos(now - since);
        if info.unanswered_probes() > 0 {
            return Ok(());
        }
        // The next call is one interval later, and a probe is answered by then.
        let interval = (after / 8).max(MIN_INTERVAL);
        let until = after.max(zero_for + after / 4 + 2 * interval);
        Ok(sockopt::set_tcp_user_timeout(stream, millis(until))?)
    }
}
