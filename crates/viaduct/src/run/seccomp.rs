//! `--via seccomp`, the interposer that needs no privilege: seccomp reports the program's calls.
//!
//! The supervisor thread receives calls, and never blocks: a blocking connect is answered later, by
//! the worker (the thread of the chains), when the far end has answered. The supervisor itself
//! makes direct calls for the program, on a duplicate of the socket and with the copy of the
//! address that was checked: if the kernel read the address, the program could have changed it
//! after the check.
//!
//! | part | calls |
//! |---|---|
//! | here | `socket`; dispatch and replies |
//! | `addresses` | reads of a socket's addresses and of its error |
//! | `arguments` | arguments of calls: memory and descriptors of the program |
//! | `blocking` | direct connects and sends that block |
//! | `connects` | `connect` |
//! | `datagrams` | calls on UDP sockets whose datagrams are carried in user space |
//! | `direct_sends` | direct sends of datagrams |
//! | `listeners` | `bind`, `listen` and `accept` of listening programs |
//! | `options` | `setsockopt` and `getsockopt` of options mirrored to the far connection |
//! | `sends` | sends with an address |
//! | `signals` | signals that arrive while a connect is pending |

mod addresses;
mod arguments;
mod blocking;
mod connects;
mod datagrams;
mod direct_sends;
mod listeners;
mod options;
mod sends;
mod signals;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::Timeout;
use rustix::net::{SendFlags, sockopt};
use tracing::{debug, warn};
use viaduct_proto::wrap::{Datagrams, Errno, Sockaddr, Socket, Verdict, parse_sockaddr, wire};
use viaduct_sys::seccomp::epoll_watches::EpollCount;
use viaduct_sys::seccomp::{Listener, Notification, Reply, SeccompError, Task, Traps, calls};

use self::options::is_mirrored;
use self::sends::Payload;
use super::pending::{Answer, Interposition};

const SO_ERROR: i32 = 4;
/// Interval between checks for signals to threads in a pending connect.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Starts `command`, and a thread that handles the calls of its processes until the last process
/// has ended. The preloaded library puts `word` into an unused argument of the calls that it has
/// handled; these are not reported, except those named in [`Traps`].
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
    /// Threads that have made calls, by thread ID. Only exact tasks ([`Task::is_exact`]), so that
    /// operations on an entry fail if its ID is reused.
    tasks: HashMap<u32, Arc<Task>>,
    /// Blocking connects that are not answered yet.
    pending_connects: VecDeque<(Notification, Answer)>,
    /// Time of the last check for signals to the threads of `pending_connects`.
    last_check: Instant,
    /// Number of epoll instances that programs have created.
    made: EpollCount,
}

/// Outcome of a call: an immediate reply, or `None` if the call is answered later.
type Outcome = Result<Option<Reply>, Errno>;
/// Outcome: the kernel executes the call.
const CONTINUE: Outcome = Ok(Some(Reply::Continue));
/// Outcome: the call has succeeded, and returns 0.
const DONE: Outcome = Ok(Some(Reply::Returned(0)));

impl Supervisor {
    fn new(listener: Listener, interposition: Arc<Interposition>) -> Supervisor {
        Supervisor {
            listener: Arc::new(listener),
            interposition,
            tasks: HashMap::new(),
            pending_connects: VecDeque::new(),
            last_check: Instant::now(),
            made: EpollCount::default(),
        }
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
                    // The caller may have ended.
                    Err(error) => debug!("cannot receive a call: {error}"),
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
            nr if calls::EPOLL_CREATE.contains(&nr) => {
                self.made.increment();
                CONTINUE
            }
            calls::SETSOCKOPT => self.mirror(call),
            _ => CONTINUE,
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
            _ => CONTINUE,
        }
    }

    /// Returns an answer for `call` on `socket`, to be given when the connect has succeeded or
    /// failed. After a success, `data`, if any, is sent on the socket before the answer.
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

/// Time limit that a program has set for sends and connects on a socket (`SO_SNDTIMEO`).
pub(super) fn send_timeout(socket: &OwnedFd) -> Option<Duration> {
    sockopt::socket_timeout(socket, Timeout::Send).ok().flatten()
}

fn cookie(socket: &OwnedFd) -> Result<u64, Errno> {
    sockopt::socket_cookie(socket).map_err(|errno| Errno(errno.raw_os_error()))
}

fn reply_now(now: Option<Errno>) -> Option<Reply> {
    now.map(|errno| match errno {
        Errno::NONE => Reply::Returned(0),
        errno => Reply::Failed(errno.0),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "it is used in map_err")]
fn errno_of(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(Errno::PERM.0))
}

fn send_reply(listener: &Listener, call: &Notification, reply: Reply) {
    if let Err(error) = listener.reply(call, reply) {
        debug!("cannot answer a call: {error}");
    }
}
