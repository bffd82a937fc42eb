//! SYNs whose MSS the path lowers: a SYN that arrived altered was not lost.
//!
//! Providers of PPPoE and mobile networks lower the MSS in SYNs that pass through them. The far
//! gateway then sees a SYN that was never announced, and misses the announced SYN. Injecting the
//! original would give a host the unlowered MSS, which breaks its connections. The receiver
//! therefore remembers recent SYNs by the fields that identify their connection, and learns from
//! pairs of original and altered SYNs how the path treats the MSS:
//!
//! ```text
//!   SYN arrives ──── its MSS is what the path lowers to ───────▶ also stored as it was sent
//!   recovered SYN ──┬─ the same with another MSS has arrived ──▶ not lost; the path lowers to that
//!                   ├─ nothing is known of the path yet ───────▶ not injected: TCP retransmits it
//!                   └─ otherwise ────▶ injected, with its MSS lowered as by the path
//! ```

use std::collections::VecDeque;

use super::identity::{Identity, IdentityKey};
use crate::wire::tcp_syn::TcpSyn;

/// Maximum number of remembered SYNs.
const MAX_RECENT: usize = 128;
/// Maximum number of remembered original MSS values.
const MAX_ORIGINALS: usize = 2;

/// MSS handling of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Path {
    #[default]
    Unknown,
    Keeps,
    Lowers(u16),
}

/// Disposition of a recovered packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SynVerdict {
    /// Lost: to be injected unchanged.
    Lost,
    /// Lost: to be injected with its MSS lowered to this value.
    Lower(TcpSyn, u16),
    /// Arrived, but altered.
    Altered,
    /// Possibly lost; not to be injected.
    Withheld,
}

#[derive(Clone, Copy, Debug)]
struct Arrived {
    connection: Identity,
    identity: Identity,
    mss: Option<u16>,
    ipv6: bool,
}

/// Recent SYNs, and the path's MSS handling learnt from them.
#[derive(Debug, Default)]
pub(super) struct Syns {
    recent: VecDeque<Arrived>,
    /// MSS handling of IPv4 and IPv6.
    paths: [Path; 2],
    /// Original MSS values, latest first.
    originals: [Vec<u16>; 2],
}

impl Syns {
    /// Records an arrived packet if it is a SYN.
    pub(super) fn arrived(&mut self, key: &IdentityKey, identity: Identity, packet: &[u8]) {
        let Some(syn) = TcpSyn::parse(packet) else { return };
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        let connection = key.name(&syn.coarse(packet));
        let (mss, ipv6) = (syn.mss(packet), syn.is_ipv6());
        self.recent.push_back(Arrived { connection, identity, mss, ipv6 });
    }

    /// Candidate original forms of a SYN whose MSS the path may have lowered.
    pub(super) fn as_sent(&self, packet: &[u8]) -> Vec<Vec<u8>> {
        if self.originals.iter().all(Vec::is_empty) {
            return Vec::new();
        }
        let Some(syn) = TcpSyn::parse(packet) else { return Vec::new() };
        let at = usize::from(syn.is_ipv6());
        if syn.mss(packet).is_none_or(|mss| self.paths[at] != Path::Lowers(mss)) {
            return Vec::new();
        }
        let originals = self.originals[at].iter().map(|original| {
            let mut sent = packet.to_vec();
            syn.set_mss(&mut sent, *original);
            sent
        });
        originals.collect()
    }

    /// Records that the packet of this name was announced, and has arrived unaltered.
    pub(super) fn unaltered(&mut self, identity: Identity) {
        if self.paths == [Path::Keeps; 2] || self.recent.is_empty() {
            return;
        }
        let Some(syn) = self.recent.iter().rev().find(|syn| syn.identity == identity) else {
            return;
        };
        let path = &mut self.paths[usize::from(syn.ipv6)];
        let more = |most: u16| syn.mss.is_some_and(|mss| mss > most);
        if matches!(path, Path::Unknown) || matches!(*path, Path::Lowers(most) if more(most)) {
            *path = Path::Keeps;
        }
    }

