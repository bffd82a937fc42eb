//! Meaning of a config on this machine: the WAN's MTU, the maximum packet length that follows from
//! it, and the division of memory among peers.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};
use ipnet::IpNet;
use viaduct_proto::rack;
use viaduct_proto::repair::{
    Coding, MIN_MEMORY, PATHS, PeerConfig, RackConfig, Sites, Transport, TransportChoice,
    least_memory, overhead,
};
use viaduct_sys::capture::filter::{BpfInsn, TapFilter};

use super::config::{Config, Peer, SiteRack};
use super::preflight::{self, pair};
use super::visibility;

/// Minimum MTU for hosts: IPv6 requires 1280.
const MIN_MTU: usize = 1280;

/// Minimum memory of one tap, in bytes.
const MIN_RING: usize = 512 << 10;
/// Maximum memory of one tap, in bytes.
const MAX_RING: usize = 256 << 20;

/// Time in seconds for which packets must be kept so that they can be recovered: enough to request
/// a packet twice over a path with a round trip of 100 ms.
const KEEP_TIME: f64 = 0.3;
/// Bytes of memory for each byte of packets. The excess is for names, lists and waiting repairs.
const BYTES_PER_BYTE: f64 = 1.25;
/// Bytes of memory for each bit per second of a peer's rate.
const BYTES_PER_BIT: f64 = KEEP_TIME * BYTES_PER_BYTE / 8.0;

/// BPF instruction that loads the type of a packet (see `linux/filter.h`).
const LOAD_PACKET_TYPE: BpfInsn = BpfInsn { code: 0x20, jt: 0, jf: 0, k: 0xffff_f004 };
const OUTGOING: u32 = 4;

/// Config, and the properties of the machine that it runs on.
#[derive(Clone, Debug)]
pub struct Site {
    /// The config.
    pub config: Config,
    /// MTU of the WAN interface, in bytes; the lower MTU, if there are two WANs.
    pub wan_mtu: usize,
    /// Addresses at which fake TCP arrives; empty if no peer may use it.
    pub fake_tcp: Vec<SocketAddr>,
    /// True once this gateway, as a member of a rack, may set the routes of its slices. Until then
    /// this gateway tells the peers that it is drained. Not used without a rack.
    pub is_serving: bool,
}

impl Site {
    /// Examines the machine, without changing anything.
    pub fn new(config: Config) -> Result<Site> {
        let wan_mtu = preflight::wan_mtu(&config)?;
        preflight::check_addresses(&config)?;
        let site = Site { config, wan_mtu, fake_tcp: Vec::new(), is_serving: false };
        for peer in &site.config.peers {
            let fits = site.longest(peer);
            if fits < MIN_MTU && site.host_mtu(peer).is_none_or(|mtu| fits < mtu) {
                bail!(
                    "peer {:?}: the WAN's MTU of {wan_mtu} leaves {fits} bytes for packets next to \
                     repairs; a larger MTU, or lower_mtu = false, is expected",
                    peer.name,
                );
            }
        }
        site.filters()?;
        Ok(site)
    }

