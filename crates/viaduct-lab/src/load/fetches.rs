//! Clients that fetch the same object repeatedly, each time over a new connection; the bytes of
//! each client are counted (Trickles, section 6.1).

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State};
use viaduct_sys::poll::{Waker, wait};
use viaduct_sys::socket::tcp;

use super::Trickles;
use crate::stop;
use crate::topology::{Node, TopologyError};

/// Maximum sleep.
const NAP: Duration = Duration::from_millis(20);
/// Maximum bytes dropped per call.
const CHUNK: usize = 256 << 10;

/// Parameters of the fetches.
#[derive(Clone, Copy, Debug)]
pub struct Fetches<'a> {
    /// Request, which asks the server to close the connection.
    pub request: &'a [u8],
    /// Number of clients; they begin one after another in the first half of the warm-up.
    pub clients: usize,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Measured time.
    pub window: Duration,
}

/// Results within the window, except for the totals since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fetched {
    /// Bytes received by each client.
    pub bytes: Vec<u64>,
    /// Bytes received by all clients since the start.
    pub ever: u64,
    /// Completed fetches.
    pub whole: u64,
    /// Failed fetches.
    pub failed: u64,
    /// Loss recoveries of Trickles clients since the start; 0 for TCP, whose servers count them.
    pub recoveries: u64,
    /// Actual length of the window in seconds.
    pub seconds: f64,
}

impl Fetched {
    /// Returns the total throughput of all clients in Mb/s.
    pub fn mbps(&self) -> f64 {
        self.bytes.iter().sum::<u64>() as f64 * 8.0 / 1e6 / self.seconds
    }
}

impl Fetches<'_> {
    /// Fetches over the kernel's TCP, from `node` to `to`. Fails if a socket cannot be created,
    /// or on Ctrl-C.
    pub fn by_tcp(&self, node: &Node, to: SocketAddr) -> Result<Fetched, TopologyError> {
        let fetch = || {
            let mut sockets = Sockets::new(to, self)?;
            self.run(&mut sockets)
        };
        let fetched = node.netns().enter(fetch)?;
        fetched.map_err(|e| node.io(format!("fetch from {to}"), e))
    }

    /// Fetches over Trickles. Errors: those of the kernel, or Ctrl-C.
    pub fn by_trickles(&self, clients: &mut Trickles) -> io::Result<Fetched> {
        let mut streams = Streams {
            clients,
            request: self.request,
            owner: HashMap::new(),
            changed: Vec::new(),
            waker: Waker::new()?,
            recoveries: 0,
        };
        let fetched = self.run(&mut streams)?;
        Ok(Fetched { recoveries: streams.forget_all(), ..fetched })
    }

    fn run(&self, by: &mut dyn By) -> io::Result<Fetched> {
        let (start, mut begun, mut news) = (Instant::now(), 0, Vec::new());
        let mut tally = Fetched { bytes: vec![0; self.clients], ..Fetched::default() };
        let mut counts_from = None;
        loop {
            let passed = start.elapsed();
            let due = passed.as_secs_f64() / (self.warm_up.as_secs_f64() / 2.0).max(1e-3);
            while begun < self.clients && begun as f64 <= due * self.clients as f64 {
                by.begin(begun)?;
                begun += 1;
            }
            if counts_from.is_none() && passed >= self.warm_up {
                let (bytes, ever) = (vec![0; self.clients], tally.ever);
                tally = Fetched { bytes, ever, ..Fetched::default() };
                counts_from = Some(Instant::now());
            }
            if passed >= self.warm_up + self.window {
                break;
            }
            stop::check().map_err(io::Error::other)?;
            by.turn(NAP.min(self.warm_up + self.window - passed), &mut news)?;
            for (client, got) in news.drain(..) {
                match got {
                    Got::Bytes(bytes) => {
                        tally.bytes[client] += bytes;
                        tally.ever += bytes;
                    }
                    Got::Whole => tally.whole += 1,
                    Got::Broken => tally.failed += 1,
                }
                if !matches!(got, Got::Bytes(_)) {
                    by.begin(client)?;
                }
            }
        }
        tally.seconds = counts_from.map_or(0.0, |from| from.elapsed().as_secs_f64());
        Ok(tally)
    }
}

#[derive(Clone, Copy, Debug)]
enum Got {
    Bytes(u64),
    Whole,
    Broken,
}

