//! Pending connects of the unprivileged interposers. For each, the master has a duplicate of the
//! program's socket.

mod answer;
mod connect;
mod deadlines;
mod options;
mod recent;
mod sockets;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::net::sockopt;
use tracing::warn;
use viaduct_proto::wrap::wire;
use viaduct_proto::wrap::{Errno, Rules, Socket};
use viaduct_sys::socket::pending::{Begun, ClosedPorts, Pending};
use viaduct_sys::socket::rendezvous::Rendezvous;

pub use self::answer::Answer;
use self::connect::InterposedConnect;
use self::deadlines::Deadlines;
use self::sockets::{Addresses, SocketTable};
use super::Plan;
use super::admission::has_other_child;
use super::datagrams;
use super::names::{self, RemoteNames, target};
use super::public_listeners::PublicListeners;
use super::report::{FlowOutcome, Report, ReportedConnect};
use super::user_udp::UserUdp;
use crate::engine::wrapped::Call;
use crate::master::carrier::Carrier;
use crate::rate_limited::RateLimitedLog;

/// State of an unprivileged interposer: its rules, and the pending connects.
#[derive(Debug)]
pub struct Interposition {
    /// Rules that select the flows for the handlers.
    pub rules: Rules,
    /// Rendezvous at which connects wait.
    pub rendezvous: Rendezvous,
    closed: ClosedPorts,
    sockets: Mutex<SocketTable>,
    deadlines: Deadlines,
    carrier: Carrier,
    /// Report that counts the flows, including direct ones.
    pub report: Option<Report>,
    /// Fake IPs, and the resolver that returns them to programs; `None` unless names are looked up
    /// at the far end.
    pub remote_names: Option<Arc<RemoteNames>>,
    /// Rate limit in bytes per second, or 0 for none, if the kernel does all of the chain's work.
    /// `None` if it cannot, or if a report has to count bytes.
    pub offload: Option<u64>,
    /// Listeners of programs; `None` if the kernel does all of the chain's work.
    pub public_listeners: Option<Arc<PublicListeners>>,
    /// Set once seccomp has reported that no process of the run is left.
    ended: AtomicBool,
    /// Set if seccomp cannot report calls.
    has_no_seccomp: AtomicBool,
    /// Set if the reason why programs cannot listen has been logged.
    has_warned: AtomicBool,
    user_udp: LazyUserUdp,
    /// Notice that datagrams do not go through the handlers; `None` once the notice has been
    /// logged.
    notice: Mutex<Option<String>>,
    /// Rate-limited log of refused calls.
    refused: RateLimitedLog<String>,
}

/// UDP in user space, which is started for the first datagram socket.
#[derive(Debug)]
struct LazyUserUdp {
    plan: Option<Plan>,
    running: OnceLock<Option<Arc<UserUdp>>>,
}

/// Reason in the datagram notice if UDP in user space cannot start.
fn cannot_carry(why: &anyhow::Error) -> String {
    format!("the carrier of datagrams cannot start ({why:#})")
}

impl Interposition {
    /// Returns the state for programs whose flows `carrier` carries according to `plan`.
    pub fn new(plan: &Plan, carrier: Carrier) -> Result<Arc<Interposition>> {
        let rendezvous = Rendezvous::open().context("cannot open the rendezvous")?;
        let closed = ClosedPorts::open().context("cannot reserve a closed port")?;
        let (mut rules, report) = (plan.rules, plan.report.clone());
        let offload = plan.offload.filter(|_| report.is_none());
        let offload = offload.map(|of| of.rate.map_or(0, |bits| (bits / 8).max(1)));
        let (sockets, remote_names) = (Mutex::default(), plan.names.clone());
        let are_handled = datagrams::are_handled(plan);
        let mut unsupported = datagrams::unsupported(plan).filter(|_| are_handled);
        let running = OnceLock::new();
        if are_handled && unsupported.is_none() && plan.names.is_some() {
            // UDP in user space also answers DNS queries. If it cannot start, the resolver of
            // `remote_names` answers them.
            match UserUdp::start(plan) {
                Ok(user_udp) => drop(running.set(Some(user_udp))),
                Err(why) => unsupported = Some(cannot_carry(&why)),
            }
        }
        rules.carries = are_handled && unsupported.is_none();
        if let Some(names) = plan.names.as_ref().filter(|_| !rules.carries) {
            names.begin()?;
        }
        let notice = Mutex::new(unsupported.map(|why| datagrams::notice(plan, &why)));
        let user_udp = LazyUserUdp { plan: rules.carries.then(|| plan.clone()), running };
        let serves = plan.offload.is_none();
        let public_listeners =
            serves.then(|| PublicListeners::new(carrier.clone(), report.clone())).transpose()?;
        Ok(Arc::new(Interposition {
            rules,
            rendezvous,
            closed,
            sockets,
            deadlines: Deadlines::default(),
            carrier,
            report,
            remote_names,
            offload,
            public_listeners,
            ended: AtomicBool::new(false),
            has_no_seccomp: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            user_udp,
            notice,
            refused: RateLimitedLog::new(4),
        }))
    }

