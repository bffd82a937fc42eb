//! Sending half of a connection, with a minimum rate at which the client must receive the bytes.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use viaduct_sys::socket::tcp::{self, ZeroWindow};

use super::disk::{CHUNK, Disk};

/// Time over which the average rate of a client must be at least [`Limits::min_rate`].
const RATE_PERIOD: Duration = Duration::from_secs(60);
/// Maximum interval between checks of a connection that waits for its client.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between checks of a connection that waits for its client.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Minimum rate at which a client must acknowledge data, in bytes per second; 0: no limit.
    pub min_rate: u64,
    /// Time after which a peer that sends no acknowledgements counts as dead; `None`: the kernel's
    /// limits.
    pub dead_after: Option<Duration>,
}

/// Sending half of a connection.
#[derive(Debug)]
pub struct Outgoing<'a> {
    stream: &'a TcpStream,
    limits: Limits,
    written: u64,
    shut: ZeroWindow,
    checked_at: Instant,
    /// Start of the current [`RATE_PERIOD`], and the bytes acknowledged before it.
    period: (Instant, u64),
}

impl<'a> Outgoing<'a> {
    /// Configures the socket of a connection.
    pub fn new(stream: &'a TcpStream, limits: Limits) -> io::Result<Outgoing<'a>> {
        stream.set_nodelay(true)?;
        limits.dead_after.map_or(Ok(()), |after| tcp::set_dead_after(stream, after))?;
        let now = Instant::now();
        let (written, shut) = (0, ZeroWindow::default());
        Ok(Outgoing { stream, limits, written, shut, checked_at: now, period: (now, 0) })
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Number of bytes that the client has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        tcp::sending(self.stream).map_or(0, |sending| sending.held)
    }

    /// Interval between calls of [`Outgoing::check_progress`] while bytes are unacknowledged.
    pub fn check_interval(&self) -> Duration {
        let interval = self.limits.dead_after.map_or(MAX_CHECK_INTERVAL, |after| after / 8);
        interval.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
    }

    /// Begins a response, and restarts the measurement of the client's rate.
    pub fn begin(&mut self) {
        let now = Instant::now();
        self.period = (now, self.written.saturating_sub(self.unacknowledged()));
        self.checked_at = now;
    }

    /// Writes all of `bytes`. Errors: the connection failed, or its client is too slow
    /// (`TimedOut`).
    pub async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.ready().await?;
            let taken = taken(self.stream.try_write(&bytes[..bytes.len().min(CHUNK)]))?;
            bytes = &bytes[taken..];
            self.written += taken as u64;
        }
        Ok(())
    }

    /// Writes a head and its body, with a single system call if the socket has room. Neither is
    /// copied, so a client that does not read costs no additional memory.
    pub async fn write_both(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        self.ready().await?;
        let first = [IoSlice::new(head), IoSlice::new(&body[..body.len().min(CHUNK)])];
        let taken = taken(self.stream.try_write_vectored(&first))?;
        self.written += taken as u64;
        self.write(head.get(taken..).unwrap_or_default()).await?;
        self.write(&body[taken.saturating_sub(head.len())..]).await
    }

    /// Writes a part of a file. Errors: those of [`Outgoing::write`], and those of the file.
    pub async fn write_file(
        &mut self,
        disk: &Disk,
        file: &Arc<File>,
        range: Range<u64>,
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            // The file is read only when the socket has room, so that a waiting connection needs no
            // buffer.
            self.ready().await?;
            let most = usize::try_from(range.end - at).unwrap_or(CHUNK);
            let write = |bytes: &[u8]| self.stream.try_write(bytes);
            let taken = taken(disk.read_with(file, at, most, write).await)? as u64;
            at += taken;
            self.written += taken;
        }
        Ok(())
    }

    /// Waits until the socket is writable, and yields to other connections.
    async fn ready(&mut self) -> io::Result<()> {
        tokio::task::yield_now().await;
        loop {
            if let Ok(ready) = timeout(self.check_interval(), self.stream.writable()).await {
                ready?;
                return self.check_progress();
            }
            self.check_progress()?;
        }
    }

    /// Checks the progress of a client that has data to acknowledge. Errors: `TimedOut` if the
    /// client has acknowledged too few bytes.
    pub fn check_progress(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if now.duration_since(self.checked_at) < self.check_interval() {
            return Ok(());
        }
        self.checked_at = now;
        if let Some(after) = self.limits.dead_after {
            self.shut.look(self.stream, after)?;
        }
        let (since, before) = self.period;
        let time = now.duration_since(since);
        if time < RATE_PERIOD {
            return Ok(());
        }
        let acknowledged = self.written.saturating_sub(self.unacknowledged());
        self.period = (now, acknowledged);
        let least = self.limits.min_rate.saturating_mul(time.as_secs());
        // A FIN counts as an unacknowledged byte, although it is not counted as written.
        if acknowledged.saturating_sub(before) < least {
            return Err(io::Error::new(io::ErrorKind::TimedOut, TooSlow));
        }
        Ok(())
    }
}

/// Maps the result of a write to the number of bytes written; 0 if the socket has no room.
fn taken(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

/// Error of a connection that is closed because of [`Limits::min_rate`].
#[derive(Debug, thiserror::Error)]
#[error("the client is slower than --min-rate")]
struct TooSlow;

/// Returns whether a connection was closed because of [`Limits::min_rate`].
pub fn is_too_slow(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<TooSlow>())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Returns a connection whose client never reads. Virtual time passes while nothing can be
    /// written.
    async fn stalled(min_rate: u64) -> (TcpStream, TcpStream, Limits) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, server, Limits { min_rate, dead_after: Some(Duration::from_secs(3600)) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_receives_less_than_the_minimum_rate_is_disconnected() {
        let (_client, server, limits) = stalled(1_000).await;
        let mut out = Outgoing::new(&server, limits).unwrap();
        out.begin();
        let start = Instant::now();
        let bytes = vec![0; 64 << 20];
        let error = out.write(&bytes).await.unwrap_err();
        assert!(is_too_slow(&error), "{error}");
        assert!(out.written() > 0 && start.elapsed() >= RATE_PERIOD);
        let other = io::Error::from(io::ErrorKind::TimedOut);
        assert!(!is_too_slow(&other));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_minimum_rate_a_live_client_stays_connected() {
        let (_client, server, limits) = stalled(0).await;
        let mut out = Outgoing::new(&server, limits).unwrap();
        out.begin();
        let bytes = vec![0; 64 << 20];
        assert!(timeout(20 * RATE_PERIOD, out.write(&bytes)).await.is_err());
    }
}
