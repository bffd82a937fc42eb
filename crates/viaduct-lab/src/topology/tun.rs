//! The devices that emulated links end in, and clients of our own.

use viaduct_sys::tun::Tun;

use super::{Node, TopologyError};
use crate::emulator::TUN_QUEUE;

/// `name` in `node` as a TUN, down, with a long queue.
pub(crate) fn open(node: &Node, name: &str, mtu: u32) -> Result<Tun, TopologyError> {
    let make = || {
        let tun = Tun::create(name)?;
        tun.interface().set_mtu(mtu)?;
        Ok(tun)
    };
    let wrong = |source| TopologyError::Tun { node: node.name().into(), source };
    let tun = node.netns().enter(make)?.map_err(wrong)?;
    // By netlink: without root the emulator itself could not.
    node.ip(&[format!("link set {name} txqueuelen {TUN_QUEUE}")])?;
    Ok(tun)
}
