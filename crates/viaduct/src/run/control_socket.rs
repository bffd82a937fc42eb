//! Server of the control sockets: processes of this run send each request on a new connection, as
//! one record.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, warn};
use viaduct_sys::socket::seqpacket;

use super::admission::admits;

/// Maximum number of connections on which no request has arrived; the oldest are closed first.
const MAX_PENDING: usize = 4096;
/// Maximum number of connections accepted before requests are answered again. Any local user can
/// connect, without end.
const MAX_ACCEPTS: usize = 64;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Passes connections at `listener` to `answer` until the process ends. `answer` returns the socket
/// if no request has arrived on the connection yet.
pub fn serve(listener: &OwnedFd, mut answer: impl FnMut(OwnedFd) -> Option<OwnedFd>) {
    let mut pending: VecDeque<OwnedFd> = VecDeque::new();
    loop {
        for _ in 0..MAX_ACCEPTS {
            match seqpacket::accept(listener) {
                Ok((socket, peer)) if admits(peer) => pending.push_back(socket),
                // The peer is not a process of this run: the connection is closed without an
                // answer.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    debug!("cannot accept a program's request: {error}");
                    thread::sleep(ACCEPT_RETRY_DELAY);
                    break;
                }
            }
        }
        pending = pending.into_iter().filter_map(&mut answer).collect();
        pending.drain(..pending.len().saturating_sub(MAX_PENDING));
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(pending.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        if let Err(error) = poll(&mut fds, None)
            && error != rustix::io::Errno::INTR
        {
            return warn!("requests of programs are no longer handled: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::event::Timespec;

    use super::*;

    #[test]
    fn requests_are_answered_while_further_connections_wait() {
        let name = format!("@viaduct-test-{}", std::process::id());
        let listener = seqpacket::listen(&name).unwrap();
        let connect = |_| seqpacket::connect(&name).unwrap();
        let clients: Vec<OwnedFd> = (0..=MAX_ACCEPTS).map(connect).collect();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            serve(&listener, |_| {
                let mut fds = [PollFd::new(&listener, PollFlags::IN)];
                let _ = tell.send(poll(&mut fds, Some(&Timespec::default())).unwrap());
                None
            });
        });
        let waiting: Vec<usize> =
            clients.iter().map(|_| told.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        assert_eq!((waiting[0], waiting[MAX_ACCEPTS]), (1, 0));
    }
}
