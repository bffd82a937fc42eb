//! The other end of the loads.

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
use viaduct_sys::tcp;
use viaduct_sys::thread::pin;

use super::Ask;
use crate::topology::{Host, TopologyError};

const PORT: u16 = 9000;
const BACKLOG: u32 = 4096;
/// How long a client may say nothing before its connection is looked at all the same.
const PATIENCE: Duration = Duration::from_secs(5);
/// The listener's number among the connections'.
const LISTENER: u64 = u64::MAX;
/// Bytes of the file that endless answers repeat.
const FILE: usize = 1 << 20;
const LITTLE: &[u8] =
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 16\r\n\r\n0123456789abcdef";
const STAY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n0123456789abcdef";
const ENDLESS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n";

/// A running server; it ends with this value.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it in `host`, on `core`.
    ///
    /// # Errors
    /// Its port is in use.
    pub fn start(host: &Host, core: usize) -> Result<Server, TopologyError> {
        let address = SocketAddr::new(host.v4().into(), PORT);
        let wrong = |e| host.io(format!("listen at {address}"), e);
        let listen = || tcp::listen(address, BACKLOG, tcp::TcpOptions::default());
        let listener = host.netns().enter(listen)?.map_err(wrong)?;
        // As web servers do: how long before the request a proxy connects is not the server's cost.
        tcp::await_words(&listener, PATIENCE).map_err(wrong)?;
        let desk = Desk::new(listener).map_err(wrong)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = thread::spawn(move || {
            let _ = pin(core);
            // It ends with its connections; whoever waits for their answers says so.
            let _ = desk.run(&asked);
        });
        Ok(Server { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
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

/// The server's loop.
struct Desk {
    listener: TcpListener,
    epoll: OwnedFd,
    open: Vec<Option<TcpStream>>,
    free: Vec<usize>,
}

impl Desk {
    fn new(listener: TcpListener) -> io::Result<Desk> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let number = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, number, epoll::EventFlags::IN)?;
        Ok(Desk { listener, epoll, open: Vec::new(), free: Vec::new() })
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
                    n => self.go_on(n as usize),
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

    /// Keeps a connection whose request is still to come, or that stays open.
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

    /// Something has come on a connection that was kept.
    fn go_on(&mut self, n: usize) {
        let Some(stream) = self.open[n].take() else { return };
        self.open[n] = serve(stream);
        if self.open[n].is_none() {
            self.free.push(n);
        }
    }
}

/// Answers what is asked; the connection, if it is to be kept.
fn serve(mut stream: TcpStream) -> Option<TcpStream> {
    let mut request = [0; 2048];
    let ask = match stream.read(&mut request) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(stream),
        read => read.ok().and_then(|bytes| Ask::parse(&request[..bytes])),
    };
    match ask? {
        // Whoever has gone meanwhile needs no answer.
        Ask::Little => drop(stream.write_all(LITTLE)),
        Ask::Stay => return stream.write_all(STAY).is_ok().then_some(stream),
        Ask::Endless => drop(thread::spawn(move || pour(&stream))),
    }
    None
}

const FLAGS: rustix::net::SocketFlags =
    rustix::net::SocketFlags::NONBLOCK.union(rustix::net::SocketFlags::CLOEXEC);

/// Sends without end: until the other end has gone.
fn pour(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.write_all(ENDLESS)?;
    let file = memfd_create("viaduct-lab-endless", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, FILE as u64)?;
    loop {
        sendfile(stream, &file, Some(&mut 0), FILE)?;
    }
}
