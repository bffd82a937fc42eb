//! Programs that listen, without privilege: the port that a program asked for is the master's to accept
//! at, and the program listens in a hall ([`super::hall`]) where nobody but the master comes.
//!
//! ```text
//!   program ── listen ──▶ its socket, bound to 192.0.2.1:80, becomes the front;
//!                         in its place it gets a listener in the hall, bound to the same address
//!   client ══▶ front ══▶ Arrival: handlers ══▶ a place in the hall, at the client's address ══▶ program
//! ```
//!
//! So all that can go wrong with an address is the program's own error, and whom it accepts is who the
//! kernel says. A front lives while somebody listens behind it.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt;
use tracing::{debug, warn};
use viaduct_proto::wrap::Socket;
use viaduct_sys::hall::{self, Purpose};
use viaduct_sys::seccomp::socket_of_somebody;
use viaduct_sys::tcp;

use super::carrier::Carrier;
use super::hall::Hall;
use super::report::{Report, Visited};
use crate::proxy::calls::{Arrival, Program};
use crate::proxy::conn::Conn;

/// How often it is looked whether programs still listen, if nobody asks.
const LOOK: Duration = Duration::from_millis(500);
/// After an error of accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are taken from one front before others have their turn.
const TURN: usize = 64;

/// All of a run's.
#[derive(Debug)]
pub struct Fronts {
    hall: Mutex<Option<Arc<Hall>>>,
    /// Whoever takes one away closes it: its port is free then.
    list: Mutex<Vec<Front>>,
    /// Tells of those where somebody has come, by their cookies.
    epoll: OwnedFd,
    /// Tells of the first, by 0.
    wake: OwnedFd,
    carrier: Carrier,
    report: Option<Report>,
}

/// A port that programs listen at.
#[derive(Debug)]
struct Front {
    listener: TcpListener,
    /// As the program knew its socket.
    cookie: u64,
    backlog: i32,
    /// Whether the program's calls on it wait.
    flags: OFlags,
    behind: Vec<Behind>,
}

/// A program's listener behind it.
#[derive(Debug)]
struct Behind {
    cookie: u64,
    inode: u64,
}

/// A connection to a program: what will be connected to it, and where it is in the hall.
#[derive(Debug)]
struct Caller {
    hall: Arc<Hall>,
    client: SocketAddr,
    place: Option<TcpStream>,
    own: SocketAddr,
}

/// What a program is given whose socket listens.
#[derive(Debug)]
pub enum Listens {
    /// This, in the place of its own, which is the other.
    Behind(OwnedFd, OwnedFd),
    /// What it has: it stands behind a front already, or is in another network.
    Already,
}

