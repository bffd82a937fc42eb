//! Connects of programs: the SYN is dropped at the rendezvous, and the connect completes or fails
//! when the far end has answered.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::Failure;
use viaduct_proto::wire::refusal::RejectedSyn;
use viaduct_proto::wrap::Errno;
use viaduct_sys::bpf::{SocketNames, WaitingConnect};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::route::interface;
use viaduct_sys::socket::rendezvous::Rendezvous;
use viaduct_sys::socket::tcp;

use super::pending::PendingHandle;
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::PendingConnect;

/// State shared by all redirected connects.
#[derive(Debug)]
pub(super) struct ConnectContext {
    pub(super) rendezvous: Rendezvous,
    pub(super) names: SocketNames,
    pub(super) raw: RawSockets,
}

/// A connect whose SYN was dropped at the rendezvous.
#[derive(Debug)]
pub(super) struct RedirectedConnect {
    pub(super) waiting: WaitingConnect,
    pub(super) context: Arc<ConnectContext>,
    /// Until it is dropped, retransmissions of the SYN are ignored.
    pub(super) pending: PendingHandle,
}

/// Sets the scope of a link-local address without a scope, if only one interface has link-local
/// addresses. If the program has bound its socket to an interface, the address already has a scope.
/// The BPF program does not see a scope in the argument of `connect`.
pub(super) fn with_link_scope(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V6(mut at) if at.ip().is_unicast_link_local() && at.scope_id() == 0 => {
            at.set_scope_id(interface::only_link().unwrap_or(0));
            at.into()
        }
        to => to,
    }
}

impl PendingConnect for RedirectedConnect {
    fn socket_id(&self) -> Option<SocketId> {
        Some(SocketId::Cookie(self.waiting.cookie))
    }

    fn has_gone(&self) -> bool {
        self.pending.is_superseded()
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        if !self.pending.is_superseded() {
            self.context.names.set_own(self.waiting.cookie, own);
        }
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.context.rendezvous.bound_socket(self.waiting.program.is_ipv4()).map(FlowSocket::from)
    }

    fn complete(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        if self.pending.is_superseded() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        tcp::connect_bound(bound_socket, self.waiting.program)
    }

    fn refuse(&mut self, why: Failure) {
        self.refuse_as(why, 0);
    }

    fn refuse_as(&mut self, why: Failure, errno: i32) {
        let WaitingConnect { program, syn, .. } = self.waiting;
        let Some(to) = self.context.rendezvous.at(program.is_ipv4()) else { return };
        let asked = RejectedSyn { from: program, to, number: syn };
        let packet = match why {
            _ if errno == Errno::NETUNREACH.0 => asked.without_route(),
            // No ICMPv4 message makes the kernel return `EACCES`.
            _ if errno == Errno::ACCES.0 && program.is_ipv6() => asked.prohibited(),
            // The program's SYNs are dropped until the kernel fails the connect with `ETIMEDOUT`.
            Failure::TimedOut => return,
            // No ICMP message corresponds to `Full`.
            Failure::Unreachable | Failure::Full => asked.unreachable(),
            Failure::Refused | Failure::Reset | Failure::Denied => asked.refused(),
        };
        if let Err(error) = self.context.raw.send(&packet, program.ip()) {
            debug!("cannot refuse a connect: {error}");
        }
    }
}
