//! A link over TCP: frames in records under the sites' keys, or in TLS.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, LongHaul, TcpOptions};

use super::channel::Channel;
use super::link::Credentials;
use super::settings::{Dial, TunnelSettings};

/// Size of a socket's buffers, in bytes. The kernel uses as much of each buffer as the path needs;
/// the tunnel's flow control bounds the bytes in flight.
const SOCKET: usize = 64 << 20;
/// Maximum number of reads from one link before other sockets are served.
const READS: usize = 4;
/// Maximum size of a read from an unauthenticated peer, in bytes.
const UNTRUSTED_READ: usize = 4 << 10;
/// Bounds and initial value of the time for which the unsent data in the socket should last. This
/// time adapts to the recent delay of this process in refilling the socket.
const MIN_AHEAD_TIME: Duration = Duration::from_millis(2);
const INITIAL_AHEAD_TIME: Duration = Duration::from_millis(10);
const MAX_AHEAD_TIME: Duration = Duration::from_millis(50);
/// Bounds of the unsent data, in bytes.
const MIN_AHEAD: usize = 16 << 10;
const MAX_AHEAD: usize = 4 << 20;
/// Factors of the time for which unsent data should last: the time grows by `GROW` when the socket
/// has run empty, and shrinks by `SHRINK` every [`MEASURE_INTERVAL`], which undoes one growth step
/// in about a second. An empty socket has an effect for a round trip: BBR treats the measured rate
/// as application-limited, and therefore neither lowers its estimate nor stops overshooting in
/// Startup.
const GROW: (u32, u32) = (3, 2);
const SHRINK: (u32, u32) = (159, 160);
/// Interval between readings of the pacing rate.
const MEASURE_INTERVAL: Duration = Duration::from_millis(20);

/// A link over TCP.
#[derive(Debug)]
pub(super) struct TcpLink {
    pub(super) stream: TcpStream,
    /// Encryption of the link.
    pub(super) channel: Channel,
    connected: bool,
    writable: bool,
    /// True if the socket may be readable: until a read would block.
    pub(super) readable: bool,
    /// Bytes received before the link was assigned to a tunnel.
    pub(super) plain_in: Vec<u8>,
    /// Frames to be sealed.
    plain_out: Vec<u8>,
    /// Sealed records.
    sealed: Vec<u8>,
    /// Number of bytes of `sealed` that are written.
    written: usize,
    /// Limit of unsent data in the socket, in bytes.
    ahead: usize,
    /// Time for which the unsent data should last.
    lasts: Duration,
    /// Time of the last reading of the pacing rate.
    measured: Instant,
}

/// Callback for the bytes of a read.
pub(super) type Deliver<'a> = &'a mut dyn FnMut(&[u8]);

/// Listens for links.
pub(super) fn listen(
    at: SocketAddr,
    backlog: u32,
    settings: &TunnelSettings,
) -> io::Result<TcpListener> {
    let listener = tcp::listen(at, backlog, options())?;
    if let Some(name) = &settings.congestion {
        congestion(name).apply(&listener)?;
    }
    Ok(TcpListener::from_std(listener))
}

fn congestion(name: &str) -> LongHaul {
    LongHaul { congestion_control: Some(name.to_owned()), buffer: None }
}

fn options() -> TcpOptions {
    TcpOptions { send_buffer: Some(SOCKET), receive_buffer: Some(SOCKET), ..TcpOptions::default() }
}

impl TcpLink {
    /// Wraps an accepted link.
    pub(super) fn accepted(stream: TcpStream) -> TcpLink {
        let _ = stream.set_nodelay(true);
        TcpLink::new(stream, Channel::Undecided, Vec::new(), true)
    }

    /// Dials a link.
    pub(super) fn dial(to: &Dial, credentials: Credentials<'_>) -> io::Result<TcpLink> {
        let mut first = Vec::new();
        let channel = Channel::dial(credentials, to, &mut first)?;
        let stream = tcp::connect(to.to, None, options())?;
        if let Some(name) = &credentials.settings.congestion {
            congestion(name).apply(&stream)?;
        }
        Ok(TcpLink::new(TcpStream::from_std(stream), channel, first, false))
    }

    fn new(stream: TcpStream, channel: Channel, sealed: Vec<u8>, connected: bool) -> TcpLink {
        let mut link = TcpLink {
            stream,
            channel,
            connected,
            writable: connected,
            readable: false,
            plain_in: Vec::new(),
            plain_out: Vec::new(),
            sealed,
            written: 0,
            ahead: 0,
            lasts: INITIAL_AHEAD_TIME,
            measured: Instant::ZERO,
        };
        link.set_ahead(MIN_AHEAD);
        link
    }

