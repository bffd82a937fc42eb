//! Sessions of a shared master: each run has a session, in which it sends the requests of its
//! program.
//!
//! The worker never waits for a run: a thread of the session sends the worker's messages to the run
//! ([`super::outbox`]). A run that sends an invalid record is disconnected. Guests are runs of
//! users other than root and the master's own user; [`super::quota`] limits them. The processes of
//! a guest still have the sockets that the guest has passed, and may change them, so the event loop
//! treats these sockets as lent ([`crate::engine::flow_socket`]). Sockets that a nested master
//! forwards for its own guests are also lent.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketType, ipproto, sockopt};
use tracing::{debug, info};
use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::shared::{Down, RECORD, Up};
use viaduct_proto::wrap::wire::{Answer, Welcome};
use viaduct_proto::wrap::{Errno, Fate, Transport};
use viaduct_sys::process::dir_lock::DirLock;
use viaduct_sys::socket::seqpacket::{self, Received};
use viaduct_sys::socket::tcp::{self, Mirrored};

use super::carrier::Carrier;
use super::outbox::{Outbox, RunLender};
use super::quota::{Guest, Kind, Permit, Quota};
use super::remote::{FlowChannels, RemoteProgram};
use super::{creation_error, netns_inode, remove_stale_socket, send_answer};
use crate::engine::flow_socket::{FlowSocket, Lender};
use crate::engine::wrapped::{Arrival, Call};
use crate::rate_limited::RateLimitedLog;
use crate::status_socket::{Name, set_mode};

const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Listener for runs.
#[derive(Debug)]
pub struct RunListener {
    listener: OwnedFd,
    all_users: bool,
}

#[derive(Debug)]
struct Service {
    welcome: Welcome,
    carrier: Carrier,
    network: u64,
    quota: Arc<Quota>,
}

/// Rate limit, for each user, of the warnings about the user's runs.
static REFUSED: RateLimitedLog<u32> = RateLimitedLog::new(4);

impl RunListener {
    /// Opens the socket at `path`, for this user and root or for all users. Returns the listener
    /// and its name. Errors: another master has the name, or the socket cannot be created.
    pub fn open(path: &Path, all_users: bool) -> Result<(RunListener, Name)> {
        // The lock serializes masters that start at the same time.
        let _lock = DirLock::around(path).map_err(|error| creation_error(path, &error))?;
        remove_stale_socket(path)?;
        let listener = seqpacket::listen(&path.to_string_lossy());
        let listener = listener.map_err(|error| creation_error(path, &error))?;
        let mode = if all_users { 0o666 } else { 0o600 };
        set_mode(path, mode)?;
        Ok((RunListener { listener, all_users }, Name::of(path)))
    }

    /// Starts a thread that serves runs until the process ends.
    pub(super) fn start(self, welcome: Welcome, carrier: Carrier, quota: Arc<Quota>) -> Result<()> {
        let network = netns_inode().context("cannot read the network namespace")?;
        let shared = Arc::new(Service { welcome, carrier, network, quota });
        thread::Builder::new().name("runs".to_owned()).spawn(move || self.serve(&shared))?;
        Ok(())
    }

    fn serve(&self, shared: &Arc<Service>) {
        let us = rustix::process::geteuid().as_raw();
        loop {
            let (socket, user) = match seqpacket::accept(&self.listener) {
                Ok((socket, peer)) => (socket, peer.user),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], None);
                    continue;
                }
                Err(error) => {
                    debug!("cannot accept a run: {error}");
                    thread::sleep(ACCEPT_RETRY_DELAY);
                    continue;
                }
            };
            let guest = user != us && user != 0;
            if guest && !self.all_users {
                let what = "may not use this master, which serves only its own user and root (see \
                     --all-users)";
                REFUSED.warn(user, format_args!("user {user} {what}"));
                send_answer(&socket, &Answer::Done(Errno::PERM));
                continue;
            }
            let permit = if guest { shared.quota.take(user, Kind::Run) } else { None };
            if guest && permit.is_none() {
                let what =
                    "has reached its limit of runs (--user-runs), or all users together have";
                REFUSED.warn(user, format_args!("user {user} {what}"));
                send_answer(&socket, &Answer::Done(Errno::AGAIN));
                continue;
            }
            if let Err(error) = start_session(socket, (user, permit), shared) {
                REFUSED.warn(user, format_args!("cannot serve a run of user {user}: {error}"));
            }
        }
    }
}

