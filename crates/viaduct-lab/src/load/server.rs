//! Server for the loads.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create, sendfile};
use viaduct_sys::process::thread::pin;
use viaduct_sys::socket::tcp;

use super::Ask;
use crate::topology::{Host, TopologyError};

const PORT: u16 = 9000;
const BACKLOG: u32 = 4096;
/// Time after which the kernel delivers a deferred connection even without a request.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Event number of the listener; connections have smaller numbers.
const LISTENER: u64 = u64::MAX;
/// Size of the file that endless answers repeat.
const FILE: usize = 1 << 20;
const LITTLE: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 16\r\n\r\n0123456789abcdef";
const STAY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n0123456789abcdef";
const ENDLESS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n";

/// Running server; stopped when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server in `host` on `core`. Fails if the port is in use.
    pub fn start(host: &Host, core: usize) -> Result<Server, TopologyError> {
        let address = SocketAddr::new(host.v4().into(), PORT);
        let wrong = |e| host.io(format!("listen at {address}"), e);
        let listen = || tcp::listen(address, BACKLOG, tcp::TcpOptions::default());
        let listener = host.netns().enter(listen)?.map_err(wrong)?;
        // Deferred accept, as web servers use it: connections that a proxy opens ahead of the
        // request cost the server nothing.
        tcp::defer_accept(&listener, SILENCE_TIMEOUT).map_err(wrong)?;
        let event_loop = EventLoop::new(listener).map_err(wrong)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = thread::spawn(move || {
            let _ = pin(core);
            // On an error the server's connections close, and the load reports it.
            let _ = event_loop.run(&asked);
        });
        Ok(Server { address, stop, thread: Some(thread) })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct EventLoop {
    listener: TcpListener,
    epoll: OwnedFd,
    open: Vec<Option<TcpStream>>,
    free: Vec<usize>,
}

impl EventLoop {
    fn new(listener: TcpListener) -> io::Result<EventLoop> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let number = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, number, epoll::EventFlags::IN)?;
        Ok(EventLoop { listener, epoll, open: Vec::new(), free: Vec::new() })
    }

    fn run(mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&tick)) {
                Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
                _ => {}
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    n => self.handle_event(n as usize),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok(stream) = rustix::net::accept_with(&self.listener, FLAGS) {
            if let Some(silent) = serve(stream.into()) {
                self.watch(silent)?;
            }
        }
        Ok(())
    }

    /// Registers a connection that waits for its request or stays open.
    fn watch(&mut self, stream: TcpStream) -> io::Result<()> {
        let n = self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        });
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(n as u64), flags)?;
        self.open[n] = Some(stream);
        Ok(())
    }

    fn handle_event(&mut self, n: usize) {
        let Some(stream) = self.open[n].take() else { return };
        self.open[n] = serve(stream);
        if self.open[n].is_none() {
            self.free.push(n);
        }
    }
}

/// Answers a request; returns the connection if it must be kept.
fn serve(mut stream: TcpStream) -> Option<TcpStream> {
    let mut request = [0; 2048];
    let ask = match stream.read(&mut request) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(stream),
        read => read.ok().and_then(|bytes| Ask::parse(&request[..bytes])),
    };
    match ask? {
        // A client that has closed the connection needs no answer.
        Ask::Little => drop(stream.write_all(LITTLE)),
        Ask::Stay => return stream.write_all(STAY).is_ok().then_some(stream),
        Ask::Endless => drop(thread::spawn(move || pour(&stream))),
    }
    None
}

const FLAGS: rustix::net::SocketFlags =
    rustix::net::SocketFlags::NONBLOCK.union(rustix::net::SocketFlags::CLOEXEC);

/// Sends endless data until the client closes.
fn pour(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.write_all(ENDLESS)?;
    let file = memfd_create("viaduct-lab-endless", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, FILE as u64)?;
    loop {
        sendfile(stream, &file, Some(&mut 0), FILE)?;
    }
}
