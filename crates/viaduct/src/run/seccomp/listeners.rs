//! Listening programs: the program's socket becomes a public listener, and the program gets another
//! socket, in the capture namespace ([`crate::run::public_listeners`]).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::net::sockopt;
use tracing::debug;
use viaduct_proto::wrap::{Errno, Sockaddr, Socket, Verdict, parse_bound, wire};
use viaduct_sys::seccomp::epoll_watches::{self, EpollCount};
use viaduct_sys::seccomp::{Listener, Notification, Reply, Task};

use super::{CONTINUE, Outcome, Supervisor, errno_of, send_reply};
use crate::run::public_listeners::{ListenOutcome, PublicListeners};

impl Supervisor {
    /// Returns the public listeners if there are any.
    pub(super) fn listeners_in_use(&self) -> Option<Arc<PublicListeners>> {
        let public_listeners = self.interposition.public_listeners.clone();
        public_listeners.filter(|public_listeners| !public_listeners.is_empty())
    }

    /// Handles `bind`: frees the port if no program listens at it any more.
    pub(super) fn bind(&mut self, call: &Notification) -> Outcome {
        let [_, at, size, ..] = call.arguments;
        if let Some(public_listeners) = self.listeners_in_use()
            && let Ok((address, length)) = self.sockaddr(call, at, size)
            && let Sockaddr::Ip(at) = parse_bound(&address[..length])
        {
            public_listeners.sweep(Some(at.port()));
        }
        self.bind_carried(call)
    }

    /// Handles `listen`, in a separate thread if the capture namespace must be opened first, which
    /// would block the supervisor.
    pub(super) fn listen(&mut self, call: &Notification) -> Outcome {
        let backlog = call.arguments[1] as i32;
        let Some(public_listeners) = self.interposition.public_listeners.clone() else {
            return CONTINUE;
        };
        let (socket, is) = self.duplicate(call, call.arguments[0])?;
        if !is.is_of_ip() {
            return CONTINUE;
        }
        let at = rustix::net::getsockname(&socket).map_err(io::Error::from);
        let at = at.and_then(|at| Ok(at.try_into()?)).map_err(errno_of)?;
        match self.interposition.rules.listen(is, at) {
            Verdict::Pass | Verdict::Resolve(_) => return CONTINUE,
            Verdict::Refuse(errno) => return Err(errno),
            Verdict::Divert(_) => {}
        }
        let task = self.task(call)?;
        let (listener, interposition, call) =
            (self.listener.clone(), self.interposition.clone(), *call);
        let (made, has_ns) = (self.made, public_listeners.has_ns());
        let listen = move || {
            let reply = match public_listeners.open_ns() {
                Ok(_) => match public_listeners.listen(socket, is, backlog) {
                    Ok(ListenOutcome::Unchanged) => Reply::Continue,
                    Ok(ListenOutcome::Replace(inner, public)) => {
                        match replace_in_program(&listener, (&task, made), &call, [&public, &inner])
                        {
                            Ok(()) => Reply::Returned(0),
                            Err(error) => Reply::Failed(errno_of(error).0),
                        }
                    }
                    Err(error) => Reply::Failed(errno_of(error).0),
                },
                Err(why) if interposition.rules.strict => {
                    interposition.warn_cannot_listen(&format!("refused (--strict): {why:#}"));
                    interposition.report_refused(wire::Call::Listen, false, Some(at), Errno::PERM);
                    Reply::Failed(Errno::PERM.0)
                }
                Err(why) => {
                    interposition
                        .warn_cannot_listen(&format!("its clients bypass the chain: {why:#}"));
                    Reply::Continue
                }
            };
            send_reply(&listener, &call, reply);
        };
        if has_ns {
            listen();
            return Ok(None);
        }
        let spawned = thread::Builder::new().name("listen".to_owned()).spawn(listen);
        spawned.map(|_| None).map_err(errno_of)
    }

    /// Handles `accept`: replaces a socket that was duplicated before the call of `listen`, because
    /// the program would get no connections from that socket.
    pub(super) fn accept(&mut self, call: &Notification) -> Outcome {
        let Some(public_listeners) = self.listeners_in_use() else { return CONTINUE };
        let (socket, is) = self.duplicate(call, call.arguments[0])?;
        if let Err(error) = self.replace_listener(call, &public_listeners, &socket, is) {
            debug!("cannot replace a program's listener: {error}");
            return Err(errno_of(error));
        }
        CONTINUE
    }

    fn replace_listener(
        &mut self,
        call: &Notification,
        public_listeners: &Arc<PublicListeners>,
        socket: &OwnedFd,
        is: Socket,
    ) -> io::Result<()> {
        let Ok(cookie) = sockopt::socket_cookie(socket) else { return Ok(()) };
        if let Some(ListenOutcome::Replace(inner, public)) = public_listeners.accept(cookie, is)? {
            let task = self.task(call).map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
            replace_in_program(&self.listener, (&task, self.made), call, [&public, &inner])?;
        }
        Ok(())
    }
}

/// Replaces a public listener with its inner listener, in the program's descriptor table and epoll
/// sets.
fn replace_in_program(
    listener: &Listener,
    (task, made): (&Task, EpollCount),
    call: &Notification,
    [public, inner]: [&OwnedFd; 2],
) -> io::Result<()> {
    let fd = call.arguments[0] as i32;
    let cloexec = task.closes_on_exec(fd)?;
    listener.check_waits(call)?;
    epoll_watches::move_watches((task, call.thread), made, fd, [public.as_fd(), inner.as_fd()])?;
    listener.put(call, inner.as_fd(), fd, cloexec)
}