/// Starts the thread of a session of `user`, which is a guest if there is a permit.
fn start_session(
    socket: OwnedFd,
    (user, permit): (u32, Option<Permit>),
    shared: &Arc<Service>,
) -> io::Result<()> {
    // The session's threads block on the socket.
    rustix::io::ioctl_fionbio(&socket, false)?;
    let shared = shared.clone();
    let serve = move || {
        let permit = permit.map(Arc::new);
        if let Some(session) = Session::open(socket, user, permit, &shared) {
            let why = session.run();
            session.out.end();
            match why {
                None => debug!("a run of user {user} has gone"),
                Some(why) => REFUSED.warn(user, format_args!("a run of user {user} {why}")),
            }
        }
    };
    thread::Builder::new().name("run".to_owned()).spawn(serve).map(drop)
}

struct Session<'a> {
    socket: Arc<OwnedFd>,
    user: u32,
    /// The user, if it is a guest.
    guest: Option<Guest>,
    shared: &'a Service,
    out: Outbox,
}

/// Resources granted to one request of a run.
struct Grants {
    lender: Option<Arc<dyn Lender>>,
    call: Option<Permit>,
}

impl Session<'_> {
    /// Opens a session if the run sends a matching hello. The session keeps `permit` until it ends.
    fn open(
        socket: OwnedFd,
        user: u32,
        permit: Option<Arc<Permit>>,
        shared: &Service,
    ) -> Option<Session<'_>> {
        let socket = Arc::new(socket);
        if !accepts_hello(&socket, shared) {
            return None;
        }
        let guest = permit.is_some().then(|| Guest::new(&shared.quota, user));
        let out = Outbox::start(socket.clone(), permit).ok()?;
        match guest {
            Some(_) => debug!(user, "a run has joined"),
            None => info!("a run has joined"),
        }
        Some(Session { socket, user, guest, shared, out })
    }

    /// Processes the records of the run until the run disconnects. Returns the reason if the run
    /// must be disconnected.
    fn run(&self) -> Option<String> {
        // The buffer is one byte longer than a record, so that a longer one is detected.
        let (mut bytes, mut channels) = ([0; RECORD + 1], FlowChannels::default());
        loop {
            let received = match seqpacket::receive_with_fds(&*self.socket, &mut bytes) {
                Ok(received) if received.length == 0 => return None,
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Some(format!("cannot be read: {error}")),
            };
            if received.is_truncated || received.length > RECORD {
                let what = "sent a record that is too long: it is of another version of viaduct";
                return Some(what.to_owned());
            }
            let Some(up) = Up::parse(&bytes[..received.length]) else {
                return Some("sent an invalid record; session closed".to_owned());
            };
            if self.handle(up, received, &mut channels).is_none() {
                return Some("sent an invalid record; session closed".to_owned());
            }
            if !self.out.await_room() {
                return Some("does not read its socket; disconnected".to_owned());
            }
        }
    }

    /// Executes the request of a record; `None` if the request is invalid, or does not match the
    /// attached descriptors.
    fn handle(&self, up: Up, received: Received, channels: &mut FlowChannels) -> Option<()> {
        let wanted = match up {
            Up::Hello { .. } => return None,
            Up::Call { .. } | Up::Another { .. } => 1,
            Up::Arrival { .. } => 2,
            Up::NoOther { .. } => 0,
        };
        if received.lost_fds && received.fds.len() <= wanted {
            // The run is not at fault: this process or the machine is out of descriptors.
            let what = "out of descriptors for requests of runs (ulimit -n, LimitNOFILE=)";
            REFUSED.warn(self.user, what);
            self.refuse(up, channels);
            return Some(());
        }
        if received.fds.len() != wanted {
            return None;
        }
        if let Up::Call { id, to, .. } = up
            && self.guest.is_some()
            && self.shared.welcome.rules.fate(Transport::Tcp, to) != Fate::Divert
        {
            // The rules do not select this flow: a correct run lets the flow connect directly, or
            // itself refuses it.
            let _ = self.out.send(Down::Refuse { id, why: Failure::Denied });
            return Some(());
        }
        let Some(grants) = self.grant(&up, channels) else {
            let user = self.user;
            let what = "has reached its limit of flows (--user-flows, --user-calls)";
            REFUSED.warn(user, format_args!("user {user} {what}"));
            self.refuse(up, channels);
            return Some(());
        };
        self.execute(up, received.fds, grants, channels)
    }

    /// Executes a request with its `grants`; `None` if the request is invalid.
    fn execute(
        &self,
        up: Up,
        fds: Vec<OwnedFd>,
        grants: Grants,
        channels: &mut FlowChannels,
    ) -> Option<()> {
        let mut sockets = fds.into_iter().map(|fd| stream(fd, grants.lender.clone()));
        let carrier = &self.shared.carrier;
        match up {
            Up::Hello { .. } => {}
            Up::Call { id, to, source, lent, is_bound, options } => {
                let mut remote = RemoteProgram::new(id, sockets.next()??, &self.out);
                remote.call = grants.call;
                let requested = Mirrored(options);
                // Options of a guest are not trusted: those that need privileges are dropped.
                let is_guest = self.guest.is_some();
                let mirrored = if is_guest || lent { requested.unprivileged() } else { requested };
                // A guest's claim to a bound address is not trusted: this process may have
                // privileges that the guest lacks.
                let is_bound = is_bound && !is_guest;
                let (to, held) = (to.into(), Box::new(remote));
                carrier.call(Call { to, source, is_bound, mirrored, held });
            }
            Up::Arrival { id, client, own, .. } => {
                let (stream, bound_socket) = (sockets.next()??, sockets.next()??);
                let mut program = Box::new(RemoteProgram::new(id, bound_socket, &self.out));
                program.channel = Some(channels.add(id, &self.out, self.guest.clone()));
                carrier.arrive(Arrival { stream, client, own, handlers: None, program });
            }
            Up::Another { id, of } => {
                channels.fill(of, Some(RemoteProgram::new(id, sockets.next()??, &self.out)));
            }
            Up::NoOther { of } => channels.fill(of, None),
        }
        Some(())
    }

    /// Takes the permits that a guest needs for a record, and creates the `Lender` that closes
    /// sockets of which other processes may have duplicates; `None` if the guest has reached a
    /// limit.
    fn grant(&self, up: &Up, channels: &FlowChannels) -> Option<Grants> {
        let mut grants = Grants { lender: None, call: None };
        let lender = |permit| Arc::new(RunLender { out: self.out.clone(), permit });
        let Some(guest) = &self.guest else {
            if let Up::Call { lent: true, .. } | Up::Arrival { lent: true, .. } = up {
                grants.lender = Some(lender(None));
            }
            return Some(grants);
        };
        if matches!(up, Up::NoOther { .. }) {
            return Some(grants);
        }
        if matches!(up, Up::Call { .. }) {
            grants.call = Some(guest.take(Kind::Call)?);
        }
        // A requested further flow has its permit already.
        let requested = match up {
            Up::Another { of, .. } => channels.take_permit(*of),
            _ => None,
        };
        let permit = Arc::new(requested.or_else(|| guest.take(Kind::Flow))?);
        grants.lender = Some(lender(Some(permit)));
        Some(grants)
    }

    /// Refuses the request of a record.
    fn refuse(&self, up: Up, channels: &mut FlowChannels) {
        match up {
            Up::Call { id, .. } | Up::Arrival { id, .. } => {
                // An error, which means that the run has gone, is ignored.
                let _ = self.out.send(Down::Refuse { id, why: Failure::Unreachable });
            }
            Up::Another { of, .. } | Up::NoOther { of } => channels.fill(of, None),
            Up::Hello { .. } => {}
        }
    }
}

