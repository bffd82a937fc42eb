//! Those who share a master: each run has a session, in which it says what its program wants.
//!
//! The worker never waits for a run: what it has to say goes through a thread of the session's own. A run
//! that says what means nothing is heard no more.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketType, ipproto, sockopt};
use tracing::{debug, info, warn};
use viaduct_proto::wrap::Errno;
use viaduct_proto::wrap::shared::{Down, RECORD, Up};
use viaduct_proto::wrap::wire::{Answer, WELCOME, Welcome};
use viaduct_sys::records;

use super::remote::{Lines, Remote};
use super::{cannot_be, clear, network};
use crate::proxy::calls::{Arrival, Call};
use crate::run::carrier::Carrier;

/// Runs at once, at most; and of one user who is neither root nor the master's.
const SESSIONS: usize = 4096;
const OF_A_GUEST: usize = 256;
/// After an error of accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Where runs come.
#[derive(Debug)]
pub struct Desk {
    listener: OwnedFd,
    all_users: bool,
}

/// What every session needs.
#[derive(Debug)]
struct Shared {
    welcome: Welcome,
    carrier: Carrier,
    network: u64,
    /// By their user.
    sessions: Mutex<HashMap<u32, usize>>,
}

impl Desk {
    /// Opens it at `door`, for this user and root, or for all.
    ///
    /// # Errors
    /// Another master has it.
    pub fn open(door: &Path, all_users: bool) -> Result<Desk> {
        clear(door)?;
        let listener = records::listen(&door.to_string_lossy());
        let listener = listener.map_err(|error| cannot_be(door, &error))?;
        let mode = if all_users { 0o666 } else { 0o600 };
        fs::set_permissions(door, fs::Permissions::from_mode(mode))?;
        Ok(Desk { listener, all_users })
    }

    /// Serves for as long as the process runs.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(self, welcome: Welcome, carrier: Carrier) -> Result<()> {
        let network = network().context("ask for the network namespace")?;
        let sessions = Mutex::default();
        let shared = Arc::new(Shared { welcome, carrier, network, sessions });
        thread::Builder::new().name("desk".to_owned()).spawn(move || self.serve(&shared))?;
        Ok(())
    }

    fn serve(&self, shared: &Arc<Shared>) {
        let us = rustix::process::geteuid().as_raw();
        loop {
            let (socket, user) = match records::accept(&self.listener) {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None);
                    continue;
                }
                Err(error) => {
                    debug!("accept a run: {error}");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let guest = user != us && user != 0;
            if guest && !self.all_users {
                warn!("user {user} may not share this master: only its own and root may");
                answer(&socket, &Answer::Done(Errno::PERM));
                continue;
            }
            let most = if guest { OF_A_GUEST } else { SESSIONS };
            if let Err(error) = begin(socket, user, most, shared) {
                warn!("a run cannot be heard: {error}");
            }
        }
    }
}

/// Begins a session of `user`, who may have so many.
fn begin(socket: OwnedFd, user: u32, most: usize, shared: &Arc<Shared>) -> io::Result<()> {
    // Its own threads wait for it.
    rustix::io::ioctl_fionbio(&socket, false)?;
    let place = Place::of(user, most, shared)?;
    let hear = move || {
        hear(socket, &place.shared);
    };
    thread::Builder::new().name("run".to_owned()).spawn(hear).map(drop)
}

/// A session's place among its user's.
struct Place {
    user: u32,
    shared: Arc<Shared>,
}

