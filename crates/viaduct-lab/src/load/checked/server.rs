//! Server of the checked flows: one thread.

use std::array;
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::net::{SocketFlags, accept_with};
use viaduct_sys::socket::tcp;

use super::content::Content;
use super::{PACE_MS, State, TICK, Totals};

const BACKLOG: u32 = 4096;
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// Event number of the listener; connections have smaller numbers.
const LISTENER: u64 = u64::MAX;

pub(super) struct Server {
    listener: TcpListener,
    epoll: OwnedFd,
    /// Connections without a request yet, by their event number.
    waiting: HashMap<u64, TcpStream>,
    /// Number of accepted connections.
    accepted: u64,
    /// Paced flows, by the millisecond (modulo [`PACE_MS`]) at which they are due.
    paced: [Vec<Paced>; PACE_MS as usize],
}

struct Paced {
    number: u64,
    stream: TcpStream,
    content: Content,
    sent: u64,
}

impl Server {
    /// Listens at `address`. Fails if it is in use.
    pub(super) fn new(address: SocketAddr) -> io::Result<Server> {
        let listener = tcp::listen(address, BACKLOG, tcp::TcpOptions::default())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let number = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, number, epoll::EventFlags::IN)?;
        let (waiting, paced) = (HashMap::new(), array::from_fn(|_| Vec::new()));
        Ok(Server { listener, epoll, waiting, accepted: 0, paced })
    }

    /// Serves until `state.end` is set; returns the bytes sent on each paced flow.
    pub(super) fn run(mut self, state: &State) -> io::Result<Totals> {
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        let (begun, mut ticked) = (Instant::now(), 0);
        let mut events = Vec::with_capacity(256);
        while !state.end.load(Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&tick)) {
                Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
                _ => {}
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    number => self.handle_request(number),
                }
            }
            ticked = self.pace(begun.elapsed(), ticked);
        }
        Ok(self.paced.iter().flatten().map(|flow| (flow.number, flow.sent)).collect())
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok(stream) = accept_with(&self.listener, FLAGS) {
            let number = epoll::EventData::new_u64(self.accepted);
            epoll::add(&self.epoll, &stream, number, epoll::EventFlags::IN)?;
            self.waiting.insert(self.accepted, stream.into());
            self.accepted += 1;
        }
        Ok(())
    }

    /// Reads a request, which is one segment. A connection that begins with anything else
    /// is closed.
    fn handle_request(&mut self, connection: u64) {
        let Some(mut stream) = self.waiting.remove(&connection) else { return };
        // From now on the connection is only written to.
        let _ = epoll::delete(&self.epoll, &stream);
        let mut request = [0; 16];
        if !matches!(stream.read(&mut request), Ok(16)) {
            return;
        }
        let request = u128::from_be_bytes(request);
        let (number, length) = ((request >> 64) as u64, request as u64);
        let content = Content::of(number);
        if length == 0 {
            let flow = Paced { number, stream, content, sent: 0 };
            self.paced[(number % PACE_MS) as usize].push(flow);
        } else {
            // If this fails, the client finds that bytes are missing.
            let _ = send(&mut stream, content, length);
        }
    }

    /// Sends the blocks that have become due since millisecond `ticked`, and returns the current
    /// millisecond. Blocks that are more than [`PACE_MS`] late are not sent.
    fn pace(&mut self, passed: Duration, ticked: u64) -> u64 {
        let now = passed.as_millis() as u64;
        for tick in ticked.max(now.saturating_sub(PACE_MS))..now {
            self.paced[(tick % PACE_MS) as usize].iter_mut().for_each(Paced::send);
        }
        now
    }
}

impl Paced {
    /// Sends the rest of the block, as far as it fits into the socket's buffer. Errors are ignored,
    /// because the client notices them as well.
    fn send(&mut self) {
        if let Ok(sent) = self.stream.write(self.content.next()) {
            self.content.advance(sent);
            self.sent += sent as u64;
        }
    }
}

/// Sends a short flow, which fits into the socket's buffer.
fn send(stream: &mut TcpStream, mut content: Content, length: u64) -> io::Result<()> {
    let mut left = length as usize;
    while left > 0 {
        let count = left.min(content.next().len());
        stream.write_all(&content.next()[..count])?;
        content.advance(count);
        left -= count;
    }
    Ok(())
}