/// Receives and answers the hello of a run. Returns whether the hello is valid for this master.
fn accepts_hello(socket: &OwnedFd, shared: &Service) -> bool {
    let mut bytes = [0; RECORD];
    let Ok((length, _)) = seqpacket::receive(socket, &mut bytes) else { return false };
    let refusal = match Up::parse(&bytes[..length]) {
        Some(Up::Hello { network }) if network == shared.network => None,
        Some(Up::Hello { .. }) => Some(Errno::XDEV),
        _ => Some(Errno::PROTO),
    };
    send_answer(socket, &refusal.map_or(Answer::Welcome(shared.welcome), Answer::Done));
    refusal.is_none()
}

/// Makes a descriptor a non-blocking TCP socket without SO_LINGER, so that `close` does not block.
/// The `lender`, if any, closes the socket. `None` if the descriptor is not a TCP socket.
fn stream(fd: OwnedFd, lender: Option<Arc<dyn Lender>>) -> Option<FlowSocket<TcpStream>> {
    let socket = match lender {
        Some(lender) => FlowSocket::lent(fd, lender),
        None => FlowSocket::from(fd),
    };
    let is = sockopt::socket_type(&socket).ok()? == SocketType::STREAM
        && sockopt::socket_protocol(&socket).ok()? == Some(ipproto::TCP);
    rustix::io::ioctl_fionbio(&socket, true).ok().filter(|()| is)?;
    tcp::fin_on_close(&socket).ok()?;
    Some(socket.map(TcpStream::from))
}
