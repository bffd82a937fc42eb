//! `--via seccomp`, the interposer that needs no privilege: seccomp reports the program's calls.
//!
//! The thread that receives a call answers it, and never blocks. A blocking connect is answered
//! by the worker, when the far end has answered. A call that goes direct is made here, on a
//! duplicate of the socket and with the address that was judged: the program could change its
//! own copy between this check and the kernel's.
//!
//! | part | calls |
//! |---|---|
//! | here | `socket`, `connect`, and sends with an address |
//! | `addresses` | those that read a socket's addresses and its error |
//! | `arguments` | arguments of calls: memory and descriptors of the program |
//! | `blocking` | direct connects and sends that block |
//! | `datagrams` | those of UDP sockets whose datagrams are carried in user space |
//! | `direct_sends` | direct sends of datagrams |
//! | `listeners` | those of programs that listen |
//! | `options` | those that set and read mirrored socket options |
//! | `signals` | signals that arrive while a connect is pending |

mod addresses;
mod arguments;
mod blocking;
mod datagrams;
mod direct_sends;
mod listeners;
mod options;
mod signals;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SendFlags, sockopt};
use tracing::{debug, warn};
use viaduct_proto::wrap::{
    Datagrams, Errno, MSG_FASTOPEN, Sockaddr, Socket, Verdict, parse_sockaddr, wire,
};
use viaduct_sys::netns::capture_ns::is_in_this_netns;
use viaduct_sys::seccomp::epoll_watches::EpollCount;
use viaduct_sys::seccomp::{Listener, Notification, Reply, SeccompError, Task, Traps, calls};
use viaduct_sys::socket::pending::{connect_for, is_blocking};
use viaduct_sys::socket::sendmsg::Message;
use viaduct_sys::socket::tcp;

use self::arguments::{Header, MSGHDR, Span};
use self::direct_sends::Sending;
use self::options::is_mirrored;
use super::daemons::{self, Kind};
use super::pending::{Answer, Interposition};

/// Bytes that a send with TCP Fast Open takes at once: the buffer of a fresh socket.
const MAX_FAST_OPEN: usize = 16 << 10;
/// Approximate bytes of the datagrams of one call; the program sends the rest by another call.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of a DNS query, at most.
const MAX_QUERY: usize = 4096;
/// The socket option `SO_ERROR`.
const SO_ERROR: i32 = 4;
/// Interval between checks for signals to threads that wait for a connect.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Starts `command`, and handles its calls until no process is left that could call. Calls that
/// carry `word` are not reported.
pub fn start(
    interposition: &Arc<Interposition>,
    command: Command,
    word: Option<u64>,
) -> Result<u32, SeccompError> {
    let rules = &interposition.rules;
    let traps = Traps {
        sends: rules.datagrams() == Datagrams::Judged,
        datagrams: rules.datagrams() == Datagrams::Refused
            || interposition.has_datagram_notice()
            || rules.carries,
        families: rules.strict,
        confined: rules.strict,
        names: true,
        listeners: interposition.public_listeners.is_some() || rules.carries,
        word,
    };
    let (child, listener) = traps.spawn(command)?;
    let supervisor = Supervisor::new(listener, interposition.clone());
    let spawned = thread::Builder::new().name("calls".to_owned()).spawn(move || supervisor.run());
    spawned.map_err(SeccompError::Handover)?;
    Ok(child.id())
}

struct Supervisor {
    listener: Arc<Listener>,
    interposition: Arc<Interposition>,
    /// Threads that have called before. Operations on one whose number was reused fail.
    tasks: HashMap<u32, Arc<Task>>,
    /// Connects that their programs wait for.
    pending_connects: VecDeque<(Notification, Answer)>,
    /// Time of the last check for their signals.
    last_check: Instant,
    /// Count of epoll instances.
    made: EpollCount,
}

/// Payload of a send: plain bytes, or the header of a message.
#[derive(Clone, Copy, Debug)]
enum Payload {
    Plain(Span),
    Header(Header),
}

impl Payload {
    fn first(self) -> Span {
        match self {
            Payload::Plain(data) => data,
            Payload::Header(header) => header.first,
        }
    }
}

/// Outcome of a call: a reply now, or `None` if it is answered later.
type Outcome = Result<Option<Reply>, Errno>;

