//! Pending connects of unprivileged interposers, held by a duplicate of the program's socket.

mod answer;
mod deadlines;
mod held;
mod known;
mod options;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::net::sockopt;
use tracing::{debug, warn};
use viaduct_proto::wrap::wire;
use viaduct_proto::wrap::{Errno, Rules, Socket};
use viaduct_sys::socket::pending::{Begun, ClosedPorts, Pending};
use viaduct_sys::socket::rendezvous::Rendezvous;
use viaduct_sys::socket::tcp::Mirrored;

pub use self::answer::Answer;
use self::deadlines::Deadlines;
use self::held::Waiting;
use self::known::{Known, Names};
use super::Plan;
use super::carried::Carried;
use super::carrier::Carrier;
use super::datagrams;
use super::fronts::Fronts;
use super::names::{Remote, place};
use super::report::{Fate, Report, Reported};
use crate::engine::aware::SocketId;
use crate::engine::wrapped::Call;
use crate::rate_limited::RateLimitedLog;

/// State shared by all pending connects.
#[derive(Debug)]
pub struct Common {
    /// Rules that say which flows pass the handlers.
    pub rules: Rules,
    /// The rendezvous where connects wait.
    pub meeting: Rendezvous,
    closed: ClosedPorts,
    names: Mutex<Names>,
    deadlines: Deadlines,
    carrier: Carrier,
    report: Option<Report>,
    /// Resolves fake IPs for names that are looked up at the far end.
    pub remote: Option<Arc<Remote>>,
    /// Set where the kernel can do all of the chain's work: the rate limit in bytes a second,
    /// or 0 for none. `None` if a report has to count bytes.
    pub offload: Option<u64>,
    /// Listeners of programs; `None` where the kernel can do all of the chain's work.
    pub fronts: Option<Arc<Fronts>>,
    /// No process is left that could make a call, or that cannot be known.
    ended: AtomicBool,
    /// Seccomp cannot report calls.
    unheard: AtomicBool,
    /// The reason why programs cannot listen has been logged.
    complained: AtomicBool,
    carrying: Carrying,
    /// Notice about datagrams, until it has been logged.
    notice: Mutex<Option<String>>,
    /// Rate-limited log of refused calls.
    refused: RateLimitedLog<String>,
}

/// Carrier of datagrams, started with the first of them.
#[derive(Debug)]
struct Carrying {
    plan: Option<Plan>,
    by: OnceLock<Option<Arc<Carried>>>,
}

fn uncarried(why: &anyhow::Error) -> String {
    format!("they cannot be carried ({why:#})")
}

impl Common {
    /// Returns the state for programs whose flows `carrier` carries as `plan` says.
    pub fn new(plan: &Plan, carrier: Carrier) -> Result<Arc<Common>> {
        let meeting = Rendezvous::open().context("open the meeting")?;
        let closed = ClosedPorts::open().context("reserve a port that is closed")?;
        let (mut rules, report) = (plan.rules, plan.report.clone());
        let offload = plan.offload.filter(|_| report.is_none());
        let offload = offload.map(|of| of.rate.map_or(0, |bits| (bits / 8).max(1)));
        let (names, remote) = (Mutex::default(), plan.names.clone());
        let matter = datagrams::matter(plan);
        let mut unable = datagrams::unable(plan).filter(|_| matter);
        let by = OnceLock::new();
        if matter && unable.is_none() && plan.names.is_some() {
            // The carrier of datagrams answers DNS queries too. If it cannot start, another
            // resolver answers them.
            match Carried::start(&plan.for_datagrams()) {
                Ok(carried) => drop(by.set(Some(carried))),
                Err(why) => unable = Some(uncarried(&why)),
            }
        }
        rules.carries = matter && unable.is_none();
        let notice = Mutex::new(unable.map(|why| datagrams::notice(plan, &why)));
        let carrying = Carrying { plan: rules.carries.then(|| plan.for_datagrams()), by };
        let serves = plan.offload.is_none();
        let fronts = serves.then(|| Fronts::new(carrier.clone(), report.clone())).transpose()?;
        Ok(Arc::new(Common {
            rules,
            meeting,
            closed,
            names,
            deadlines: Deadlines::default(),
            carrier,
            report,
            remote,
            offload,
            fronts,
            ended: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            complained: AtomicBool::new(false),
            carrying,
            notice,
            refused: RateLimitedLog::new(4),
        }))
    }

