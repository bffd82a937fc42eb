//! Sockets for packets in TCP's format, and the rule that hides these packets from the kernel's
//! TCP.

use std::path::Path;

use viaduct_sys::capture::filter::OptionFilter;
use viaduct_sys::capture::option_tap::OptionTap;
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::rst_guard::RstGuard;

use crate::{PortError, SEND_BUFFER};

/// Sockets, and the changes to the host's rules; each field is `None` if it is not needed.
#[derive(Debug, Default)]
pub(crate) struct TcpSockets {
    pub(crate) tap: Option<OptionTap>,
    pub(crate) raw: Option<RawSockets>,
    pub(crate) changes: Option<Changes>,
}

impl TcpSockets {
    /// Opens the sockets in the calling thread's network namespace, and sets `rule`, with a journal
    /// in `run_dir`. `rule` is `None` if another `ServerPort` of this process has set the rule.
    pub(crate) fn open(
        filter: OptionFilter<'_>,
        rule: Option<RstGuard>,
        run_dir: &Path,
    ) -> Result<TcpSockets, PortError> {
        let tap =
            OptionTap::open(filter).map_err(PortError::socket("open a packet socket", true))?;
        let raw = RawSockets::open().map_err(PortError::socket("open a raw socket", true))?;
        raw.set_buffers(SEND_BUFFER)
            .map_err(PortError::socket("set the buffer sizes of a socket", false))?;
        raw.ignore_path_mtu().map_err(PortError::socket("set an option of a socket", false))?;
        // The rule is set last, so that a process without the privilege for the sockets changes
        // nothing.
        let changes = rule.map(|rule| change(rule, run_dir)).transpose()?;
        Ok(TcpSockets { tap: Some(tap), raw: Some(raw), changes })
    }
}

fn change(rule: RstGuard, run_dir: &Path) -> Result<Changes, PortError> {
    let mut changes = Changes::open(&run_dir.join(format!("{}.json", rule.instance)))?;
    changes.rst_guard(rule)?;
    Ok(changes)
}
