//! Many connections at once, each of which asks one thing, and when each got how far.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use viaduct_sys::tcp;

use super::Ask;
use crate::stop;
use crate::topology::{Node, TopologyError};

/// The connections; they close with this value.
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

/// How long after its beginning a connection got how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Its handshake was done.
    pub open: Option<Duration>,
    /// The first bytes of the answer were there: all hops and the server are.
    pub answered: Option<Duration>,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The answer has begun.
    Answered,
    /// The server has ended it.
    Ended,
    /// It broke.
    Failed,
}

impl Crowd {
    /// Opens `count` connections from `node`, `at_once` begun at once; each asks for a few bytes and
    /// stays open. Returns when all are answered.
    ///
    /// # Errors
    /// One of them breaks, or `patience` is over before all are answered.
    pub fn open(
        node: &Node,
        to: SocketAddr,
        count: usize,
        at_once: usize,
        patience: Duration,
    ) -> Result<Crowd, TopologyError> {
        let opened = node.netns().enter(|| {
            let mut crowd = Crowd::new(to, Ask::Stay)?;
            let deadline = Instant::now() + patience;
            while crowd.connections.len() < count {
                let many = at_once.min(count - crowd.connections.len());
                crowd.open_more(many, deadline)?;
            }
            Ok(crowd)
        })?;
        opened.map_err(|e: io::Error| node.io(format!("open {count} connections to {to}"), e))
    }

    /// The times of all.
    pub fn times(&self) -> Vec<Times> {
        self.connections.iter().map(|connection| connection.times).collect()
    }

    pub(super) fn new(to: SocketAddr, ask: Ask) -> io::Result<Crowd> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Crowd { to, ask, epoll, connections: Vec::new() })
    }

    /// Begins one more.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        let connection = self.connect(self.connections.len())?;
        self.connections.push(connection);
        Ok(())
    }

    /// Begins one in the place of another, which closes.
    pub(super) fn replace(&mut self, n: usize) -> io::Result<()> {
        self.connections[n] = self.connect(n)?;
        Ok(())
    }

    /// Waits for news of any, at most so long.
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
            let said = self.connections[n].go_on(self.ask).unwrap_or(Some(News::Failed));
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
            // Those that are there already shall not wait for the others to be begun.
            self.turn(Duration::ZERO, &mut news)?;
        }
        while left > 0 {
            for (_, said) in news.drain(..) {
                if said != News::Answered {
                    return Err(io::Error::other("one was ended unanswered"));
                }
                left -= 1;
            }
            if stop::asked() || Instant::now() > deadline {
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
    /// Does what can be done now.
    fn go_on(&mut self, ask: Ask) -> io::Result<Option<News>> {
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
