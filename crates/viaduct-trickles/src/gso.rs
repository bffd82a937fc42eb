//! GSO for answers: consecutive queued answers in TCP's format to one client are sent as one
//! packet, a [`run`], which the kernel splits as late as possible. This takes less CPU time than
//! sending the packets individually.
//!
//! ```text
//!   Outbox   A1 B1 A2 A3 b C1 B2     to clients A, B, C; b (to B) is shorter
//!   runs     A1 A2 A3                are sent first
//!   the rest B1 b C1 B2              over the raw socket, one by one
//! ```
//!
//! Packets to a client are not reordered: after a packet that is sent individually, all later
//! packets of the batch to this client are sent individually as well.

use std::io;
use std::net::IpAddr;

use viaduct_proto::time::Instant;
use viaduct_proto::trickles::packet::run;
use viaduct_sys::capture::raw_gso::{GsoSocket, SuperPacket};
use viaduct_sys::route::next_hop::{NextHop, NextHopLookup, Route};
use viaduct_sys::socket::mmsg::Outbox;

use crate::lookup_cache::LookupCache;

/// Maximum number of packets in a run. A full queue drops entire runs, so their length is limited.
pub(crate) const MAX_PACKETS: usize = 16;
/// Minimum number of packets in a run; a shorter run saves no time.
const MIN_PACKETS: usize = 3;

/// Sender of GSO runs.
#[derive(Debug)]
pub(crate) struct GsoSender {
    segments: GsoSocket,
    hops: NextHopLookup,
    routes: LookupCache<IpAddr, Option<Route>>,
    next_hops: LookupCache<(u32, IpAddr), Option<NextHop>>,
    /// Peers to which a run was longer than the MTU of their route.
    too_long: Vec<IpAddr>,
}

impl GsoSender {
    /// Opens the sockets in the calling thread's network namespace. `buffer` is the size of the
    /// send buffer in bytes. Errors: privilege is missing.
    pub(crate) fn open(buffer: usize) -> io::Result<GsoSender> {
        let (segments, hops) = (GsoSocket::open(buffer)?, NextHopLookup::new()?);
        let (routes, next_hops) = (LookupCache::new(), LookupCache::new());
        Ok(GsoSender { segments, hops, routes, next_hops, too_long: Vec::new() })
    }

    /// Takes the peers to which a run was longer than the MTU of their route.
    pub(crate) fn take_too_long(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.too_long)
    }

    /// Sends those queued packets that form runs; returns their number.
    pub(crate) fn flush(&mut self, now: Instant, queue: &mut Outbox) -> u64 {
        let packets: Vec<_> = queue.iter().collect();
        let (mut gone, mut over) = (vec![false; packets.len()], Vec::<usize>::new());
        for run in sort(&packets.iter().map(|(packet, _)| *packet).collect::<Vec<_>>()) {
            let (first, to) = packets[run[0]];
            if over.iter().any(|&other| run::is_one_way(packets[other].0, first)) {
                continue;
            }
            let together: Vec<&[u8]> = run.iter().map(|&at| packets[at].0).collect();
            if self.send(now, to.ip(), &together) {
                run.into_iter().for_each(|at| gone[at] = true);
            } else {
                // Later packets to this client are sent individually as well.
                over.push(run[0]);
            }
        }
        let sent = gone.iter().filter(|gone| **gone).count() as u64;
        queue.forget(|at| gone[at]);
        sent
    }

    /// Sends `packets` as a run. Returns false if this fails: the caller then sends them
    /// individually, and only the errors of these sends are counted.
    fn send(&mut self, now: Instant, to: IpAddr, packets: &[&[u8]]) -> bool {
        let Some((hop, mtu)) = self.hop(now, to) else { return false };
        if packets[0].len() > mtu {
            if !self.too_long.contains(&to) {
                self.too_long.push(to);
            }
            return false;
        }
        let Some(cut) = run::cut(packets[0]) else { return false };
        let head = run::head(packets[0], cut, packets.len());
        let pieces: Vec<&[u8]> = packets.iter().map(|packet| &packet[cut.headers..]).collect();
        let checksum = (cut.transport, cut.checksum);
        let whole = SuperPacket { head: &head, pieces: &pieces, checksum, segment: cut.message };
        self.segments.send(&hop, &whole).is_ok()
    }

    /// Next-hop lookup for `ip`: output interface, link-layer address and MTU.
    fn hop(&mut self, now: Instant, ip: IpAddr) -> Option<(NextHop, usize)> {
        let GsoSender { hops, routes, next_hops, .. } = self;
        let route = routes.get(now, ip, || hops.route(ip).unwrap_or(None))?;
        let neighbour = (route.interface, route.via);
        let hop = next_hops.get(now, neighbour, || hops.next_hop(route).unwrap_or(None))?;
        Some((hop, route.mtu.map_or(hop.mtu, |mtu| mtu.min(hop.mtu))))
    }
}

