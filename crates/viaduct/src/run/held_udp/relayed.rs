//! Datagrams whose chain ends at a relay: when a datagram that the kernel holds is due, the kernel
//! drops it, and its payload is sent to the relay. Payloads from the relay are sent to the program
//! in packets built here.
//!
//! ```text
//!   program ─▶ held ─── due ──▶ dropped; its payload ─▶ UdpRelays ─▶ relay
//!           ◀─ passes, by its mark ◀─ raw socket ◀── due ── UdpRelays ◀─ relay
//! ```
//!
//! If nothing may bypass the relay, datagrams to the program that do not come from the relay are
//! dropped: the program could not answer them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::datagrams::{Direction, Ends};
use viaduct_proto::time::Instant;
use viaduct_proto::wire::datagram::emit;
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::nft::nfqueue::{QueuedPacket, Verdict};

use super::Plan;
use crate::run::names::RemoteNames;
use crate::run::udp_associate::UdpRelays;

/// Maximum size of all held datagrams, including overhead, in bytes.
const MAX_BYTES: usize = 32 << 20;
/// Overhead of a datagram that is counted in addition to its payload, in bytes.
const OVERHEAD: usize = 256;
/// Mark of packets built here, so that neither this run nor a run nested in it holds them again.
const MARK: u32 = 0x7669_6164;

/// Payloads held until they are due.
pub(super) struct RelayedDatagrams {
    relays: UdpRelays,
    raw: RawSockets,
    names: Option<Arc<RemoteNames>>,
    /// Held payloads, by their tags in the `Passage`.
    waiting: HashMap<u32, Payload>,
    next: u32,
    bytes: usize,
    /// Datagrams dropped for lack of room; and those dropped because they bypassed the relay, were
    /// truncated, or came through the relay although the rules do not select their peer.
    lost: [u64; 2],
}

struct Payload {
    /// ID of the datagram that the kernel holds, if any.
    held: Option<u32>,
    direction: Direction,
    ends: Ends,
    bytes: Vec<u8>,
}

impl RelayedDatagrams {
    /// Returns `None` unless the chain of `plan` ends at a relay.
    pub(super) fn new(plan: &Plan) -> io::Result<Option<RelayedDatagrams>> {
        let Some(relays) = UdpRelays::new(plan)? else { return Ok(None) };
        let raw = RawSockets::open()?;
        raw.set_mark(MARK)?;
        let names = plan.names.clone();
        let waiting = HashMap::new();
        Ok(Some(RelayedDatagrams { relays, raw, names, waiting, next: 0, bytes: 0, lost: [0; 2] }))
    }

    /// Duplicates the descriptor that is readable when a relay has delivered a datagram.
    pub(super) fn watch(&self) -> io::Result<OwnedFd> {
        self.relays.as_fd().try_clone_to_owned()
    }

    /// Stores `bytes`, the payload of `held`, whose header gives its length as `length`. Returns
    /// the tag of the payload, or the verdict on the datagram if it need not wait.
    pub(super) fn take(
        &mut self,
        held: &QueuedPacket<'_>,
        direction: Direction,
        ends: Ends,
        bytes: &[u8],
        length: usize,
    ) -> Result<u32, Verdict> {
        let at = self.names.as_ref().map(|names| names.at()).unwrap_or_default();
        let asks = at.contains(&Some(ends.peer));
        if asks || direction == Direction::Back && held.mark == MARK {
            return Err(Verdict::Pass);
        }
        if direction == Direction::Back && !self.relays.may_go_direct() || bytes.len() < length {
            self.lost[1] += 1;
            return Err(Verdict::Drop);
        }
        let payload = Payload { held: Some(held.id), direction, ends, bytes: bytes.to_vec() };
        self.keep(payload).ok_or(Verdict::Drop)
    }

    /// Receives payloads from relays, and drops those from peers that the rules do not select.
    /// Returns the ends, the length and the tag of each stored payload.
    pub(super) fn receive(&mut self, now: Instant, rules: &Rules) -> Vec<(Ends, usize, u32)> {
        let mut received = Vec::new();
        self.relays.receive(now, |ends, bytes| received.push((ends, bytes.to_vec())));
        let mut kept = Vec::new();
        for (ends, bytes) in received {
            let length = bytes.len();
            if rules.fate(Transport::Udp, ends.peer) != Fate::Divert {
                self.lost[1] += 1;
            } else if let Some(tag) =
                self.keep(Payload { held: None, direction: Direction::Back, ends, bytes })
            {
                kept.push((ends, length, tag));
            }
        }
        kept
    }

    /// Releases the payload of `tag`: sends it, if it goes through a relay. Returns the verdict on
    /// the datagram that the kernel holds, if any.
    pub(super) fn release(&mut self, now: Instant, tag: u32) -> Option<(u32, Verdict)> {
        let Payload { held, direction, ends, bytes } = self.remove(tag)?;
        match (direction, held) {
            (Direction::Back, Some(id)) => return Some((id, Verdict::Pass)),
            (Direction::Back, None) => self.put(ends.peer, ends.own, &bytes),
            (Direction::Out, _) => self.relays.send(now, ends, &bytes),
        }
        held.map(|id| (id, Verdict::Drop))
    }

    /// Sends `bytes` in a packet from `from` to `to`, over a raw socket.
    fn put(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let Some(packet) = emit(from, to, bytes) else { return };
        if let Err(error) = self.raw.send(&packet, to.ip()) {
            debug!("cannot send a datagram to {to}: {error}");
        }
    }

    /// Drops the payload of `tag`, for which the handlers have no room. Returns the ID of the
    /// held datagram, if any.
    pub(super) fn forget(&mut self, tag: u32) -> Option<u32> {
        self.remove(tag)?.held
    }

    /// Closes idle relays, and sends directly the payloads that could not be relayed and may bypass
    /// the relay. Returns the time of the next timeout.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.relays.handle_timeout(now);
        for (ends, bytes) in self.relays.take_direct() {
            self.put(ends.own, ends.peer, &bytes);
        }
        self.relays.poll_timeout()
    }

    /// Numbers of datagrams dropped for lack of room, and of those that the relay could not carry.
    pub(super) fn dropped(&self) -> [u64; 2] {
        let [no_room, astray] = self.lost;
        [no_room, astray + self.relays.dropped()]
    }

    fn keep(&mut self, payload: Payload) -> Option<u32> {
        let size = payload.bytes.len() + OVERHEAD;
        if self.bytes + size > MAX_BYTES {
            self.lost[0] += 1;
            return None;
        }
        self.bytes += size;
        self.next = self.next.wrapping_add(1);
        self.waiting.insert(self.next, payload);
        Some(self.next)
    }

    fn remove(&mut self, tag: u32) -> Option<Payload> {
        let payload = self.waiting.remove(&tag)?;
        self.bytes -= payload.bytes.len() + OVERHEAD;
        Some(payload)
    }
}