trait By {
    /// Begins a fetch of `client`, and drops the client's previous connection.
    fn begin(&mut self, client: usize) -> io::Result<()>;
    /// Waits for events, for at most `at_most`.
    fn turn(&mut self, at_most: Duration, news: &mut Vec<(usize, Got)>) -> io::Result<()>;
}

/// Transport by the kernel's TCP.
struct Sockets<'a> {
    to: SocketAddr,
    request: &'a [u8],
    epoll: OwnedFd,
    /// Socket of each client, and whether its request was sent.
    open: Vec<Option<(TcpStream, bool)>>,
    buffer: Vec<u8>,
}

impl<'a> Sockets<'a> {
    fn new(to: SocketAddr, fetches: &Fetches<'a>) -> io::Result<Sockets<'a>> {
        let open = (0..fetches.clients).map(|_| None).collect();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Sockets { to, request: fetches.request, epoll, open, buffer: vec![0; CHUNK] })
    }

    fn handle_event(&mut self, client: usize, news: &mut Vec<(usize, Got)>) -> io::Result<()> {
        let Some((stream, asked)) = &mut self.open[client] else { return Ok(()) };
        if !*asked {
            match stream.write(self.request) {
                Ok(_) => *asked = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        loop {
            // For TCP, TRUNC makes the kernel count and drop the bytes.
            match recv(&*stream, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((_, 0)) => {
                    news.push((client, Got::Whole));
                    return Ok(());
                }
                Ok((_, bytes)) => news.push((client, Got::Bytes(bytes as u64))),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl By for Sockets<'_> {
    fn begin(&mut self, client: usize) -> io::Result<()> {
        self.open[client] = None;
        let stream = tcp::connect(self.to, None, tcp::TcpOptions::default())?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(client as u64), flags)?;
        self.open[client] = Some((stream, false));
        Ok(())
    }

    fn turn(&mut self, at_most: Duration, news: &mut Vec<(usize, Got)>) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: 0, tv_nsec: at_most.subsec_nanos().into() };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Err(error) if error != Errno::INTR => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            let client = event.data.u64() as usize;
            if self.handle_event(client, news).is_err() {
                news.push((client, Got::Broken));
            }
        }
        Ok(())
    }
}

struct Streams<'a> {
    clients: &'a mut Trickles,
    request: &'a [u8],
    owner: HashMap<u32, usize>,
    changed: Vec<u32>,
    waker: Waker,
    recoveries: u64,
}

impl Streams<'_> {
    /// Drops all unfinished fetches; returns the loss recoveries of all connections so far.
    fn forget_all(&mut self) -> u64 {
        let left: Vec<u32> = self.owner.keys().copied().collect();
        left.into_iter().for_each(|connection| self.forget(connection));
        self.recoveries
    }

    fn forget(&mut self, connection: u32) {
        let stats = self.clients.stream(connection).map(|stream| stream.stats());
        self.recoveries += stats.map_or(0, |stats| stats.recoveries);
        self.clients.forget(connection);
        self.owner.remove(&connection);
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        self.forget_all();
    }
}

impl By for Streams<'_> {
    fn begin(&mut self, client: usize) -> io::Result<()> {
        let connection = self.clients.connect(Config::default());
        if let Some(stream) = self.clients.stream(connection) {
            stream.write(MAIN, self.request);
            stream.shutdown(MAIN);
        }
        self.owner.insert(connection, client);
        Ok(())
    }

    fn turn(&mut self, at_most: Duration, news: &mut Vec<(usize, Got)>) -> io::Result<()> {
        let came = self.clients.turn(&mut self.changed)?;
        for connection in std::mem::take(&mut self.changed) {
            let Some(&client) = self.owner.get(&connection) else { continue };
            let Some(stream) = self.clients.stream(connection) else { continue };
            while let Some(data) = stream.read(MAIN) {
                news.push((client, Got::Bytes(data.len() as u64)));
            }
            let got = match stream.state(MAIN) {
                State::Open => continue,
                State::Finished => Got::Whole,
                State::Failed(_) => Got::Broken,
            };
            self.forget(connection);
            news.push((client, got));
        }
        // Reading makes room for more data, and new fetches have a request to send.
        self.clients.flush(&mut self.changed);
        if !came && news.is_empty() {
            let most = self.clients.poll_timeout().unwrap_or(at_most).min(at_most);
            wait(&[&*self.clients], &self.waker, most);
        }
        Ok(())
    }
}