impl Supervisor {
    fn new(listener: Listener, interposition: Arc<Interposition>) -> Supervisor {
        let (tasks, pending_connects) = (HashMap::new(), VecDeque::new());
        let (listener, last_check, made) =
            (Arc::new(listener), Instant::now(), EpollCount::default());
        Supervisor { listener, interposition, tasks, pending_connects, last_check, made }
    }

    fn run(mut self) {
        loop {
            let mut fds = [PollFd::new(&*self.listener, PollFlags::IN)];
            let limit =
                Timespec { tv_sec: 0, tv_nsec: SIGNAL_CHECK_INTERVAL.subsec_nanos().into() };
            let limit = (!self.pending_connects.is_empty()).then_some(&limit);
            match poll(&mut fds, limit) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return warn!("calls are no longer handled: {error}"),
            }
            let events = fds[0].revents();
            if self.last_check.elapsed() >= SIGNAL_CHECK_INTERVAL {
                self.last_check = Instant::now();
                self.check_signals();
            }
            if events.contains(PollFlags::IN) {
                match self.listener.receive() {
                    Ok(call) => self.answer(&call),
                    // The caller has ended meanwhile.
                    Err(error) => debug!("a call: {error}"),
                }
            } else if events.contains(PollFlags::HUP) {
                return self.interposition.end();
            }
        }
    }

    fn answer(&mut self, call: &Notification) {
        let reply = match self.handle(call) {
            Ok(Some(reply)) => reply,
            Ok(None) => return,
            Err(errno) => Reply::Failed(errno.0),
        };
        send_reply(&self.listener, call, reply);
    }

    fn handle(&mut self, call: &Notification) -> Outcome {
        match call.call {
            calls::SOCKET => self.socket(call),
            calls::CONNECT => self.connect(call),
            calls::BIND => self.bind(call),
            calls::LISTEN => self.listen(call),
            calls::ACCEPT | calls::ACCEPT4 => self.accept(call),
            calls::SENDTO => {
                let [fd, data, length, flags, at, size] = call.arguments;
                self.send(call, fd, flags, (at, size), Payload::Plain((data, length)))
            }
            calls::SENDMSG => {
                let [fd, header, flags, ..] = call.arguments;
                let header = self.message(call, header)?;
                self.send(call, fd, flags, header.name, Payload::Header(header))
            }
            calls::SENDMMSG => self.send_many(call),
            calls::GETPEERNAME => self.socket_name(call, 0),
            calls::GETSOCKNAME => self.socket_name(call, 1),
            calls::GETSOCKOPT if is_mirrored(call) => self.handlers_option(call),
            calls::GETSOCKOPT if call.arguments[2] as i32 == SO_ERROR => self.socket_error(call),
            calls::GETSOCKOPT => self.reuse_option(call),
            calls::EPOLL_CREATE1 | calls::EPOLL_CREATE => {
                self.made.increment();
                Ok(Some(Reply::Continue))
            }
            calls::SETSOCKOPT => self.mirror(call),
            _ => Ok(Some(Reply::Continue)),
        }
    }

    fn socket(&mut self, call: &Notification) -> Outcome {
        let [domain, kind, protocol, ..] = call.arguments.map(|word| word as i32);
        let socket = Socket { domain, kind, protocol };
        let carries = self.interposition.rules.carries_of(socket);
        if socket.is_of_datagrams() && !carries {
            self.interposition.log_datagram_notice();
        }
        match self.interposition.rules.socket(socket) {
            Verdict::Refuse(errno) => {
                if errno == Errno::PERM {
                    self.interposition.report_refused(wire::Call::Socket, false, None, errno);
                }
                Err(errno)
            }
            _ if carries && !self.task(call)?.is_in_this_netns() => {
                self.interposition.report_refused(wire::Call::Socket, false, None, Errno::PERM);
                Err(Errno::PERM)
            }
            _ if carries => self.open_udp(call, socket.is_v6(), kind),
            _ => Ok(Some(Reply::Continue)),
        }
    }

    fn connect(&mut self, call: &Notification) -> Outcome {
        let [fd, at, size, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let (sockaddr, length) = self.sockaddr(call, at, size)?;
        if !is.is_of_ip() {
            self.refuse_daemons(call, is, (at, size))?;
            // A path is resolved in the program's mount namespace; such a socket does not leave
            // this host.
            return Ok(Some(Reply::Continue));
        }
        match self.interposition.rules.connect(is, &sockaddr[..length]) {
            Verdict::Pass => {
                self.probe(&socket, is, &sockaddr[..length])?;
                if parse_sockaddr(&sockaddr[..length]) == Sockaddr::None {
                    self.interposition.disconnected(cookie(&socket)?);
                }
                let outcome = self.connect_direct(call, &socket, &sockaddr[..length]);
                if let (Ok(_) | Err(Errno::INPROGRESS), Sockaddr::Ip(to)) =
                    (&outcome, parse_sockaddr(&sockaddr[..length]))
                    && !is.is_of_datagrams()
                {
                    self.interposition.count_direct(to);
                }
                outcome
            }
            Verdict::Refuse(errno) => Err(self.refuse(wire::Call::Connect, is, &sockaddr, errno)),
            Verdict::Resolve(server) => {
                let at = self.resolver(is, server)?;
                self.interposition.set_peer(cookie(&socket)?, server);
                self.connect_direct(call, &socket, &at)
            }
            Verdict::Divert(_) if self.interposition.offload.is_some() => {
                pace(&socket, self.interposition.offload)?;
                self.connect_direct(call, &socket, &sockaddr[..length])
            }
            Verdict::Divert(_) if !is_in_this_netns(&socket) => {
                // Sockets in the capture namespace are programs' listeners, and what they
                // accept. In any other namespace the rendezvous does not exist.
                if tcp::is_in_use(&socket) {
                    return Err(Errno::ISCONN);
                }
                Err(self.refuse(wire::Call::Connect, is, &sockaddr, Errno::PERM))
            }
            Verdict::Divert(to) => self.divert(call, socket, is, to),
        }
    }

    /// Turns a connect into a flow to `to`.
    fn divert(
        &mut self,
        call: &Notification,
        socket: OwnedFd,
        is: Socket,
        to: SocketAddr,
    ) -> Outcome {
        if !is_blocking(&socket).map_err(errno_of)? {
            return Ok(reply_now(self.interposition.begin(socket, to, None)));
        }
        let answer = self.deferred_answer(call, &socket, None);
        let ours = socket.try_clone().map_err(errno_of)?;
        match self.interposition.begin(socket, to, Some(answer.clone())) {
            None => {
                self.pending_connects.push_back((*call, answer));
                Ok(None)
            }
            // The connect in progress is not, or no longer, a flow of this run.
            Some(Errno::ALREADY) => {
                let at = self.interposition.rendezvous.at(to.is_ipv4()).ok_or(Errno::NETUNREACH)?;
                let (sockaddr, length) = is.sockaddr(at);
                self.complete(call, &ours, &sockaddr[..length])
            }
            now => Ok(reply_now(now)),
        }
    }

    /// Refuses connects to daemons that would act for the program around its chain.
    fn refuse_daemons(
        &mut self,
        call: &Notification,
        is: Socket,
        (at, size): Span,
    ) -> Result<(), Errno> {
        let (names, strict) =
            (self.interposition.remote_names.is_some(), self.interposition.rules.strict);
        if is.domain != i32::from(AddressFamily::UNIX.as_raw()) || !names && !strict {
            return Ok(());
        }
        let path = self.path(call, at, size)?;
        let base = PathBuf::from(format!("/proc/{}", call.thread));
        // The program falls back to DNS by datagrams.
        if names && daemons::is_daemon_socket(Kind::Resolver, &path, &base) {
            return Err(Errno::CONNREFUSED);
        }
        if strict && daemons::is_daemon_socket(Kind::Launcher, &path, &base) {
            self.interposition.report_refused_daemon(&path);
            return Err(Errno::CONNREFUSED);
        }
        Ok(())
    }

    /// Returns the address at which this process answers queries to `server`, in the form of the
    /// socket's family.
    fn resolver(&self, is: Socket, server: SocketAddr) -> Result<Vec<u8>, Errno> {
        let [v4, v6] =
            self.interposition.remote_names.as_ref().map(|of| of.at()).unwrap_or_default();
        let at = if server.is_ipv4() { v4 } else { v6 };
        let (bytes, length) = is.sockaddr(at.ok_or(Errno::NETUNREACH)?);
        Ok(bytes[..length].to_vec())
    }

    /// Connects as the program would have.
    fn connect_direct(&self, call: &Notification, socket: &OwnedFd, sockaddr: &[u8]) -> Outcome {
        match connect_for(socket, sockaddr).map_err(errno_of) {
            Ok(()) => Ok(Some(Reply::Returned(0))),
            // `EALREADY` means that the program repeats an interrupted connect.
            Err(Errno::INPROGRESS | Errno::ALREADY) if is_blocking(socket).map_err(errno_of)? => {
                self.complete(call, socket, sockaddr)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Handles a send with an address: datagrams, or one that opens a stream.
    fn send(
        &mut self,
        call: &Notification,
        fd: u64,
        flags: u64,
        (at, size): Span,
        payload: Payload,
    ) -> Outcome {
        if at == 0 {
            return Ok(Some(Reply::Continue));
        }
        let (sockaddr, size) = self.sockaddr(call, at, size)?;
        let (socket, is) = self.duplicate(call, fd)?;
        let (sockaddr, size) = is.as_sent(&sockaddr[..size]);
        let (data, length) = payload.first();
        match self.interposition.rules.send(is, flags as i32, &sockaddr[..size]) {
            Verdict::Pass if !self.is_sent_here(&socket, is) => Ok(Some(Reply::Continue)),
            Verdict::Pass if flags as i32 & MSG_FASTOPEN != 0 && !is.is_of_datagrams() => {
                // The kernel would read the address again. Under `--strict` the program has to
                // do without.
                let strict = self.interposition.rules.strict;
                if strict { Err(Errno::OPNOTSUPP) } else { Ok(Some(Reply::Continue)) }
            }
            Verdict::Pass => {
                let message = match payload {
                    Payload::Plain(data) => self.copy_plain(call, data)?,
                    Payload::Header(header) => self.copy(call, &header)?,
                };
                let messages = vec![Message { sockaddr: sockaddr[..size].to_vec(), ..message }];
                let sending = Sending { socket, flags: flags as i32, messages, lengths: None };
                self.send_all(call, sending)
            }
            Verdict::Refuse(errno) => Err(self.refuse(wire::Call::Send, is, &sockaddr, errno)),
            Verdict::Resolve(server) => {
                let at = self.resolver(is, server)?;
                let mut bytes = vec![0; MAX_QUERY.min(length as usize)];
                let task = self.task(call)?;
                let read = self.listener.read(call, &task, data, &mut bytes).map_err(errno_of)?;
                send_query(&socket, &bytes[..read], &at).map(|sent| Some(Reply::Returned(sent)))
            }
            Verdict::Divert(_) if self.interposition.offload.is_some() => {
                pace(&socket, self.interposition.offload)?;
                Ok(Some(Reply::Continue))
            }
            Verdict::Divert(_) if !is_in_this_netns(&socket) => {
                Err(self.refuse(wire::Call::Send, is, &sockaddr, Errno::PERM))
            }
            Verdict::Divert(to) => {
                let mut bytes = vec![0; MAX_FAST_OPEN.min(length as usize)];
                let task = self.task(call)?;
                let read = self.listener.read(call, &task, data, &mut bytes).map_err(errno_of)?;
                bytes.truncate(read);
                // Without a cookie, a non-blocking connect with Fast Open takes no data either.
                let waits = is_blocking(&socket).map_err(errno_of)?;
                let answer = waits.then(|| self.deferred_answer(call, &socket, Some(bytes)));
                Ok(reply_now(self.interposition.begin(socket, to, answer)))
            }
        }
    }

    /// Handles `sendmmsg`. Each datagram is judged; for Fast Open it is refused, as kernels may
    /// refuse it.
    fn send_many(&mut self, call: &Notification) -> Outcome {
        let [fd, headers, count, flags, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let here = self.is_sent_here(&socket, is);
        let (mut messages, mut lengths, mut bytes) = (Vec::new(), Vec::new(), 0);
        for n in 0..count.min(1024) {
            // A `struct mmsghdr` is a header and a length.
            let at = headers + n * (MSGHDR as u64 + 8);
            let header = self.message(call, at)?;
            let (name, mut to) = (header.name, Vec::new());
            if name.0 != 0 {
                let (sockaddr, size) = self.sockaddr(call, name.0, name.1)?;
                let (sockaddr, size) = is.as_sent(&sockaddr[..size]);
                to.extend(&sockaddr[..size]);
            }
            if here && bytes < MAX_BYTES {
                let message = self.copy(call, &header)?;
                bytes += message.data.len();
                messages.push(Message { sockaddr: to.clone(), ..message });
                lengths.push(at + MSGHDR as u64);
            }
            if name.0 == 0 {
                continue;
            }
            let sockaddr = &to;
            match self.interposition.rules.send(is, flags as i32, sockaddr) {
                Verdict::Pass => {}
                Verdict::Divert(_) | Verdict::Resolve(_) => return Err(Errno::OPNOTSUPP),
                Verdict::Refuse(errno) => {
                    return Err(self.refuse(wire::Call::Send, is, sockaddr, errno));
                }
            }
        }
        if messages.is_empty() {
            return Ok(Some(Reply::Continue));
        }
        let lengths = Some(lengths);
        self.send_all(call, Sending { socket, flags: flags as i32, messages, lengths })
    }

    /// Returns whether direct sends of this socket are made here. Sockets in the capture
    /// namespace reach nothing else, and those that are not of IP do not leave this host.
    fn is_sent_here(&self, socket: &OwnedFd, is: Socket) -> bool {
        is.is_of_ip() && is_in_this_netns(socket)
    }

    /// Returns an answer for a call on `socket` that is given when its flow is decided; `data`
    /// is sent on it then.
    fn deferred_answer(
        &self,
        call: &Notification,
        socket: &OwnedFd,
        data: Option<Vec<u8>>,
    ) -> Answer {
        let (listener, call) = (self.listener.clone(), *call);
        Answer::new(send_timeout(socket), move |decided| {
            let reply = match (decided, data) {
                (Err(errno), _) => Reply::Failed(errno.0),
                (Ok(_), None) => Reply::Returned(0),
                (Ok(socket), Some(data)) => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    match rustix::net::send(&socket, &data, flags) {
                        Ok(sent) => Reply::Returned(sent as i64),
                        Err(errno) => Reply::Failed(errno.raw_os_error()),
                    }
                }
            };
            send_reply(&listener, &call, reply);
        })
    }

    fn refuse(&self, call: wire::Call, is: Socket, sockaddr: &[u8], errno: Errno) -> Errno {
        let to = match parse_sockaddr(sockaddr) {
            Sockaddr::Ip(to) => Some(to),
            _ => None,
        };
        self.interposition.report_refused(call, is.is_of_datagrams(), to, errno);
        errno
    }
}

/// Limits the socket to `rate` bytes a second; 0 sets no limit.
fn pace(socket: &OwnedFd, rate: Option<u64>) -> Result<(), Errno> {
    match rate {
        None | Some(0) => Ok(()),
        Some(rate) => tcp::pace(socket, rate).map_err(errno_of),
    }
}

/// Time limit that a program has set for its calls on a socket (`SO_SNDTIMEO`).
pub(super) fn send_timeout(socket: &OwnedFd) -> Option<Duration> {
    sockopt::socket_timeout(socket, Timeout::Send).ok().flatten()
}

fn cookie(socket: &OwnedFd) -> Result<u64, Errno> {
    sockopt::socket_cookie(socket).map_err(|errno| Errno(errno.raw_os_error()))
}

/// Sends a query for the program. Returns the number of bytes to report as sent.
fn send_query(socket: &OwnedFd, query: &[u8], at: &[u8]) -> Result<i64, Errno> {
    let Sockaddr::Ip(to) = parse_sockaddr(at) else { return Err(Errno::NETUNREACH) };
    let to = match to {
        SocketAddr::V4(v4) if sockopt::socket_domain(socket) == Ok(AddressFamily::INET6) => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
        }
        to => to,
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendto(socket, query, flags, &to) {
        Ok(sent) => Ok(sent as i64),
        Err(errno) => Err(Errno(errno.raw_os_error())),
    }
}

fn reply_now(now: Option<Errno>) -> Option<Reply> {
    now.map(|errno| match errno {
        Errno::NONE => Reply::Returned(0),
        errno => Reply::Failed(errno.0),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn errno_of(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(Errno::PERM.0))
}

fn send_reply(listener: &Listener, call: &Notification, reply: Reply) {
    if let Err(error) = listener.reply(call, reply) {
        debug!("answer a call: {error}");
    }
}