impl Fronts {
    /// None yet; `carrier` takes in whoever comes, of which `report` hears.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(carrier: Carrier, report: Option<Report>) -> io::Result<Arc<Fronts>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let (hall, list) = (Mutex::default(), Mutex::default());
        let fronts = Arc::new(Fronts { hall, list, epoll, wake, carrier, report });
        let all = fronts.clone();
        thread::Builder::new().name("arrivals".to_owned()).spawn(move || all.take_in())?;
        Ok(fronts)
    }

    /// Sees that there is a hall.
    ///
    /// # Errors
    /// This user cannot have one: why.
    pub fn open_hall(&self) -> Result<Arc<Hall>> {
        let mut hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hall) = &*hall {
            return Ok(hall.clone());
        }
        let opened = Arc::new(Hall::open()?);
        *hall = Some(opened.clone());
        Ok(opened)
    }

    /// Has `socket`, a duplicate of a program's TCP socket, listen behind a front.
    ///
    /// # Errors
    /// What the program is to be told: its address is taken.
    pub fn listen(&self, socket: OwnedFd, is: Socket, backlog: i32) -> io::Result<Listens> {
        let hall = self.open_hall().map_err(io::Error::other)?;
        let cookie = sockopt::socket_cookie(&socket)?;
        if let Some(listens) = self.listen_again(&hall, cookie, is, Some(backlog))? {
            return Ok(listens);
        }
        if !hall::is_of_this_network(&socket) {
            hall::listen(&socket, backlog)?;
            return Ok(Listens::Already);
        }
        let flags = fcntl_getfl(&socket)?;
        hall::listen(&socket, backlog)?;
        let behind = match listen_behind(&hall, &socket, is, backlog, flags) {
            Ok(behind) => behind,
            Err(error) => {
                hall::stop_listening(&socket)?;
                return Err(error);
            }
        };
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        let own = listener.try_clone()?.into();
        let data = epoll::EventData::new_u64(cookie);
        epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN)?;
        let known = vec![Behind::of(&behind)?];
        self.list().push(Front { listener, cookie, backlog, flags, behind: known });
        // It cannot be full.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(Listens::Behind(behind, own))
    }

    /// What is to be put in the place of a socket that a program accepts from, which it may have from
    /// before somebody had it listen; `None` if nothing is.
    pub fn accept(&self, cookie: u64, is: Socket) -> io::Result<Option<Listens>> {
        let hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner).clone();
        hall.map_or(Ok(None), |hall| self.listen_again(&hall, cookie, is, None))
    }

    /// A socket that was the front's, or is behind it.
    fn listen_again(
        &self,
        hall: &Hall,
        cookie: u64,
        is: Socket,
        backlog: Option<i32>,
    ) -> io::Result<Option<Listens>> {
        for front in &mut *self.list() {
            if front.cookie == cookie {
                let own = front.listener.try_clone()?.into();
                // All who have the socket have one queue.
                let theirs = front.behind.iter().find_map(|of| socket_of_somebody(of.inode));
                if let Some(behind) = theirs {
                    return Ok(Some(Listens::Behind(behind, own)));
                }
                let backlog = backlog.unwrap_or(front.backlog);
                let more = listen_behind(hall, &front.listener, is, backlog, front.flags)?;
                front.behind.push(Behind::of(&more)?);
                return Ok(Some(Listens::Behind(more, own)));
            }
            if front.behind.iter().any(|behind| behind.cookie == cookie) {
                return Ok(Some(Listens::Already));
            }
        }
        Ok(None)
    }

    /// Takes the fronts away behind which nobody listens any more.
    pub fn sweep(&self) {
        let mut list = self.list();
        let hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (Some(hall), false) = (hall, list.is_empty()) else { return };
        // If the keeper has ended, so has the hall.
        let listening = hall.listening().unwrap_or_default();
        list.retain_mut(|front| {
            front.behind.retain(|behind| listening.contains(&behind.inode));
            !front.behind.is_empty()
        });
    }

    /// Whether no program listens.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Takes connections to programs in for as long as the process runs.
    fn take_in(&self) {
        let (mut looked, mut events) = (Instant::now(), Vec::with_capacity(64));
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        loop {
            events.clear();
            let limit = (!self.is_empty()).then_some(&look);
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), limit)
                && error != Errno::INTR
            {
                return warn!("connections to programs cannot be heard of any more: {error}");
            }
            for event in &events {
                match event.data.u64() {
                    0 => drop(rustix::io::read(&self.wake, &mut [0; 8])),
                    cookie => self.take_from(cookie),
                }
            }
            if looked.elapsed() >= LOOK {
                self.sweep();
                looked = Instant::now();
            }
        }
    }

    fn take_from(&self, cookie: u64) {
        let (come, error) = self.accept_from(cookie);
        for (stream, client) in come {
            if let Err(error) = self.take(stream, client) {
                debug!("a connection to a program: {error}");
            }
        }
        if let Some(error) = error {
            debug!("accept: {error}");
            // Without a descriptor, say.
            thread::sleep(PAUSE);
        }
    }

    /// Who has come to a front, and what kept others from being known.
    fn accept_from(&self, cookie: u64) -> (Vec<(TcpStream, SocketAddr)>, Option<io::Error>) {
        let list = self.list();
        let mut come = Vec::new();
        let Some(front) = list.iter().find(|front| front.cookie == cookie) else {
            return (come, None);
        };
        while come.len() < TURN {
            match front.listener.accept() {
                Ok(accepted) => come.push(accepted),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return (come, Some(error)),
            }
        }
        (come, None)
    }

    fn take(&self, stream: TcpStream, client: SocketAddr) -> io::Result<()> {
        // Unless it is taken in whole, whoever has come is to hear of it.
        tcp::reset_on_close(&stream)?;
        let own = canonical(stream.local_addr()?);
        let client = canonical(client);
        let hall = self.open_hall().map_err(io::Error::other)?;
        let place = Some(hall.socket(Purpose::Place, client)?.into());
        stream.set_nonblocking(true)?;
        sockopt::set_socket_oobinline(&stream, true)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        tcp::end_on_close(&stream)?;
        let here = hall::here(own, own.is_ipv6());
        let program = Box::new(Caller { hall, client, place, own: here });
        let program = Visited::of(program, own, self.report.as_ref());
        let stream = stream.into();
        self.carrier.arrive(Arrival { stream, client, own, handlers: None, program });
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, Vec<Front>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Behind {
    fn of(socket: &OwnedFd) -> io::Result<Behind> {
        Ok(Behind { cookie: sockopt::socket_cookie(socket)?, inode: hall::inode(socket)? })
    }
}

/// A listener in the hall that is as `front` is.
fn listen_behind(
    hall: &Hall,
    front: impl AsFd,
    is: Socket,
    backlog: i32,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let front = front.as_fd();
    let at = rustix::net::getsockname(front)?.try_into()?;
    let alone = is.is_v6() && sockopt::ipv6_v6only(front)?;
    let purpose = Purpose::Listener { v6: is.is_v6(), alone };
    let behind = hall.socket(purpose, at)?;
    hall::set_up_like(behind.as_fd(), front, flags)?;
    hall::listen(&behind, backlog)?;
    Ok(behind)
}

/// Addresses of IPv4 as such, whichever socket they came to.
fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        ip @ std::net::IpAddr::V4(_) => SocketAddr::new(ip, at.port()),
        std::net::IpAddr::V6(_) => at,
    }
}

impl Program for Caller {
    fn place(&mut self) -> io::Result<Conn<TcpStream>> {
        match self.place.take() {
            Some(place) => Ok(place.into()),
            None => Ok(TcpStream::from(self.hall.socket(Purpose::Place, self.client)?).into()),
        }
    }

    /// The client's port is one flow's; further ones have others.
    fn another(&self) -> Option<Box<dyn Program>> {
        let client = SocketAddr::new(self.client.ip(), 0);
        Some(Box::new(Caller { hall: self.hall.clone(), client, place: None, own: self.own }))
    }

    fn connect(&mut self, place: &TcpStream) -> io::Result<()> {
        tcp::connect_bound(place, self.own)
    }
}
