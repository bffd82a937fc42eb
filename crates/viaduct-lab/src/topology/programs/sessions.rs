//! Sessions of three kinds with one server: endless data, a number of bytes, an echo. The first
//! bytes select the kind, so that all use one port and one tunnel.
//!
//! ```text
//!   client                                                       server, one port
//!   fill()  ── 'S', n ─▶   ◀── n bytes, or endless ──────────────┤
//!   fetch()    the same, until the last byte                     │
//!   echo()  ── 'E', then 100 bytes at intervals ──────▶ ◀── back ┤
//!   Idle    ── 'S', and never reads                              ┘
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::stop;
use crate::topology::{Host, TopologyError};

const SEND: u8 = b'S';
const ECHO: u8 = b'E';
/// Count that requests endless data.
const ENDLESS: u64 = u64::MAX;
/// Bytes of an echo message.
pub const ECHO_BYTES: usize = 100;
/// Interval at which a waiting thread checks whether it should end.
const TICK: Duration = Duration::from_millis(100);
const CONNECT: Duration = Duration::from_secs(20);

/// Server of sessions. Dropping it stops its threads.
#[derive(Debug)]
pub struct SessionServer {
    address: SocketAddr,
    end: Arc<AtomicBool>,
}

impl SessionServer {
    /// Starts the server on TCP `port` of `host`.
    pub fn start(host: &Host, port: u16) -> Result<SessionServer, TopologyError> {
        let address = SocketAddr::new(host.v4().into(), port);
        let wrong = |e| host.io(format!("serve sessions at {address}"), e);
        let listener = host.netns().enter(|| TcpListener::bind(address))?.map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let end = Arc::new(AtomicBool::new(false));
        let until = end.clone();
        thread::Builder::new()
            .name("sessions".into())
            .spawn(move || accept(&listener, &until))
            .map_err(wrong)?;
        Ok(SessionServer { address, end })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, end: &Arc<AtomicBool>) {
    while !end.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let end = end.clone();
                // The client reports errors of a session.
                let serve = move || drop(serve(stream, &end));
                if thread::Builder::new().stack_size(256 << 10).spawn(serve).is_err() {
                    return;
                }
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn serve(mut stream: TcpStream, end: &AtomicBool) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    if kind == [ECHO] {
        let mut bytes = [0; ECHO_BYTES];
        loop {
            stream.read_exact(&mut bytes)?;
            stream.write_all(&bytes)?;
        }
    }
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    stream.set_write_timeout(Some(TICK))?;
    let (mut left, bytes) = (u64::from_be_bytes(count), vec![0x5a; 64 << 10]);
    while left > 0 && !end.load(Ordering::Relaxed) {
        match stream.write(&bytes[..bytes.len().min(left as usize)]) {
            Ok(written) => left -= written as u64,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Connects from `from` and requests `count` bytes.
fn ask(from: &Host, to: SocketAddr, count: u64) -> Result<TcpStream, TopologyError> {
    let connect = || -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&to, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        let mut request = vec![SEND];
        request.extend(count.to_be_bytes());
        stream.write_all(&request)?;
        Ok(stream)
    };
    from.netns().enter(connect)?.map_err(|e| from.io(format!("ask {to} for bytes"), e))
}

/// Reads endless data in `from` for `warm_up` and then for `duration`. Returns the bits per second
/// during `duration`.
pub fn fill(
    from: &Host,
    to: SocketAddr,
    (warm_up, duration): (Duration, Duration),
) -> Result<f64, TopologyError> {
    let mut stream = ask(from, to, ENDLESS)?;
    let wrong = |e| from.io(format!("read from {to}"), e);
    let (begin, mut buffer, mut counted) = (Instant::now(), vec![0; 256 << 10], 0);
    while begin.elapsed() < warm_up + duration {
        stop::check()?;
        let count = read(&mut stream, &mut buffer).map_err(wrong)?;
        if begin.elapsed() >= warm_up {
            counted += count;
        }
    }
    Ok(counted as f64 * 8.0 / (begin.elapsed() - warm_up).as_secs_f64())
}

/// Measures the time for `bytes`, from before connecting in `from` to the last byte.
pub fn fetch(from: &Host, to: SocketAddr, bytes: u64) -> Result<Duration, TopologyError> {
    let begin = Instant::now();
    let mut stream = ask(from, to, bytes)?;
    let wrong = |e| from.io(format!("read from {to}"), e);
    let (mut buffer, mut left) = (vec![0; 64 << 10], bytes);
    while left > 0 {
        stop::check()?;
        left -= read(&mut stream, &mut buffer).map_err(wrong)? as u64;
    }
    Ok(begin.elapsed())
}

/// Sends 100 bytes from `from` every `interval` for `duration`, without waiting for answers.
/// Returns the time until each echo; `None` for echoes missing two seconds after the end.
pub fn echo(
    from: &Host,
    to: SocketAddr,
    interval: Duration,
    duration: Duration,
) -> Result<Vec<Option<Duration>>, TopologyError> {
    let wrong = |e| from.io(format!("echo with {to}"), e);
    let connect = || -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&to, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.write_all(&[ECHO])?;
        Ok(stream)
    };
    let stream = from.netns().enter(connect)?.map_err(wrong)?;
    let mut reader = stream.try_clone().map_err(wrong)?;
    let count = (duration.as_secs_f64() / interval.as_secs_f64()) as usize;
    let (begin, mut back) = (Instant::now(), Vec::with_capacity(count));
    thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(stream, begin, interval, count));
        let mut bytes = [0; ECHO_BYTES];
        let until = duration + Duration::from_secs(2);
        for n in 0..count as u32 {
            let left = until.saturating_sub(begin.elapsed()).max(Duration::from_millis(1));
            reader.set_read_timeout(Some(left))?;
            match reader.read_exact(&mut bytes) {
                Ok(()) => back.push(Some(begin.elapsed().saturating_sub(interval * n))),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        sender.join().unwrap_or(Ok(()))
    })
    .map_err(wrong)?;
    back.resize(count, None);
    Ok(back)
}

fn send_all(
    mut stream: TcpStream,
    begin: Instant,
    interval: Duration,
    count: usize,
) -> io::Result<()> {
    for n in 0..count as u32 {
        thread::sleep((interval * n).saturating_sub(begin.elapsed()));
        if stop::is_requested() {
            return Ok(());
        }
        stream.write_all(&[0xa5; ECHO_BYTES])?;
    }
    Ok(())
}

/// Session of endless data that its client never reads.
#[derive(Debug)]
pub struct Idle {
    _stream: TcpStream,
}

impl Idle {
    /// Opens the session in `from`. Its data fill the receive buffer and then stay unread.
    pub fn open(from: &Host, to: SocketAddr) -> Result<Idle, TopologyError> {
        let stream = ask(from, to, ENDLESS)?;
        Ok(Idle { _stream: stream })
    }
}

/// Reads some bytes; returns 0 after a timeout. The end of the stream is an error.
fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal, Wan};

    #[test]
    fn each_kind_takes_as_long_as_its_path() {
        let wan = Wan::emulated("rate=20M,delay=20ms,queue=200ms".parse().unwrap(), 1);
        let spec = DumbbellSpec { wan, ..DumbbellSpec::default() };
        let world = Dumbbell::build(&spec, &Journal::new()).unwrap();
        let server = SessionServer::start(world.b1(), 6200).unwrap();
        let (a1, to, ms) = (world.a1(), server.address(), Duration::from_millis);
        let took = fetch(a1, to, 1000).unwrap();
        assert!((ms(80)..ms(160)).contains(&took), "connect and ask: {took:?}");
        let back = echo(a1, to, ms(10), ms(500)).unwrap();
        assert_eq!(back.len(), 50);
        assert!(back.iter().all(|took| took.is_some_and(|took| took >= ms(40))), "{back:?}");
        let _idle = Idle::open(a1, to).unwrap();
        let rate = fill(a1, to, (ms(1000), ms(1000))).unwrap();
        assert!((10e6..20e6).contains(&rate), "{rate}");
    }
}
