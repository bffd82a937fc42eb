//! Many concurrent connections with one request each, and their timing.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use viaduct_sys::socket::tcp;

use super::Ask;
use crate::stop;
use crate::topology::{Node, TopologyError};

/// Set of connections; they close when it is dropped.
#[derive(Debug)]
pub struct Crowd {
    to: SocketAddr,
    ask: Ask,
    epoll: OwnedFd,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    began: Instant,
    times: Times,
}

/// Times of a connection's progress, since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time until the handshake completed.
    pub open: Option<Duration>,
    /// Time until the first bytes of the answer: all hops and the server are then connected.
    pub answered: Option<Duration>,
}

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The answer has begun.
    Answered,
    /// The server closed the connection.
    Ended,
    /// The connection failed.
    Failed,
}

impl Crowd {
    /// Opens `count` connections from `node`, beginning `at_once` at a time; each requests a few
    /// bytes and stays open. Returns when all are answered. Fails if a connection breaks, or
    /// `timeout` expires before all are answered.
    pub fn open(
        node: &Node,
        to: SocketAddr,
        count: usize,
        at_once: usize,
        timeout: Duration,
    ) -> Result<Crowd, TopologyError> {
        let opened = node.netns().enter(|| {
            let mut crowd = Crowd::new(to, Ask::Stay)?;
            let deadline = Instant::now() + timeout;
            while crowd.connections.len() < count {
                let many = at_once.min(count - crowd.connections.len());
                crowd.open_more(many, deadline)?;
            }
            Ok(crowd)
        })?;
        opened.map_err(|e: io::Error| node.io(format!("open {count} connections to {to}"), e))
    }

    /// Returns the timing of all connections.
    pub fn times(&self) -> Vec<Times> {
        self.connections.iter().map(|connection| connection.times).collect()
    }

    pub(super) fn new(to: SocketAddr, ask: Ask) -> io::Result<Crowd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Crowd { to, ask, epoll, connections: Vec::new() })
    }

    /// Begins another connection.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let connection = self.connect(self.connections.len())?;
        self.connections.push(connection);
        Ok(())
    }

    /// Closes connection `n` and begins another in its place.
    pub(super) fn replace(&mut self, n: usize) -> io::Result<()> {
        self.connections[n] = self.connect(n)?;
        Ok(())
    }

    /// Waits for events of any connection, for at most `at_most`.
    pub(super) fn turn(
        &mut self,
        at_most: Duration,
        news: &mut Vec<(usize, News)>,
    ) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: 0, tv_nsec: at_most.subsec_nanos().into() };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            let n = event.data.u64() as usize;
            let said = self.connections[n].handle_event(self.ask).unwrap_or(Some(News::Failed));
            news.extend(said.map(|said| (n, said)));
        }
        Ok(())
    }

    fn connect(&self, n: usize) -> io::Result<Connection> {
        let began = Instant::now();
        let stream = tcp::connect(self.to, None, tcp::TcpOptions::default())?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(n as u64), flags)?;
        Ok(Connection { stream, began, times: Times::default() })
    }

    fn open_more(&mut self, many: usize, deadline: Instant) -> io::Result<()> {
        let (mut left, mut news) = (many, Vec::new());
        for _ in 0..many {
            self.begin()?;
            // Events of open connections are handled between the starts of new ones.
            self.turn(Duration::ZERO, &mut news)?;
        }
        while left > 0 {
            for (_, said) in news.drain(..) {
                if said != News::Answered {
                    return Err(io::Error::other("a connection ended without an answer"));
                }
                left -= 1;
            }
            if stop::is_requested() || Instant::now() > deadline {
                return Err(io::Error::other(format!("{left} of {many} are not answered")));
            }
            if left > 0 {
                self.turn(Duration::from_millis(100), &mut news)?;
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Performs the steps that are possible without blocking.
    fn handle_event(&mut self, ask: Ask) -> io::Result<Option<News>> {
        if self.times.open.is_none() {
            match self.stream.write(ask.text()) {
                Ok(_) => self.times.open = Some(self.began.elapsed()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let (mut buffer, mut news) = ([0; 1024], None);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) if self.times.answered.is_some() => return Ok(Some(News::Ended)),
                Ok(0) => return Ok(Some(News::Failed)),
                Ok(_) if self.times.answered.is_none() => {
                    self.times.answered = Some(self.began.elapsed());
                    news = Some(News::Answered);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(news),
                Err(error) => return Err(error),
            }
        }
    }
}
