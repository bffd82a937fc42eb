//! To a hop, which is sent the flow's addresses.

use std::io;

use viaduct_proto::split::option::Hop;
use viaduct_proto::split::proxy;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::SynContent;

use super::direct::connect;
use super::{OpenRequest, Opened, Outbound};
use crate::engine::hop_signalling::{HopSignaller, HopSignalling};

impl Outbound for HopSignaller {
    fn open(&self, request: &OpenRequest, _: Instant) -> io::Result<Opened> {
        if matches!(self.form, None | Some(HopSignalling::Option))
            && let Some(opened) = self.open_by_option(request)
        {
            return opened;
        }
        let mut header = request.signalled.as_ref().map(proxy::emit).unwrap_or_default();
        let content = match self.form {
            Some(HopSignalling::Proxy) => SynContent::Nothing,
            None | Some(HopSignalling::Option | HopSignalling::ProxyTfo) => {
                SynContent::Data(&header)
            }
        };
        let (conn, sent) = connect(request, content)?;
        header.drain(..sent);
        Ok(Opened { conn, preface_out: header })
    }
}

impl HopSignaller {
    /// Begins a connection with an option in its SYN; `None` if there are no addresses that fit
    /// into it, or it cannot be written.
    pub(super) fn open_by_option(&self, request: &OpenRequest) -> Option<io::Result<Opened>> {
        let option = Hop::of(request.signalled.as_ref()?)?.emit();
        let content = SynContent::Option(self.program()?, &option);
        Some(connect(request, content).map(|(conn, _)| conn.into()))
    }
}
