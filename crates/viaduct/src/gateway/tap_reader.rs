//! Reader of a WAN's taps, which passes each packet and datagram to the packet plane.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use viaduct_proto::repair::{Endpoint, Plane, Transport};
use viaduct_proto::time::Instant;
use viaduct_proto::wire::ip::Header;
use viaduct_proto::wire::offload::{self, Offload};
use viaduct_sys::capture::ring::Frame;
use viaduct_sys::clock;

use super::datagrams::{datagram, is_own_datagram};
use super::fake_tcp::FakeTcpPort;
use super::own_addresses::OwnAddresses;
use super::snapshot::Shell;
use super::taps::Taps;
use super::upgrade::HeldPackets;

/// Maximum number of packets read from a tap before the other tap gets its turn.
pub(super) const BATCH: usize = 256;
/// Maximum age at which the copy of an outgoing packet is still encoded. The repairs of an older
/// copy would come too late, and would take CPU time from the forwarding of further packets.
const STALE: Duration = Duration::from_millis(50);
/// Maximum plausible age of a copy; a larger one means that the wall clock has been set.
const MAX_AGE: Duration = Duration::from_secs(1);

/// Reader of taps, and the destinations of the packets that it reads.
pub(super) struct TapReader<'a> {
    pub(super) plane: &'a mut Plane,
    pub(super) fake_tcp: &'a mut Option<FakeTcpPort>,
    /// Buffer for the segments of packets that a device would segment.
    pub(super) cut: &'a mut Vec<u8>,
    /// Packets that this process may have to encode, while another process is active.
    pub(super) held: Option<&'a mut HeldPackets>,
    pub(super) own: &'a mut OwnAddresses,
    /// Time stamp of the last outgoing packet read.
    pub(super) left: &'a mut Duration,
    pub(super) shell: &'a mut Shell,
}

impl TapReader<'_> {
    /// Sets the path of the taps that are read next.
    pub(super) fn set_path(&mut self, path: u8) {
        self.plane.set_path(path);
        self.held.iter_mut().for_each(|held| held.path = path);
    }

    /// Reads a batch of packets of each direction. The gateway receives datagrams at `listen`.
    /// Returns the number of packets read.
    pub(super) fn read(&mut self, taps: &mut Taps, listen: SocketAddr) -> usize {
        let (now, wall) = (now(), wall_clock());
        let fresh = wall.saturating_sub(STALE);
        // The time stamps of the frames are used, so that delays exclude the time for which this
        // thread was descheduled.
        let crossed = |frame: &Frame<'_>| now - wall.saturating_sub(frame.stamp()).min(MAX_AGE);
        let TapReader { plane, fake_tcp, cut, held, own, left, shell } = self;
        let mut receives = |ip| own.receive(now, listen, ip);
        let Taps { outgoing, incoming } = taps;
        let mut read = 0;
        while read < BATCH
            && let Some(mut frame) = outgoing.next()
        {
            read += 1;
            let (stamp, crossed) = (frame.stamp(), crossed(&frame));
            let is_late = stamp < fresh;
            // The wall clock may have been set back.
            **left = if stamp + MAX_AGE < **left { stamp } else { stamp.max(**left) };
            let seen = packets(&mut frame, cut, shell, |shell, packet| {
                let is_own = |port: &FakeTcpPort| {
                    port.machine.has_sent(packet)
                        && Header::parse(packet).is_ok_and(|header| receives(header.source))
                };
                if fake_tcp.as_ref().is_some_and(is_own)
                    || is_own_datagram(packet, listen.port(), &mut receives)
                {
                    return;
                }
                if let Some(held) = held {
                    held.hold(stamp, packet);
                }
                shell.tap_late_out += u64::from(is_late);
                if is_late {
                    plane.miss_outgoing(1);
                } else {
                    plane.handle_outgoing(now, crossed, packet);
                }
            });
            if !seen {
                plane.miss_outgoing(1);
            }
        }
        for _ in 0..BATCH {
            let Some(mut frame) = incoming.next() else { break };
            read += 1;
            if frame.follows_gap() {
                plane.miss_incoming(now);
            }
            let crossed = crossed(&frame);
            packets(&mut frame, cut, shell, |_, packet| {
                if let Some((from, payload)) = datagram(packet, listen.port(), &mut receives) {
                    plane.handle_datagram(now, from, payload);
                    return;
                }
                let is_carried = fake_tcp.as_mut().is_some_and(|port| {
                    Header::parse(packet).is_ok_and(|header| receives(header.destination))
                        && carried(port, plane, now, packet)
                });
                if !is_carried {
                    plane.handle_incoming(now, crossed, packet);
                }
            });
        }
        read
    }
}

pub(super) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

/// Calls `each` with the packets of the frame as they cross the wire: several if a device segments
/// the frame, otherwise one. Returns false without a call if the frame is truncated, lacks its
/// checksum, or cannot be segmented.
fn packets(
    frame: &mut Frame<'_>,
    cut: &mut Vec<u8>,
    shell: &mut Shell,
    mut each: impl FnMut(&mut Shell, &mut [u8]),
) -> bool {
    if frame.truncated() {
        shell.truncated += 1;
        return false;
    }
    let offload = Offload { segment: frame.segment(), checksum: frame.checksum() };
    if offload == Offload::default() && !frame.checksum_ready() {
        shell.unfinished += 1;
        return false;
    }
    let is_whole = offload::complete(frame, offload, cut, |packet| each(shell, packet));
    shell.unfinished += u64::from(!is_whole);
    is_whole
}

/// Handles a packet of fake TCP. Returns false for other packets.
fn carried(port: &mut FakeTcpPort, plane: &mut Plane, now: Instant, packet: &mut [u8]) -> bool {
    port.machine.handle_packet(now, packet, |address, datagram| {
        let from = Endpoint { transport: Transport::FakeTcp, address };
        plane.handle_datagram(now, from, datagram)
    })
}
