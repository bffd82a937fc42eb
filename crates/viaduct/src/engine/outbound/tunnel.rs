//! Outbound through a tunnel, as one of its streams.

use std::io;

use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;

use super::{OpenRequest, Opened, Outbound};
use crate::engine::conn::Conn;
use crate::tunnel::Outlet;

impl Outbound for Outlet {
    fn open(&self, request: &OpenRequest, _: Instant) -> io::Result<Opened> {
        let stream = self.open(request.to.clone(), request.source);
        Ok(Conn::Tunnel(stream.ok_or(io::ErrorKind::HostUnreachable)?).into())
    }

    fn can_splice(&self) -> bool {
        false
    }

    fn is_known_to_fail(&self, _: &Address, now: Instant) -> bool {
        self.is_bypassed(now)
    }
}
