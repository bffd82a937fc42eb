//! Programs that listen: the socket becomes a public listener, and the program gets another in
//! the capture namespace ([`crate::run::fronts`]).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::net::sockopt;
use tracing::debug;
use viaduct_proto::wrap::{Errno, Sockaddr, Socket, Verdict, parse_bound, wire};
use viaduct_sys::seccomp::epoll_watches::{self, EpollCount};
use viaduct_sys::seccomp::{Listener, Notification, Reply, Task};

use super::{Outcome, Supervisor, number, say};
use crate::run::fronts::{Fronts, Listens};

impl Supervisor {
    /// Handles `bind`: frees the port if no program listens there any more.
    pub(super) fn bind(&mut self, call: &Notification) -> Outcome {
        let [_, at, size, ..] = call.arguments;
        if let Some(fronts) = self.common.fronts.clone()
            && !fronts.is_empty()
            && let Ok((address, length)) = self.sockaddr(call, at, size)
            && let Sockaddr::Ip(at) = parse_bound(&address[..length])
        {
            fronts.release(at.port());
        }
        self.bind_carried(call)
    }

    /// Handles `listen`. In a thread if the capture namespace is to be opened, which takes a
    /// moment.
    pub(super) fn listen(&mut self, call: &Notification) -> Outcome {
        let backlog = call.arguments[1] as i32;
        let Some(fronts) = self.common.fronts.clone() else { return Ok(Some(Reply::Continue)) };
        let (socket, is) = self.duplicate(call, call.arguments[0])?;
        if !is.is_of_ip() {
            return Ok(Some(Reply::Continue));
        }
        let at = rustix::net::getsockname(&socket).map_err(io::Error::from);
        let at = at.and_then(|at| Ok(at.try_into()?)).map_err(number)?;
        match self.common.rules.listen(is, at) {
            Verdict::Pass | Verdict::Resolve(_) => return Ok(Some(Reply::Continue)),
            Verdict::Refuse(errno) => return Err(errno),
            Verdict::Divert(_) => {}
        }
        let task = self.task(call)?;
        let (listener, common, call) = (self.listener.clone(), self.common.clone(), *call);
        let (made, has_hall) = (self.made, fronts.has_hall());
        let listen = move || {
            let reply = match fronts.open_hall() {
                Ok(_) => match fronts.listen(socket, is, backlog) {
                    Ok(Listens::Already) => Reply::Continue,
                    Ok(Listens::Behind(behind, front)) => {
                        match put(&listener, (&task, made), &call, [&front, &behind]) {
                            Ok(()) => Reply::Returned(0),
                            Err(error) => Reply::Failed(number(error).0),
                        }
                    }
                    Err(error) => Reply::Failed(number(error).0),
                },
                Err(why) if common.rules.strict => {
                    common.cannot_listen(&format!("it may not (--strict): {why:#}"));
                    common.refused(wire::Call::Listen, false, Some(at), Errno::PERM);
                    Reply::Failed(Errno::PERM.0)
                }
                Err(why) => {
                    common.cannot_listen(&format!("clients go around the chain: {why:#}"));
                    Reply::Continue
                }
            };
            say(&listener, &call, reply);
        };
        if has_hall {
            listen();
            return Ok(None);
        }
        let begun = thread::Builder::new().name("listen".to_owned()).spawn(listen);
        begun.map(|_| None).map_err(number)
    }

    /// Handles `accept`: a socket that was duplicated before it listened would get no connection.
    pub(super) fn accept(&mut self, call: &Notification) -> Outcome {
        let fronts = self.common.fronts.clone().filter(|fronts| !fronts.is_empty());
        let Some(fronts) = fronts else { return Ok(Some(Reply::Continue)) };
        let (socket, is) = self.duplicate(call, call.arguments[0])?;
        if let Err(error) = self.put_behind(call, &fronts, &socket, is) {
            debug!("a socket that listens: {error}");
            return Err(number(error));
        }
        Ok(Some(Reply::Continue))
    }

    fn put_behind(
        &mut self,
        call: &Notification,
        fronts: &Arc<Fronts>,
        socket: &OwnedFd,
        is: Socket,
    ) -> io::Result<()> {
        let Ok(cookie) = sockopt::socket_cookie(socket) else { return Ok(()) };
        if let Some(Listens::Behind(behind, front)) = fronts.accept(cookie, is)? {
            let task = self.task(call).map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
            put(&self.listener, (&task, self.made), call, [&front, &behind])?;
        }
        Ok(())
    }
}

/// Replaces a public listener in the program by the listener behind it, in its epoll sets too.
fn put(
    listener: &Listener,
    (task, made): (&Task, EpollCount),
    call: &Notification,
    [front, behind]: [&OwnedFd; 2],
) -> io::Result<()> {
    let fd = call.arguments[0] as i32;
    let cloexec = task.closes_on_exec(fd)?;
    listener.check_waits(call)?;
    epoll_watches::move_watches((task, call.thread), made, fd, [front.as_fd(), behind.as_fd()])?;
    listener.put(call, behind.as_fd(), fd, cloexec)
}