    /// Notes that no process is left that could make a call, or that this cannot be known.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Returns whether [`Common::end`] was called. The kernel's word is more exact than that of
    /// a parent that reaps children.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Notes that seccomp does not report calls: a library has nothing below it to rely on.
    pub fn not_heard(&self) {
        self.unheard.store(true, Ordering::Release);
    }

    /// Returns whether seccomp reports calls that a library does not see.
    pub fn is_heard(&self) -> bool {
        !self.unheard.load(Ordering::Acquire)
    }

    /// Warns once that a program listens and cannot be intercepted, and `why`.
    pub fn cannot_listen(&self, why: &str) {
        if !self.complained.swap(true, Ordering::AcqRel) {
            warn!("a program listens, which without privilege takes a namespace: {why}");
        }
    }

    /// Returns whether a notice that datagrams do not pass the handlers is pending.
    pub fn has_notice(&self) -> bool {
        self.notice.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Logs the notice about datagrams, once.
    pub fn see_datagrams(&self) {
        if let Some(notice) = self.notice.lock().unwrap_or_else(PoisonError::into_inner).take() {
            warn!("{notice}");
        }
    }

    /// Returns the carrier of datagrams. Starts it at the first call, which takes a moment.
    /// `None`, with a warning, if it cannot start.
    pub fn carry(&self) -> Option<&Arc<Carried>> {
        let plan = self.carrying.plan.as_ref()?;
        let start = || match Carried::start(plan) {
            Ok(carried) => Some(carried),
            Err(why) => {
                warn!("{}", datagrams::notice(plan, &uncarried(&why)));
                None
            }
        };
        self.carrying.by.get_or_init(start).as_ref()
    }

    /// Returns the carrier of datagrams if it has been started.
    pub fn carried(&self) -> Option<&Arc<Carried>> {
        self.carrying.by.get()?.as_ref()
    }

    /// Begins the flow of `socket`, a duplicate of a program's, to `to`. Returns the result for
    /// the program at once, or `None` if `answer` delivers it later.
    pub fn begin(
        self: &Arc<Common>,
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

    /// Returns true if the connect has begun or is in progress, false if the socket is
    /// connected already.
    fn try_begin(
        self: &Arc<Common>,
        socket: OwnedFd,
        to: SocketAddr,
        answer: Option<Answer>,
    ) -> io::Result<bool> {
        let place = place(self.remote.as_deref(), to).ok_or(io::ErrorKind::HostUnreachable)?;
        let at = self.meeting.at(to.is_ipv4()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let cookie = sockopt::socket_cookie(&socket)?;
        let mut names = self.names();
        let pending = match Pending::begin(socket, at) {
            Ok(Begun::Waits(pending)) => pending,
            Ok(Begun::Connected) => return Ok(false),
            Err(error) => {
                return match (error.raw_os_error().map(Errno), answer) {
                    (Some(Errno::ALREADY), Some(answer)) => {
                        let attempt = names.present(cookie).ok_or(error)?;
                        self.limit(&answer, Errno::ALREADY)?;
                        attempt.answers.push(answer);
                        Ok(true)
                    }
                    (Some(Errno::CONNREFUSED), _) => {
                        // The kernel reports every refusal as this error; the actual one is
                        // kept here.
                        let errno = names.take_refusal(cookie).unwrap_or(Errno::CONNREFUSED);
                        Err(io::Error::from_raw_os_error(errno.0))
                    }
                    _ => Err(error),
                };
            }
        };
        let (source, is_bound) = (pending.program()?, pending.is_bound());
        if let Some(answer) = &answer {
            self.limit(answer, Errno::INPROGRESS)?;
        }
        names.set(cookie, Known { peer: to, own: None, refused: None });
        let attempt = names.attempt(cookie, answer);
        let mirrored = names.mirrored.get(cookie);
        drop(names);
        let pending = Some(pending);
        let held = Box::new(Waiting { pending, to, cookie, attempt, common: self.clone() });
        let held = Reported::of(held, to, self.report.as_ref());
        self.carrier.call(Call { to: place, source, is_bound, mirrored, held });
        Ok(true)
    }

    /// Returns whether options that a program sets on such a socket are mirrored. They are not
    /// where the program's connections are its own (offload).
    pub fn mirrors_of(&self, is: Socket) -> bool {
        self.offload.is_none() && is.is_tcp()
    }

    /// Mirrors an option that a program has set on a socket; `read` reads it from there.
    /// `whose` is the socket's flow if it is connected.
    pub fn mirror(
        &self,
        cookie: u64,
        whose: Option<SocketId>,
        read: impl FnOnce(&mut Mirrored) -> io::Result<()>,
    ) {
        let mut names = self.names();
        let mirrored = names.mirrored.of(cookie);
        if let Err(error) = read(mirrored) {
            return debug!("an option of a socket: {error}");
        }
        let mirrored = *mirrored;
        drop(names);
        if let Some(whose) = whose {
            self.carrier.mirror(whose, mirrored);
        }
    }

    /// Answers a call with `errno` when the time limit of its program expires.
    fn limit(&self, answer: &Answer, errno: Errno) -> io::Result<()> {
        let Some(limit) = answer.limit else { return Ok(()) };
        self.deadlines.add(Instant::now() + limit, answer.clone(), errno)
    }

    /// Handles the disconnect of a socket: ends a connect in progress, whose outcome is not
    /// reported.
    pub fn disconnected(&self, cookie: u64) {
        let mut names = self.names();
        let attempt = names.end(cookie);
        names.forget(cookie);
        drop(names);
        let answers = attempt.into_iter().flat_map(|attempt| attempt.answers);
        for say in answers.filter_map(|answer| answer.take()) {
            say(Err(Errno::CONNABORTED));
        }
    }

    /// Returns the peer and local address to report for a socket, where they differ from those
    /// of the kernel.
    pub fn names_of(&self, cookie: u64) -> [Option<SocketAddr>; 2] {
        self.names().known.get(&cookie).map_or([None; 2], |known| [Some(known.peer), known.own])
    }

    /// Records `whom` as the peer address to report for a socket.
    pub fn asks(&self, cookie: u64, whom: SocketAddr) {
        self.names().set(cookie, Known { peer: whom, own: None, refused: None });
    }

    /// Returns why the connect of a socket has failed, if its program has not yet asked. The
    /// kernel cannot report all of these errors, and reports another for a moment.
    pub fn take_refusal(&self, cookie: u64) -> Option<Errno> {
        self.names().take_refusal(cookie)
    }

    /// Returns whether a report counts direct flows.
    pub fn tells(&self) -> bool {
        self.report.is_some()
    }

    /// Counts a stream that goes direct, as the rules say.
    pub fn left(&self, to: SocketAddr) {
        if let Some(report) = &self.report {
            report.count(Fate::Direct, "tcp", to);
        }
    }

    /// Counts and logs a refused call.
    pub fn refused(&self, call: wire::Call, datagrams: bool, to: Option<SocketAddr>, errno: Errno) {
        if call == wire::Call::Socket {
            self.see_datagrams();
        }
        if let (Some(report), Some(to)) = (&self.report, to) {
            report.count(Fate::Refused, if datagrams { "udp" } else { "tcp" }, to);
        }
        // Resolvers connect datagram sockets to all addresses of a name, to learn which are
        // reachable.
        if let (Some(remote), Some(to)) = (&self.remote, to)
            && remote.holds(to)
        {
            return;
        }
        let call = format!("{call:?}").to_lowercase();
        let why = io::Error::from_raw_os_error(errno.0);
        let name = |to: SocketAddr| {
            self.remote.as_ref().map_or_else(|| to.to_string(), |names| names.text(to))
        };
        let whither = to.map(|to| format!(" to {}", name(to))).unwrap_or_default();
        let line = format!("refused: {call}{whither}: {why}");
        self.refused.warn(line.clone(), line);
    }

    /// Logs that a program was kept from the socket of a daemon that starts programs.
    pub fn refused_daemon(&self, path: &[u8]) {
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        let path = String::from_utf8_lossy(path).into_owned();
        let line =
            format!("refused: connect to {path}: what it starts is outside of this run (--strict)");
        self.refused.warn(path, line);
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Domain, type and protocol of a socket, as the kernel reports them.
pub fn socket_of(socket: impl AsFd) -> io::Result<Socket> {
    let socket = socket.as_fd();
    Ok(Socket {
        domain: sockopt::socket_domain(socket)?.as_raw().into(),
        kind: sockopt::socket_type(socket)?.as_raw().cast_signed(),
        protocol: sockopt::socket_protocol(socket)?.map_or(0, |of| of.as_raw().get().cast_signed()),
    })
}