    /// Decides how to treat a recovered packet whose arrival was not seen.
    pub(super) fn judge(&mut self, key: &IdentityKey, packet: &[u8]) -> SynVerdict {
        let Some(syn) = TcpSyn::parse(packet) else { return SynVerdict::Lost };
        let (connection, mss) = (key.name(&syn.coarse(packet)), syn.mss(packet));
        let path = &mut self.paths[usize::from(syn.is_ipv6())];
        let mut twins = self.recent.iter().rev().filter(|one| one.connection == connection);
        if let Some(twin) = twins.find(|one| one.mss != mss) {
            if let (Some(most), Some(mss)) = (twin.mss, mss)
                && most < mss
            {
                *path = Path::Lowers(most);
                let originals = &mut self.originals[usize::from(syn.is_ipv6())];
                originals.retain(|original| *original != mss);
                originals.insert(0, mss);
                originals.truncate(MAX_ORIGINALS);
            }
            return SynVerdict::Altered;
        }
        match *path {
            Path::Unknown if mss.is_some() => SynVerdict::Withheld,
            Path::Lowers(most) => SynVerdict::Lower(syn, most),
            Path::Unknown | Path::Keeps => SynVerdict::Lost,
        }
    }

    /// Value to which the path lowers the MSS of SYNs, for IPv4 and IPv6.
    pub(super) fn lowered(&self) -> [Option<u16>; 2] {
        self.paths.map(|path| match path {
            Path::Lowers(most) => Some(most),
            Path::Unknown | Path::Keeps => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn(port: u16, mss: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 44, 1, 2, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1];
        packet.extend([0, 0, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x60, 2, 0xff, 0xff, 0, 0, 0, 0, 2, 4]);
        packet.extend(mss.to_be_bytes());
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet
    }

    /// Returns `syn(port, 1000)` with its MSS changed and its checksum updated for the change.
    fn syn_with_sum(port: u16, mss: u16) -> Vec<u8> {
        let mut packet = syn(port, 1000);
        TcpSyn::parse(&packet).unwrap().set_mss(&mut packet, mss);
        packet
    }

    #[test]
    fn the_lowering_of_the_mss_is_learnt_from_altered_syns() {
        let (key, mut syns) = (IdentityKey::new(&[1; 32]), Syns::default());
        let arrive = |syns: &mut Syns, packet: &[u8]| {
            let identity = key.name(packet);
            syns.arrived(&key, identity, packet);
            identity
        };
        assert_eq!(syns.judge(&key, &syn(1, 1460)), SynVerdict::Withheld, "nothing is known yet");
        arrive(&mut syns, &syn(2, 1000));
        assert_eq!(syns.judge(&key, &syn(2, 1460)), SynVerdict::Altered);
        assert_eq!(syns.lowered(), [Some(1000), None]);
        let lost = syn(3, 1460);
        let SynVerdict::Lower(of, most) = syns.judge(&key, &lost) else { panic!("it was lost") };
        assert_eq!((of, most), (TcpSyn::parse(&lost).unwrap(), 1000));
        assert_eq!(syns.as_sent(&syn(5, 1000)), [syn_with_sum(5, 1460)]);
        assert!(syns.as_sent(&syn(5, 900)).is_empty(), "the sender's own MSS is lower");
        let whole = arrive(&mut syns, &syn(4, 1460));
        syns.unaltered(whole);
        assert_eq!(syns.lowered(), [None, None], "the path has changed");
        assert_eq!(syns.judge(&key, &lost), SynVerdict::Lost);
    }

    #[test]
    fn the_number_of_remembered_syns_is_bounded() {
        let (key, mut syns) = (IdentityKey::new(&[1; 32]), Syns::default());
        for port in 0..1_000 {
            let packet = syn(port, 1460);
            syns.arrived(&key, key.name(&packet), &packet);
        }
        assert_eq!(syns.recent.len(), MAX_RECENT);
    }
}
