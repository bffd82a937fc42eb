//! Tap of the SYNs to all hops. A single tap serves any number of hops: with a tap for each hop,
//! the kernel would run the filters of all taps on every packet.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};
use tracing::{debug, warn};
use viaduct_proto::split::syn::Syn;
use viaduct_sys::capture::filter::SynFilter;
use viaduct_sys::capture::syn::{SNAP, SynTap};

use crate::engine::destination::is_here;

/// Maximum number of ports in the kernel's filter. If there are more, the filter passes SYNs to all
/// ports.
const MAX_PORTS: usize = 128;
/// Maximum number of prefixes in the kernel's filter. If there are more, the filter passes SYNs to
/// all addresses.
const MAX_PREFIXES: usize = 64;

/// Result of a read.
pub enum SynRead<'a> {
    /// Key of a hop, the source of a SYN to that hop, and the SYN. The source may be forged.
    ToHop(usize, IpAddr, &'a [u8]),
    /// A SYN to another address, or a failed read.
    Other,
    /// No SYN is queued.
    Empty,
}

/// Tap, and the hop of each listening address.
pub struct Syns {
    /// Tap; `None` without the privilege, in which case a hop is started when a client has
    /// connected.
    tap: Option<SynTap>,
    hops: HashMap<SocketAddr, usize>,
}

impl Syns {
    /// Opens the tap for these listening addresses, each with the key of its hop. Errors: the tap
    /// cannot be opened, for a reason other than a missing privilege.
    pub fn open(listen: impl IntoIterator<Item = (SocketAddr, usize)>) -> Result<Syns> {
        let hops: HashMap<_, _> = listen.into_iter().collect();
        let all: Vec<SocketAddr> = hops.keys().copied().collect();
        let (ports, prefixes) = summary(&all);
        let filter =
            SynFilter { sources: &[], destinations: &prefixes, ports: &ports, share: None };
        let tap = match SynTap::open(filter) {
            Ok(tap) => Some(tap),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                warn!("without CAP_NET_RAW, hops start later, which delays the first client");
                None
            }
            Err(error) => return Err(error).context("cannot watch for SYNs"),
        };
        Ok(Syns { tap, hops })
    }

    /// Tap, if there is one.
    pub fn tap(&self) -> Option<&SynTap> {
        self.tap.as_ref()
    }

    /// Reads a queued SYN into `packet`.
    pub fn read<'a>(&self, packet: &'a mut [u8; SNAP]) -> SynRead<'a> {
        let length = match self.tap.as_ref().map(|tap| tap.recv(packet)) {
            Some(Ok(Some(syn))) => syn.len(),
            Some(Ok(None)) | None => return SynRead::Empty,
            Some(Err(error)) => {
                debug!("cannot read SYNs: {error}");
                return SynRead::Other;
            }
        };
        let Some(Syn { tuple, .. }) = Syn::parse(&packet[..length]) else { return SynRead::Other };
        match self.hop(tuple.to, is_here) {
            Some(hop) => SynRead::ToHop(hop, tuple.client.ip(), &packet[..length]),
            None => SynRead::Other,
        }
    }

    /// Returns the key of the hop that listens at `to`, or at the unspecified address with the same
    /// port if `to` is an address of this machine: the tap also sees SYNs that are forwarded.
    fn hop(&self, to: SocketAddr, is_here: impl Fn(SocketAddr) -> bool) -> Option<usize> {
        if let Some(hop) = self.hops.get(&to) {
            return Some(*hop);
        }
        let v6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        let own = match to.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => v6,
        };
        let places = [own, v6].map(|ip| SocketAddr::new(ip, to.port()));
        let hop = places.iter().find_map(|at| self.hops.get(at)).copied();
        hop.filter(|_| is_here(to))
    }
}

/// Returns the ports and prefixes for the kernel's filter; an empty list means all.
fn summary(listen: &[SocketAddr]) -> (Vec<u16>, Vec<(IpAddr, u8)>) {
    let mut ports: Vec<u16> = listen.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    let mut prefixes = crate::engine::listen_set::prefixes(listen);
    if ports.len() > MAX_PORTS {
        ports.clear();
    }
    if prefixes.len() > MAX_PREFIXES {
        prefixes.clear();
    }
    (ports, prefixes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_belongs_to_the_hop_that_listens_at_its_destination() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let hops = [("10.0.0.1:80", 1), ("0.0.0.0:81", 2), ("[::]:82", 3)];
        let hops = hops.into_iter().map(|(text, hop)| (at(text), hop)).collect();
        let syns = Syns { tap: None, hops };
        let found = |text: &str| syns.hop(at(text), |_| true);
        assert_eq!((found("10.0.0.1:80"), found("10.0.0.2:80")), (Some(1), None));
        assert_eq!((found("10.0.0.2:81"), found("[fd00::1]:81")), (Some(2), None));
        assert_eq!((found("10.0.0.2:82"), found("[fd00::1]:82")), (Some(3), Some(3)));
        let forwarded = |text: &str| syns.hop(at(text), |_| false);
        assert_eq!((forwarded("10.0.0.2:81"), forwarded("[fd00::1]:82")), (None, None));
        assert_eq!(forwarded("10.0.0.1:80"), Some(1));
    }

    #[test]
    fn a_filter_has_the_ports_or_the_addresses_of_many_hops() {
        let many: Vec<SocketAddr> =
            (0..1_000).map(|n| SocketAddr::from(([127, 1, 0, 1], 10_000 + n))).collect();
        assert_eq!(summary(&many), (vec![], vec![([127, 1, 0, 1].into(), 32)]));
        let many: Vec<SocketAddr> =
            (0..=255).map(|n| SocketAddr::from(([127, 1, 0, n], 7_000))).collect();
        assert_eq!(summary(&many), (vec![7_000], vec![]));
    }
}
