//! Outbound directly to the server, over the kernel's TCP.

use std::io;
use std::sync::Arc;

use mio::net::TcpStream;
use tracing::warn;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, LongHaul, SynContent};

use super::{HopSignaller, OpenRequest, Opened, Outbound};
use crate::engine::conn::Conn;

/// Outbound over the kernel's TCP.
#[derive(Debug)]
pub(super) struct Direct(pub(super) Arc<HopSignaller>);

impl Outbound for Direct {
    /// Begins a connection whose SYN carries the option of the client's SYN, if there was one, for
    /// a later hop. That hop expects an option, even if another form is configured here.
    fn open(&self, request: &OpenRequest, _: Instant) -> io::Result<Opened> {
        match self.0.open_by_option(request) {
            Some(opened) => opened,
            None => connect(request, SynContent::Nothing).map(|(conn, _)| conn.into()),
        }
    }
}

/// Begins a connection whose SYN carries `content`. Also returns the number of bytes of `content`
/// that the SYN carries.
pub(in crate::engine) fn connect(
    request: &OpenRequest,
    content: SynContent<'_>,
) -> io::Result<(Conn, usize)> {
    let OpenRequest { from, options, haul, .. } = request;
    let (stream, sent) = tcp::connect_with(request.ip()?, *from, *options, content)?;
    let stream = TcpStream::from_std(stream);
    set_up(&stream, haul.as_ref());
    Ok((Conn::Tcp(stream.into()), sent))
}

/// Applies the long-haul settings to a connection that crosses the long link.
pub(in crate::engine) fn set_up(stream: &TcpStream, haul: Option<&LongHaul>) {
    if let Some(Err(error)) = haul.map(|haul| haul.apply(stream)) {
        warn!("cannot set up a connection across the long link: {error}");
    }
}
