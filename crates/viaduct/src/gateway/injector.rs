//! Injection of recovered packets through a TUN: the kernel forwards them as if they had come from
//! the WAN. The TUN disappears when it is closed.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result};
use tracing::warn;
use viaduct_sys::route::interface;
use viaduct_sys::route::tun::Tun;

use super::site::Site;

/// Dummy address of RFC 7600.
const DUMMY_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// TUN that is created on demand: a gateway that observes has none until its peer sends repairs.
pub struct Injector {
    name: String,
    mtu: usize,
    tun: Option<Tun>,
    has_failed: bool,
}

impl Injector {
    /// Creates the state, without changing the system.
    pub fn new(site: &Site) -> Injector {
        let (name, mtu) = (site.tun_name(), site.wan_mtu.max(1500));
        Injector { name, mtu, tun: None, has_failed: false }
    }

    /// Creates the TUN. Errors: the name is taken, usually by a gateway with the same site name, or
    /// the kernel refuses.
    pub fn open(&mut self) -> Result<()> {
        self.tun = Some(open(&self.name, self.mtu)?);
        Ok(())
    }

    /// Uses the TUN of another process, given its descriptor.
    ///
    /// # Errors
    /// The descriptor is not that of a TUN.
    pub fn take_over(&mut self, tun: OwnedFd) -> Result<()> {
        self.tun = Some(Tun::inherited(tun, &self.name)?);
        Ok(())
    }

    /// Injector for another worker, which uses the same TUN. Creates the TUN if there is none yet.
    ///
    /// # Errors
    /// The TUN cannot be created, or no descriptor is left.
    pub fn share(&mut self) -> Result<Injector> {
        if self.tun.is_none() {
            self.open()?;
        }
        let fd = self.tun().map(|tun| tun.try_clone_to_owned()).transpose()?;
        let tun = fd.map(|fd| Tun::inherited(fd, &self.name)).transpose()?;
        Ok(Injector { name: self.name.clone(), mtu: self.mtu, tun, has_failed: false })
    }

    /// TUN, if it was created.
    pub fn tun(&self) -> Option<BorrowedFd<'_>> {
        self.tun.as_ref().map(|tun| tun.as_fd())
    }

    /// Passes a packet to the kernel. The first packet creates the TUN. Returns whether the kernel
    /// has accepted the packet.
    pub fn inject(&mut self, packet: &[u8]) -> bool {
        if self.tun.is_none()
            && !self.has_failed
            && let Err(error) = self.open()
        {
            self.has_failed = true;
            warn!("recovered packets are not delivered: {error:#}");
        }
        self.tun.as_ref().is_some_and(|tun| tun.write(packet).is_ok())
    }

    /// Returns whether the TUN was deleted.
    pub fn is_gone(&self) -> bool {
        self.tun.as_ref().is_some_and(|tun| tun.interface().mtu().is_err())
    }
}

fn open(name: &str, mtu: usize) -> Result<Tun> {
    let tun = Tun::create(name)?;
    tun.interface().set_mtu(u32::try_from(mtu)?)?;
    let name = tun.name().to_owned();
    // Routes to the sources of recovered packets use other interfaces, so the reverse-path check
    // must be loose. The loose check still requires an address on the interface (the dummy one of
    // RFC 7600).
    interface::add_link_address(&name, DUMMY_ADDRESS.into())
        .with_context(|| format!("give {name} the address {DUMMY_ADDRESS}"))?;
    set(&format!("net/ipv4/conf/{name}/rp_filter"), "2")?;
    set(&format!("net/ipv4/conf/{name}/forwarding"), "1")?;
    // A kernel without IPv6 has no such settings.
    let _ = set(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
    let _ = set(&format!("net/ipv6/conf/{name}/forwarding"), "1");
    tun.interface().set_up()?;
    Ok(tun)
}

fn set(key: &str, value: &str) -> Result<()> {
    fs::write(format!("/proc/sys/{key}"), value).with_context(|| format!("set {key} to {value}"))
}