/// Groups packets into runs. Returns the packets' indices for each run.
fn sort(packets: &[&[u8]]) -> Vec<Vec<usize>> {
    let (mut peers, mut runs) = (Vec::<Peer>::new(), Vec::new());
    for (at, &packet) in packets.iter().enumerate() {
        let same = |peer: &&mut Peer| run::is_one_way(packets[peer.run[0]], packet);
        match peers.iter_mut().find(same) {
            None => peers.push(Peer { run: vec![at], is_over: false }),
            Some(peer) => peer.add(at, packets, &mut runs),
        }
    }
    let last = peers.into_iter().map(|peer| peer.run);
    runs.extend(last.filter(|run| run.len() >= MIN_PACKETS));
    runs
}

struct Peer {
    run: Vec<usize>,
    /// True if the remaining packets are sent individually.
    is_over: bool,
}

impl Peer {
    /// Adds a packet. If it does not continue the current run, the run is moved to `runs`. If that
    /// run is too short, this packet and all later packets to the peer are sent individually
    /// instead.
    fn add(&mut self, at: usize, packets: &[&[u8]], runs: &mut Vec<Vec<usize>>) {
        let (first, count) = (packets[self.run[0]], self.run.len());
        let joins = count < MAX_PACKETS && run::goes_on(first, count, packets[at]);
        match (self.is_over, joins) {
            (true, _) => {}
            (false, true) => self.run.push(at),
            (false, false) if count >= MIN_PACKETS => {
                runs.push(std::mem::replace(&mut self.run, vec![at]));
            }
            (false, false) => {
                self.run.truncate(1);
                self.is_over = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use viaduct_proto::trickles::packet::tcp::{Kind, Segment, emit};
    use viaduct_proto::trickles::packet::{Mark, Role};

    use super::*;

    /// A packet to the client at `port`, with a message of `bytes` bytes and this sequence number.
    fn packet(port: u16, bytes: usize, seq: u32) -> Vec<u8> {
        let mark = Mark { role: Role::Answer, count: 0, length: 0, ahead: 0 };
        let (source, destination) = (([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], port).into());
        let (kind, ack, scaled, largest) = (Kind::Data, 1, true, u16::MAX);
        let segment = Segment { source, destination, kind, seq, ack, scaled, largest, mark };
        let mut packet = Vec::new();
        emit(&segment, &vec![1; bytes], 1500, &mut packet).unwrap();
        packet
    }

    #[test]
    fn packets_of_a_client_form_runs_and_are_not_reordered() {
        let queued = [
            (1, 100, 0),
            (2, 100, 0),
            (1, 100, 100),
            (3, 50, 0),
            (2, 40, 100),
            (2, 100, 140),
            (2, 100, 240),
            (1, 100, 200),
            (1, 30, 300),
            (3, 50, 7_000),
            (3, 50, 7_050),
            (4, 50, 0),
            (4, 50, 50),
        ];
        let packets: Vec<_> =
            queued.into_iter().map(|(port, bytes, seq)| packet(port, bytes, seq)).collect();
        let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        // The short packet to client 2 and the later packets to client 2 are sent individually;
        // client 4 has only two packets.
        assert_eq!(sort(&packets), [vec![0, 2, 7], vec![3, 9, 10]]);
        let many: Vec<_> = (0..40).map(|n| packet(1, 30, n * 30)).collect();
        let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
        assert_eq!(sort(&many).iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 8]);
        assert_eq!(sort(&[]), Vec::<Vec<usize>>::new());
    }
}
