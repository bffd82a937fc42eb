//! Accept loop of public listeners, which accepts while their inner listeners have room.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;
use tracing::{debug, warn};
use viaduct_sys::netns::capture_ns::{self, Purpose};
use viaduct_sys::socket::tcp;

use super::{CLOSED, OpenNs, PublicListeners, WOKEN};
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Program};
use crate::run::capture_ns::CaptureNs;
use crate::run::report::ReportedProgram;

/// Interval between checks that programs still listen: the kernel does not report an inner listener
/// that is shut down but not closed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of connections accepted from one public listener before other listeners are
/// served.
const MAX_ACCEPTS: usize = 64;
/// Minimum and maximum interval between checks whether a full listener has room again. Each check
/// doubles the interval.
const ROOM_CHECK_INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// Connection to a program, from a socket in the capture namespace with the client's address.
#[derive(Debug)]
struct CapturedProgram {
    netns: Arc<CaptureNs>,
    client: SocketAddr,
    bound_socket: Option<TcpStream>,
    own: SocketAddr,
    /// Reference that counts this connection against the room in the backlog.
    backlog_slot: Option<Arc<()>>,
}

/// An accepted connection, its client's address, and its share of the backlog.
type Accepted = (TcpStream, SocketAddr, Arc<()>);

impl PublicListeners {
    /// Accepts connections to programs until the process ends.
    pub(super) fn accept_loop(&self) {
        let (mut last_check, mut events) = (Instant::now(), Vec::with_capacity(64));
        let [soonest, latest] = ROOM_CHECK_INTERVALS;
        let mut pause = soonest;
        loop {
            events.clear();
            let (is_empty, is_full) = {
                let list = self.list();
                (list.public_listeners.is_empty(), !list.full.is_empty())
            };
            let limit = if is_full { pause } else { CHECK_INTERVAL };
            let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
            let limit = (!is_empty).then_some(&limit);
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), limit)
                && error != Errno::INTR
            {
                return warn!("connections to programs are no longer accepted: {error}");
            }
            // Closed listeners are removed before any connection is accepted for them.
            if events.iter().any(|event| event.data.u64() == CLOSED) {
                self.handle_closed();
            }
            for event in &events {
                match event.data.u64() {
                    CLOSED => {}
                    WOKEN => drop(rustix::io::read(&self.wake, &mut [0; 8])),
                    cookie => self.accept_pending(cookie),
                }
            }
            if is_full {
                let has_drained = self.has_drained.swap(false, Ordering::AcqRel);
                pause = if has_drained { soonest } else { (2 * pause).min(latest) };
                let full = std::mem::take(&mut self.list().full);
                full.into_iter().for_each(|cookie| self.accept_pending(cookie));
            } else {
                pause = soonest;
            }
            if last_check.elapsed() >= CHECK_INTERVAL {
                self.sweep(None);
                last_check = Instant::now();
            }
        }
    }

    fn accept_pending(&self, cookie: u64) {
        let (accepted, error) = self.accept_from(cookie);
        for (stream, client, backlog_slot) in accepted {
            if let Err(error) = self.hand_over(stream, client, backlog_slot) {
                debug!("cannot hand over a connection to a program: {error}");
            }
        }
        if let Some(error) = error {
            debug!("cannot accept a connection to a program: {error}");
            // This process may be out of descriptors, so an immediate retry would spin.
            thread::sleep(ACCEPT_RETRY_DELAY);
        }
    }

    /// Accepts connections of a public listener. Returns the connections, and the error that ended
    /// the loop, if any. A public listener whose inner listeners are full is not polled until they
    /// have room again.
    fn accept_from(&self, cookie: u64) -> (Vec<Accepted>, Option<io::Error>) {
        let mut accepted = Vec::new();
        let Some(OpenNs { listeners, .. }) = self.ns() else { return (accepted, None) };
        let mut list = self.list();
        let Some(public) = list.public_listeners.get_mut(&cookie) else { return (accepted, None) };
        let mut error = None;
        let is_full = loop {
            if accepted.len() == MAX_ACCEPTS {
                break false;
            }
            if public.room == 0 {
                public.update_room(&listeners);
            }
            if public.room == 0 {
                break true;
            }
            match public.listener.accept() {
                Ok((stream, client)) => {
                    public.room -= 1;
                    accepted.push((stream, client, public.backlog_slot.clone()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                // The listener is polled again, even if it was full until now.
                Err(failed) => {
                    error = Some(failed);
                    break false;
                }
            }
        };
        let wanted = if is_full { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(cookie);
        if public.is_full != is_full {
            public.is_full = is_full;
            if let Err(error) = epoll::modify(&self.epoll, &public.listener, data, wanted) {
                return (accepted, Some(error.into()));
            }
        }
        if is_full {
            list.full.push(cookie);
        }
        (accepted, error)
    }

    fn hand_over(
        &self,
        stream: TcpStream,
        client: SocketAddr,
        backlog_slot: Arc<()>,
    ) -> io::Result<()> {
        // The client is reset if one of the next steps fails.
        tcp::reset_on_close(&stream)?;
        let own = canonical(stream.local_addr()?);
        let client = canonical(client);
        let netns = self.ns().ok_or(io::ErrorKind::NotConnected)?.netns;
        let bound_socket = Some(netns.socket(Purpose::BoundSocket, client)?.into());
        stream.set_nonblocking(true)?;
        sockopt::set_socket_oobinline(&stream, true)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        tcp::fin_on_close(&stream)?;
        let here = capture_ns::to_family(netns.with_ns_scope(own), own.is_ipv6());
        let program = Box::new(CapturedProgram {
            netns,
            client,
            bound_socket,
            own: here,
            backlog_slot: Some(backlog_slot),
        });
        let program = ReportedProgram::of(program, own, self.report.as_ref());
        let stream = stream.into();
        self.carrier.arrive(Arrival { stream, client, own, handlers: None, program });
        Ok(())
    }
}

/// Maps IPv4-mapped addresses to IPv4; other addresses keep their scope.
pub(in crate::run) fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        ip @ std::net::IpAddr::V4(_) => SocketAddr::new(ip, at.port()),
        std::net::IpAddr::V6(_) => at,
    }
}

impl Program for CapturedProgram {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        match self.bound_socket.take() {
            Some(bound_socket) => Ok(bound_socket.into()),
            None => {
                Ok(TcpStream::from(self.netns.socket(Purpose::BoundSocket, self.client)?).into())
            }
        }
    }

    /// Returns the program for another flow from the client's address, at a port of its own: only
    /// one flow can use the client's port.
    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let client = SocketAddr::new(self.client.ip(), 0);
        let (netns, bound_socket, backlog_slot) = (self.netns.clone(), None, None);
        Some(Box::new(CapturedProgram { netns, client, bound_socket, own: self.own, backlog_slot }))
    }

    fn handlers_wait(&mut self) {
        self.backlog_slot = None;
    }

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        tcp::connect_bound(bound_socket, self.own)
    }
}
