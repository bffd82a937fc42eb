//! TUN devices at the ends of emulated links and for the lab's own clients.

use viaduct_sys::route::tun::Tun;

use super::{Node, TopologyError};
use crate::emulator::TUN_QUEUE;

/// Creates `name` in `node` as a TUN device, down, with a long queue.
pub(crate) fn open(node: &Node, name: &str, mtu: u32) -> Result<Tun, TopologyError> {
    let make = || {
        let tun = Tun::create(name)?;
        tun.interface().set_mtu(mtu)?;
        Ok(tun)
    };
    let wrong = |source| TopologyError::Tun { node: node.name().into(), source };
    let tun = node.netns().enter(make)?.map_err(wrong)?;
    // Set by netlink, because without root the emulator itself cannot set it.
    node.ip(&[format!("link set {name} txqueuelen {TUN_QUEUE}")])?;
    Ok(tun)
}