impl Place {
    fn of(user: u32, most: usize, shared: &Arc<Shared>) -> io::Result<Place> {
        let mut sessions = shared.sessions();
        let all: usize = sessions.values().sum();
        let own = sessions.entry(user).or_default();
        if *own >= most || all >= SESSIONS {
            return Err(io::Error::other(format!(
                "{own} runs of user {user}, and {all} in all, share this master already"
            )));
        }
        *own += 1;
        Ok(Place { user, shared: shared.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut sessions = self.shared.sessions();
        let own = sessions.get_mut(&self.user).map(|own| std::mem::replace(own, *own - 1));
        if own == Some(1) {
            sessions.remove(&self.user);
        }
    }
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears a run until it goes.
fn hear(socket: OwnedFd, shared: &Shared) {
    let socket = Arc::new(socket);
    if !greeted(&socket, shared) {
        return;
    }
    let (out, said) = channel();
    let theirs = socket.clone();
    if thread::Builder::new().name("to-run".to_owned()).spawn(move || tell(&theirs, &said)).is_err()
    {
        return;
    }
    info!("a run has joined");
    let (mut bytes, mut lines) = ([0; RECORD], Lines::default());
    loop {
        let obeyed = match records::receive_beside(&*socket, &mut bytes) {
            Ok((0, _)) => return info!("a run has gone"),
            Ok((length, beside)) => {
                obey(&bytes[..length], beside, (&out, &mut lines), &shared.carrier)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return warn!("a run cannot be heard: {error}"),
        };
        if obeyed.is_none() {
            return warn!("a run says what means nothing: it is heard no more");
        }
    }
}

/// Whether the run has said a hello that fits.
fn greeted(socket: &OwnedFd, shared: &Shared) -> bool {
    let mut bytes = [0; RECORD];
    let Ok((length, _)) = records::receive(socket, &mut bytes) else { return false };
    let refusal = match Up::parse(&bytes[..length]) {
        Some(Up::Hello { network }) if network == shared.network => None,
        Some(Up::Hello { .. }) => Some(Errno::XDEV),
        _ => Some(Errno::PROTO),
    };
    answer(socket, &refusal.map_or(Answer::Welcome(shared.welcome), Answer::Done));
    refusal.is_none()
}

/// Does what a record asks for; `None` if it is none, or not with this beside it.
fn obey(
    bytes: &[u8],
    beside: Vec<OwnedFd>,
    (out, lines): (&Sender<Down>, &mut Lines),
    carrier: &Carrier,
) -> Option<()> {
    let mut sockets = beside.into_iter().map(stream);
    match Up::parse(bytes)? {
        Up::Hello { .. } => None,
        Up::Call { id, to, source } => {
            let held = Box::new(Remote::new(id, sockets.next()??, out));
            let call = Call { to: to.into(), source, held };
            sockets.next().is_none().then(|| carrier.call(call))
        }
        Up::Arrival { id, client, own } => {
            let (stream, place) = (sockets.next()??, sockets.next()??);
            let program = Box::new(Remote::listening(id, place, lines.add(id, out)));
            let arrival = Arrival { stream, client, own, handlers: None, program };
            sockets.next().is_none().then(|| carrier.arrive(arrival))
        }
        Up::Another { id, of } => {
            let remote = Remote::new(id, sockets.next()??, out);
            sockets.next().is_none().then(|| lines.fill(of, Some(remote)))
        }
        Up::NoOther { of } => sockets.next().is_none().then(|| lines.fill(of, None)),
    }
}

/// A TCP socket, which does not block.
fn stream(fd: OwnedFd) -> Option<TcpStream> {
    let is = sockopt::socket_type(&fd).ok()? == SocketType::STREAM
        && sockopt::socket_protocol(&fd).ok()? == Some(ipproto::TCP);
    rustix::io::ioctl_fionbio(&fd, true).ok().filter(|()| is)?;
    Some(fd.into())
}

/// Tells a run what there is to tell, until nobody has more, or it has gone.
fn tell(socket: &OwnedFd, said: &Receiver<Down>) {
    for down in said {
        if records::send(socket, &down.emit(), None).is_err() {
            return;
        }
    }
}

/// A run that has gone hears nothing.
fn answer(socket: &OwnedFd, answer: &Answer) {
    let mut bytes = [0; WELCOME];
    let length = answer.emit(&mut bytes);
    if let Err(error) = records::send(socket, &bytes[..length], None) {
        debug!("answer a run: {error}");
    }
}