    /// Records the loop's report that the socket is readable or writable.
    pub(super) fn ready(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        if writable && !self.writable {
            self.writable = true;
            // The socket had been full. If it is empty now, this process was late to write more.
            if tcp::unsent(&self.stream).is_ok_and(|unsent| unsent == 0) {
                self.lasts = (self.lasts * GROW.0 / GROW.1).min(MAX_AHEAD_TIME);
                self.set_ahead(self.ahead * GROW.0 as usize / GROW.1 as usize);
            }
        }
    }

    /// Reads the available bytes, and passes them to `deliver`; without a callback, stores them in
    /// `plain_in`.
    pub(super) fn receive(
        &mut self,
        credentials: Credentials<'_>,
        scratch: &mut [u8],
        mut deliver: Option<Deliver<'_>>,
    ) -> io::Result<()> {
        if !self.check_connected()? {
            return Ok(());
        }
        for _ in 0..READS {
            if !self.readable {
                break;
            }
            let most = if self.channel.is_up() {
                scratch.len()
            } else {
                UNTRUSTED_READ.min(scratch.len())
            };
            let read = match self.stream.read(&mut scratch[..most]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let TcpLink { channel, plain_in, sealed, .. } = self;
            channel.handle_bytes(credentials, &scratch[..read], sealed, &mut |bytes| {
                match &mut deliver {
                    Some(deliver) => deliver(bytes),
                    None => plain_in.extend_from_slice(bytes),
                }
            })?;
        }
        Ok(())
    }

    /// Queues frames to be sent.
    pub(super) fn push(&mut self, frames: &[u8]) {
        self.plain_out.extend_from_slice(frames);
    }

    /// Returns whether enough bytes are queued to write them now.
    pub(super) fn is_full(&self) -> bool {
        self.plain_out.len() >= self.ahead / 2
    }

    /// Returns whether the socket has accepted all sealed records.
    pub(super) fn has_room(&self) -> bool {
        self.sealed.is_empty()
    }

    /// Writes as many bytes as the socket accepts.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        if !self.check_connected()? {
            return Ok(());
        }
        self.seal()?;
        while self.writable && self.written < self.sealed.len() {
            match self.stream.write(&self.sealed[self.written..]) {
                Ok(written) => {
                    self.written += written;
                    self.measure(now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.written == self.sealed.len() {
            self.sealed.clear();
            self.written = 0;
        }
        Ok(())
    }

    /// Sends the queued bytes and the channel's closing message, as much as the socket accepts.
    pub(super) fn close(&mut self, now: Instant) {
        if self.connected && self.seal().is_ok() {
            self.channel.close(&mut self.sealed);
            let _ = self.flush(now);
        }
    }

    /// Seals the queued frames once both ends have authenticated.
    fn seal(&mut self) -> io::Result<()> {
        if self.channel.is_up() && !self.plain_out.is_empty() {
            self.channel.seal(&self.plain_out, &mut self.sealed)?;
            self.plain_out.clear();
        }
        Ok(())
    }

    /// Returns whether TCP's handshake is done.
    fn check_connected(&mut self) -> io::Result<bool> {
        if !self.connected {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            self.connected = match self.stream.peer_addr() {
                Ok(_) => true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => false,
                Err(error) => return Err(error),
            };
            self.writable |= self.connected;
        }
        Ok(self.connected)
    }

    /// Adapts the limit of unsent data to the pacing rate, so that little data waits in the kernel,
    /// but the socket does not run empty.
    fn measure(&mut self, now: Instant) {
        if now.since(self.measured) < MEASURE_INTERVAL {
            return;
        }
        self.measured = now;
        self.lasts = (self.lasts * SHRINK.0 / SHRINK.1).max(MIN_AHEAD_TIME);
        if let Ok(Some(rate)) = tcp::pacing_rate(&self.stream) {
            self.set_ahead((rate as f64 * self.lasts.as_secs_f64()) as usize);
        }
    }

    fn set_ahead(&mut self, ahead: usize) {
        let ahead = ahead.clamp(MIN_AHEAD, MAX_AHEAD);
        if ahead.abs_diff(self.ahead) > self.ahead / 8 {
            self.ahead = ahead;
            let _ = tcp::set_notsent_lowat(&self.stream, ahead as i32);
        }
    }
}