    /// Records that seccomp has reported that no process of the run is left.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns whether seccomp has reported that no process of the run is left. Without seccomp:
    /// whether the only child of this process, which adopts orphans, is the holder of a capture
    /// namespace.
    pub fn has_ended(&self) -> bool {
        if self.has_seccomp() {
            return self.ended.load(Ordering::Acquire);
        }
        let holder = self.user_udp().map(|user_udp| user_udp.netns.holder);
        holder.is_some_and(|holder| !has_other_child(std::process::id(), holder))
    }

    /// Records that seccomp does not report calls, so that calls missed by the preloaded library
    /// are not intercepted.
    pub fn set_no_seccomp(&self) {
        self.has_no_seccomp.store(true, Ordering::Release);
    }

    /// Returns whether seccomp reports the calls that the preloaded library misses.
    pub fn has_seccomp(&self) -> bool {
        !self.has_no_seccomp.load(Ordering::Acquire)
    }

    /// Logs one warning that connections to listening programs are not intercepted, with the reason
    /// `why`.
    pub fn warn_cannot_listen(&self, why: &str) {
        if !self.has_warned.swap(true, Ordering::AcqRel) {
            warn!("a program listens, but has no capture namespace: {why}");
        }
    }

    /// Returns whether there is a notice about datagrams that has not been logged.
    pub fn has_datagram_notice(&self) -> bool {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Logs the notice about datagrams, once.
    pub fn log_datagram_notice(&self) {
        if let Some(notice) = self.notice.lock().unwrap_or_else(PoisonError::into_inner).take() {
            warn!("{notice}");
        }
    }

    /// Returns UDP in user space, which the first call starts, blocking until it has started.
    /// `None`, with a warning, if it cannot start.
    pub fn start_user_udp(&self) -> Option<&Arc<UserUdp>> {
        let plan = self.user_udp.plan.as_ref()?;
        let start = || match UserUdp::start(plan) {
            Ok(user_udp) => Some(user_udp),
            Err(why) => {
                warn!("{}", datagrams::notice(plan, &cannot_carry(&why)));
                None
            }
        };
        self.user_udp.running.get_or_init(start).as_ref()
    }

    /// Returns UDP in user space if it has been started.
    pub fn user_udp(&self) -> Option<&Arc<UserUdp>> {
        self.user_udp.running.get()?.as_ref()
    }

    /// Begins a flow to `to` for `socket`, a duplicate of a program's socket. Returns the result
    /// for the program, or `None` if `answer` delivers it later.
    pub fn begin(
        self: &Arc<Interposition>,
        socket: OwnedFd,
        to: SocketAddr,
        answer: Option<Answer>,
    ) -> Option<Errno> {
        let waits = answer.is_some();
        match self.try_begin(socket, to, answer) {
            Ok(true) => (!waits).then_some(Errno::INPROGRESS),
            Ok(false) => Some(Errno::NONE),
            Err(error) => Some(Errno(error.raw_os_error().unwrap_or(Errno::HOSTUNREACH.0))),
        }
    }

    /// Returns true if the connect has begun or is in progress, false if the socket is already
    /// connected.
    fn try_begin(
        self: &Arc<Interposition>,
        socket: OwnedFd,
        to: SocketAddr,
        answer: Option<Answer>,
    ) -> io::Result<bool> {
        let target =
            target(self.remote_names.as_deref(), to).ok_or(io::ErrorKind::HostUnreachable)?;
        let at = self.rendezvous.at(to.is_ipv4()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let cookie = sockopt::socket_cookie(&socket)?;
        let mut sockets = self.sockets();
        let pending = match Pending::begin(socket, at) {
            Ok(Begun::Waits(pending)) => pending,
            Ok(Begun::Connected) => return Ok(false),
            Err(error) => {
                return match (error.raw_os_error().map(Errno), answer) {
                    (Some(Errno::ALREADY), Some(answer)) => {
                        let attempt = sockets.attempt(cookie).ok_or(error)?;
                        self.add_deadline(&answer, Errno::ALREADY)?;
                        attempt.answers.push(answer);
                        Ok(true)
                    }
                    (Some(Errno::CONNREFUSED), _) => {
                        // The kernel reports every refused flow as `ECONNREFUSED`; the actual error
                        // is stored here.
                        let errno = sockets.take_refusal(cookie).unwrap_or(Errno::CONNREFUSED);
                        Err(io::Error::from_raw_os_error(errno.0))
                    }
                    _ => Err(error),
                };
            }
        };
        let (source, is_bound) = (pending.program()?, pending.is_bound());
        if let Some(answer) = &answer {
            self.add_deadline(answer, Errno::INPROGRESS)?;
        }
        sockets.addresses.set(cookie, Addresses { peer: to, own: None, refused: None });
        let attempt = sockets.begin_attempt(cookie, answer);
        let mirrored = sockets.mirrored.get(cookie).copied().unwrap_or_default();
        drop(sockets);
        let pending = Some(pending);
        let held = Box::new(InterposedConnect {
            pending,
            to,
            cookie,
            attempt,
            interposition: self.clone(),
        });
        let held = ReportedConnect::of(held, to, self.report.as_ref());
        self.carrier.call(Call { to: target, source, is_bound, mirrored, held });
        Ok(true)
    }

    /// Schedules `answer` with `errno` for the time at which the program's time limit expires.
    fn add_deadline(&self, answer: &Answer, errno: Errno) -> io::Result<()> {
        let Some(limit) = answer.limit else { return Ok(()) };
        self.deadlines.add(Instant::now() + limit, answer.clone(), errno)
    }

    /// Handles the disconnect of a socket: ends a connect in progress. Calls that wait for this
    /// connect fail with `ECONNABORTED`.
    pub fn disconnected(&self, cookie: u64) {
        let mut sockets = self.sockets();
        let attempt = sockets.end_attempt(cookie);
        sockets.addresses.remove(cookie);
        drop(sockets);
        let answers = attempt.into_iter().flat_map(|attempt| attempt.answers);
        for callback in answers.filter_map(|answer| answer.take()) {
            callback(Err(Errno::CONNABORTED));
        }
    }

    /// Returns the peer address and the local address to report for a socket. Each is `None` if the
    /// kernel's own answer is correct.
    pub fn addresses_of(&self, cookie: u64) -> [Option<SocketAddr>; 2] {
        let mut sockets = self.sockets();
        let known = sockets.addresses.get(cookie);
        known.map_or([None; 2], |known| [Some(known.peer), known.own])
    }

    /// Sets the peer address to report for a socket.
    pub fn set_peer(&self, cookie: u64, peer: SocketAddr) {
        self.sockets().addresses.set(cookie, Addresses { peer, own: None, refused: None });
    }

    /// Takes the error of a socket's failed connect, unless the program has already read the error.
    /// The kernel cannot report all of these errors, and reports `ECONNREFUSED` instead.
    pub fn take_refusal(&self, cookie: u64) -> Option<Errno> {
        self.sockets().take_refusal(cookie)
    }

    /// Counts a stream that connects directly because of the rules.
    pub fn count_direct(&self, to: SocketAddr) {
        if let Some(report) = &self.report {
            report.count(FlowOutcome::Direct, "tcp", to);
        }
    }

    /// Counts and logs a refused call.
    pub fn report_refused(
        &self,
        call: wire::Call,
        datagrams: bool,
        to: Option<SocketAddr>,
        errno: Errno,
    ) {
        if call == wire::Call::Socket {
            self.log_datagram_notice();
        }
        if let (Some(report), Some(to)) = (&self.report, to) {
            report.count(FlowOutcome::Refused, if datagrams { "udp" } else { "tcp" }, to);
        }
        // Refused connects to fake IPs are not logged: resolvers connect datagram sockets to all
        // addresses of a name to learn which ones are reachable.
        if let (Some(remote_names), Some(to)) = (&self.remote_names, to)
            && remote_names.is_fake_ip(to)
        {
            return;
        }
        let call = format!("{call:?}").to_lowercase();
        let why = io::Error::from_raw_os_error(errno.0);
        let name = |to| names::text(self.remote_names.as_deref(), to);
        let destination = to.map(|to| format!(" to {}", name(to))).unwrap_or_default();
        let line = format!("refused: {call}{destination}: {why}");
        self.refused.warn(line.clone(), line);
    }

    /// Logs a refused connect to the socket of a daemon that starts programs.
    pub fn report_refused_daemon(&self, path: &[u8]) {
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        let path = String::from_utf8_lossy(path).into_owned();
        let line = format!(
            "refused: connect to {path}: programs that it starts would bypass this run (--strict)"
        );
        self.refused.warn(path, line);
    }

    fn sockets(&self) -> std::sync::MutexGuard<'_, SocketTable> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the domain, type and protocol of a socket, as the kernel reports them.
pub fn socket_of(socket: impl AsFd) -> io::Result<Socket> {
    let socket = socket.as_fd();
    Ok(Socket {
        domain: sockopt::socket_domain(socket)?.as_raw().into(),
        kind: sockopt::socket_type(socket)?.as_raw().cast_signed(),
        protocol: sockopt::socket_protocol(socket)?.map_or(0, |of| of.as_raw().get().cast_signed()),
    })
}