    /// Warnings about unusual but allowed settings, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let off = preflight::forwarding_off(&self.config.prefixes);
        let elsewhere = preflight::routed_elsewhere(&self.config);
        let memory = self.too_little_memory();
        let config = self.config.warnings.iter().cloned();
        let nat = preflight::masquerades(&self.config);
        let only_observes = self.only_observes();
        let hidden = self.config.interfaces();
        let hidden = hidden.flat_map(move |wan| visibility::warnings(wan, only_observes));
        config.chain(off).chain(elsewhere).chain(memory).chain(nat).chain(hidden).collect()
    }

    /// Message "no route to peer" with the name of the peer whose site has the address `ip`.
    pub fn no_route_to(&self, ip: IpAddr) -> String {
        let has = |peer: &&Peer| peer.prefixes.iter().any(|net| net.contains(&ip));
        let name = self.config.peers.iter().find(has).map_or("?", |peer| &peer.name);
        format!("no route to peer {name}")
    }

    /// Maximum length of packets towards `peer`: the minimum of the hosts' maximum, the WAN's MTU
    /// and, with `lower_mtu` and a code that sends repairs, the length up to which a repair fits a
    /// datagram.
    pub fn longest(&self, peer: &Peer) -> usize {
        let ipv6 = peer.endpoint.unwrap_or(self.config.listen).is_ipv6();
        let room = match &peer.coding {
            Some(Coding::Auto(_) | Coding::Fixed(_)) if peer.lower_mtu => {
                self.wan_mtu.saturating_sub(overhead(ipv6, peer.transport))
            }
            _ => self.wan_mtu,
        };
        self.host_mtu(peer).map_or(room, |mtu| mtu.min(room))
    }

    /// Length of the longest packet that the hosts send towards `peer`; `None` if the config does
    /// not say, and in split mode, where most packets are those of this gateway's own connections.
    fn host_mtu(&self, peer: &Peer) -> Option<usize> {
        self.config.host_mtu.filter(|_| !peer.split)
    }

    /// Maximum length of packets towards `peer`; `None` if the hosts do not send longer ones, or if
    /// only the WAN's MTU limits them.
    pub fn clamp(&self, peer: &Peer) -> Option<usize> {
        let longest = self.longest(peer);
        let sent = self.host_mtu(peer).map_or(self.wan_mtu, |mtu| mtu.min(self.wan_mtu));
        (longest < sent).then_some(longest)
    }

    /// Returns whether all peers are only observed. In that case nothing on the machine needs to be
    /// changed, except for the choice between two WANs.
    pub fn only_observes(&self) -> bool {
        let is = |peer: &Peer| matches!(peer.coding, Some(Coding::Observe));
        !self.config.peers.is_empty() && self.config.peers.iter().all(is)
    }

    /// Name of the TUN through which recovered packets enter the kernel.
    pub fn tun_name(&self) -> String {
        let name: String = self.config.name.chars().filter(char::is_ascii_alphanumeric).collect();
        format!("vd-{}", name.chars().take(12).collect::<String>())
    }

    /// Number of pairs of taps: one pair for each worker and WAN.
    fn taps(&self) -> usize {
        self.config.workers * self.config.interfaces().count()
    }

    /// Memory of each of the two taps of a pair, in bytes.
    pub fn ring_bytes(&self) -> usize {
        (self.config.memory / 6 / self.taps()).clamp(MIN_RING, MAX_RING)
    }

    /// Memory of all taps of a direction, in bytes.
    pub fn tap_memory(&self) -> usize {
        self.ring_bytes() * self.taps()
    }

    /// Bytes that the peers' packets and repairs may take together.
    fn packet_memory(&self) -> usize {
        self.config.memory.saturating_sub(2 * self.tap_memory())
    }

    /// Bytes that each peer needs while it has traffic: for the packets of [`KEEP_TIME`] at its
    /// rate or, without a rate, for as many packets as a repair of its code may cover in each lane.
    /// The code of the opposite direction is assumed to be the same.
    fn needs(&self) -> Vec<usize> {
        let need = |peer: &Peer| {
            let coding = peer.coding.as_ref();
            let of_lane =
                coding.map_or(MIN_MEMORY, |coding| least_memory(coding, self.longest(peer)));
            // With two WANs each path is a lane.
            let lanes = peer.paths.map_or(self.config.lanes.get(), |_| PATHS);
            let for_code = of_lane * lanes;
            let for_rate = peer.rate.map(|bits| (bits as f64 * BYTES_PER_BIT) as usize);
            match (coding, for_rate) {
                // A code with fixed parameters recovers nothing with less memory.
                (Some(Coding::Fixed(_)), Some(for_rate)) => for_rate.max(for_code),
                (_, for_rate) => for_rate.unwrap_or(for_code),
            }
        };
        // The members of a rack divide the packets of their site.
        let of_site = |members: &[Peer]| -> Vec<usize> {
            members.iter().map(|peer| need(peer) / members.len()).collect()
        };
        self.config.peers.chunk_by(|a, b| a.site() == b.site()).flat_map(of_site).collect()
    }

    /// Each peer's share of the memory, in proportion to its need. A peer keeps its share whatever
    /// the others need.
    fn shares(&self) -> Vec<usize> {
        let (needs, memory) = (self.needs(), self.packet_memory());
        let all: usize = needs.iter().sum::<usize>().max(1);
        let share = |need: usize| (need as u128 * memory as u128 / all as u128) as usize;
        needs.into_iter().map(share).collect()
    }

    /// Number of peers that may have traffic at the same time, each with the memory that it needs,
    /// whichever peers they are.
    fn peers_at_once(&self) -> usize {
        let (mut needs, mut there) = (self.needs(), self.packet_memory());
        needs.sort_unstable_by(|one, other| other.cmp(one));
        let fits = |need: &&usize| {
            let fits = **need <= there;
            there = there.saturating_sub(**need);
            fits
        };
        needs.iter().take_while(fits).count()
    }

    /// Description of the rate and the number of peers for which the memory for packets suffices.
    pub fn memory_bound(&self) -> String {
        let (there, peers) = (self.packet_memory(), self.config.peers.len());
        let megabits = there as f64 / BYTES_PER_BIT / 1e6;
        let at_once = match self.peers_at_once() {
            all if all == peers => "all peers".to_owned(),
            some => format!("{some} of {peers} peers"),
        };
        format!(
            "{} MiB for packets and repairs: {KEEP_TIME} s of {megabits:.0} Mb/s, of all peers and \
             both directions together; enough for {at_once} with traffic at once",
            there >> 20,
        )
    }

    /// Warning if `memory` is below what the peers need while all of them have traffic.
    fn too_little_memory(&self) -> Option<String> {
        let (needed, there) = (self.needs().iter().sum::<usize>(), self.packet_memory());
        // The taps take a third of the memory, within limits.
        let taps = 2 * self.taps();
        let all =
            (needed * 3).div_ceil(2).clamp(needed + taps * MIN_RING, needed + taps * MAX_RING);
        let all = all.div_ceil(1 << 20);
        let (peers, at_once) = (self.config.peers.len(), self.peers_at_once());
        (needed > there).then(|| {
            format!(
                "[site] memory: {} MiB are enough for {at_once} of {peers} peers with traffic at \
                 once, by their codes and rates; with more, packets are forgotten before they are \
                 recovered. {all} MiB are enough for all",
                self.config.memory >> 20,
            )
        })
    }

    /// Returns whether a peer may use nothing but fake TCP.
    pub fn forces_fake_tcp(&self) -> bool {
        let fake_tcp = TransportChoice::Only(Transport::FakeTcp);
        self.config.peers.iter().any(|peer| peer.transport == fake_tcp)
    }

    /// Transports for `peer`: if the ports of fake TCP are not open, `auto` means UDP alone.
    fn transport(&self, peer: &Peer) -> TransportChoice {
        match peer.transport {
            TransportChoice::Auto if self.fake_tcp.is_empty() => {
                TransportChoice::Only(Transport::Udp)
            }
            choice => choice,
        }
    }

    /// Weight that this gateway reports to the peers.
    fn told_weight(&self, rack: &SiteRack) -> u8 {
        if self.is_serving { rack.own_weight() } else { 0 }
    }

    /// Slices of both sites that this gateway, a member of a rack, may carry.
    fn own_slices(&self, peer: &Peer) -> Vec<IpNet> {
        let Some(own) = &self.config.rack else { return Vec::new() };
        let prefixes: Vec<_> = self.config.prefixes.iter().chain(&peer.prefixes).copied().collect();
        rack::slices(&prefixes, &own.members)
    }

    /// Configurations of the peers, for the packet plane.
    pub fn peers(&self) -> Vec<PeerConfig> {
        let shares = self.shares();
        self.config
            .peers
            .iter()
            .zip(shares)
            .map(|(peer, share)| PeerConfig {
                name: peer.name.clone(),
                key: peer.key,
                endpoint: peer.endpoint,
                paths: peer.paths,
                transport: self.transport(peer),
                sites: Sites { local: self.config.prefixes.clone(), remote: peer.prefixes.clone() },
                coding: peer.coding.clone(),
                flush_after: peer.flush_after,
                rekey_after: peer.rekey_after,
                longest: self.longest(peer),
                mtu: self.wan_mtu,
                memory: share,
                rack: RackConfig {
                    own_weight: self.config.rack.as_ref().map(|rack| self.told_weight(rack)),
                    own_slices: self.own_slices(peer),
                    peer: peer.member.clone(),
                },
            })
            .collect()
    }

    /// Filters of the two taps. The first is for packets that leave for the peers' sites; the
    /// second is for packets that come from these sites, and for the peers' datagrams.
    pub fn filters(&self) -> Result<(Vec<BpfInsn>, Vec<BpfInsn>)> {
        let peers = self.config.peer_sites().flat_map(|peer| &peer.prefixes);
        let filter = TapFilter {
            local: self.config.prefixes.iter().map(pair).collect(),
            peers: peers.map(pair).collect(),
            listen: self.config.listens().collect(),
            fake_tcp: self.fake_tcp.clone(),
        };
        let program = filter.build()?;
        Ok((one_way(true, &program), one_way(false, &program)))
    }
}

/// Restricts `program` to outgoing packets, or to all others.
fn one_way(outgoing: bool, program: &[BpfInsn]) -> Vec<BpfInsn> {
    let refuse = BpfInsn { code: 0x06, jt: 0, jf: 0, k: 0 };
    let (jt, jf) = if outgoing { (1, 0) } else { (0, 1) };
    let test = BpfInsn { code: 0x15, jt, jf, k: OUTGOING };
    [&[LOAD_PACKET_TYPE, test, refuse], program].concat()
}

#[cfg(test)]
#[path = "site_tests.rs"]
mod tests;
