//! Datagrams replaced by others: when a datagram that the kernel holds is due, it is dropped
//! and its payload is sent to a relay. Payloads from the relay reach the program in packets
//! built here.
//!
//! ```text
//!   program ─▶ held ── when? ──▶ dropped, and what it carries ─▶ Relayed ─▶ the relay
//!           ◀─ passes, by its mark ◀─ a raw socket ◀── when? ── Relayed ◀─ the relay
//! ```
//!
//! Datagrams to the program from elsewhere are dropped if nothing may go around the relay: the
//! program could not answer them.

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
use crate::run::names::Remote;
use crate::run::relayed::Relayed;

/// Bytes of held datagrams, at most.
const MAX_BYTES: usize = 32 << 20;
/// Overhead that each datagram counts beside its payload, in bytes.
const EACH: usize = 256;
/// Mark of packets built here, so that neither this run nor one below it holds them again.
const MARK: u32 = 0x7669_6164;

/// Payloads held until they are due.
pub(super) struct Replaced {
    relayed: Relayed,
    raw: RawSockets,
    names: Option<Arc<Remote>>,
    /// Held payloads, by the passage's tag.
    waiting: HashMap<u32, Parcel>,
    next: u32,
    bytes: usize,
    /// Datagrams dropped for want of room, and those that did not come by the relay or were not
    /// for it.
    lost: [u64; 2],
}

struct Parcel {
    /// ID of the datagram that the kernel holds, if any.
    held: Option<u32>,
    way: Direction,
    ends: Ends,
    bytes: Vec<u8>,
}

impl Replaced {
    /// Returns `None` unless the chain of `plan` ends at a relay.
    pub(super) fn new(plan: &Plan) -> io::Result<Option<Replaced>> {
        let Some(relayed) = Relayed::new(plan)? else { return Ok(None) };
        let raw = RawSockets::open()?;
        raw.set_mark(MARK)?;
        let names = plan.names.clone();
        let waiting = HashMap::new();
        Ok(Some(Replaced { relayed, raw, names, waiting, next: 0, bytes: 0, lost: [0; 2] }))
    }

    /// Duplicates the descriptor that is readable when a relay has delivered something.
    pub(super) fn watch(&self) -> io::Result<OwnedFd> {
        self.relayed.as_fd().try_clone_to_owned()
    }

    /// Takes the payload of `held`, whose header announces `length` bytes. Returns its tag, or
    /// the verdict if it is decided at once.
    pub(super) fn take(
        &mut self,
        held: &QueuedPacket<'_>,
        way: Direction,
        ends: Ends,
        carried: &[u8],
        length: usize,
    ) -> Result<u32, Verdict> {
        let at = self.names.as_ref().map(|names| names.at()).unwrap_or_default();
        let asks = at.contains(&Some(ends.peer));
        if asks || way == Direction::Back && held.mark == MARK {
            return Err(Verdict::Pass);
        }
        if way == Direction::Back && !self.relayed.leaves() || carried.len() < length {
            self.lost[1] += 1;
            return Err(Verdict::Drop);
        }
        let parcel = Parcel { held: Some(held.id), way, ends, bytes: carried.to_vec() };
        self.keep(parcel).ok_or(Verdict::Drop)
    }

    /// Receives payloads from relays, of peers that the program reaches by them. Returns the
    /// ends, the length and the tag of each.
    pub(super) fn receive(&mut self, now: Instant, rules: &Rules) -> Vec<(Ends, usize, u32)> {
        let mut come = Vec::new();
        self.relayed.receive(now, |ends, bytes| come.push((ends, bytes.to_vec())));
        let mut kept = Vec::new();
        for (ends, bytes) in come {
            let length = bytes.len();
            if rules.fate(Transport::Udp, ends.peer) != Fate::Divert {
                self.lost[1] += 1;
            } else if let Some(tag) =
                self.keep(Parcel { held: None, way: Direction::Back, ends, bytes })
            {
                kept.push((ends, length, tag));
            }
        }
        kept
    }

    /// Releases the payload of `tag`. Returns the verdict on the datagram that the kernel
    /// holds, if any.
    pub(super) fn let_on(&mut self, now: Instant, tag: u32) -> Option<(u32, Verdict)> {
        let Parcel { held, way, ends, bytes } = self.remove(tag)?;
        match (way, held) {
            (Direction::Back, Some(id)) => return Some((id, Verdict::Pass)),
            (Direction::Back, None) => self.put(ends.peer, ends.own, &bytes),
            (Direction::Out, _) => self.relayed.send(now, ends, &bytes),
        }
        held.map(|id| (id, Verdict::Drop))
    }

    /// Sends a packet built here.
    fn put(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let Some(packet) = emit(from, to, bytes) else { return };
        if let Err(error) = self.raw.send(&packet, to.ip()) {
            debug!("a datagram to {to}: {error}");
        }
    }

    /// Drops the payload of `tag`, which found no room. Returns the ID of the held datagram, if
    /// any.
    pub(super) fn forget(&mut self, tag: u32) -> Option<u32> {
        self.remove(tag)?.held
    }

    /// Closes idle relays, and sends payloads direct that have no relay and may. Returns the
    /// time of the next timeout.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.relayed.handle_timeout(now);
        for (ends, bytes) in self.relayed.left() {
            self.put(ends.own, ends.peer, &bytes);
        }
        self.relayed.poll_timeout()
    }

    /// Datagrams dropped for want of room, and others that were dropped.
    pub(super) fn dropped(&self) -> [u64; 2] {
        let [no_room, astray] = self.lost;
        [no_room, astray + self.relayed.dropped()]
    }

    fn keep(&mut self, parcel: Parcel) -> Option<u32> {
        let size = parcel.bytes.len() + EACH;
        if self.bytes + size > MAX_BYTES {
            self.lost[0] += 1;
            return None;
        }
        self.bytes += size;
        self.next = self.next.wrapping_add(1);
        self.waiting.insert(self.next, parcel);
        Some(self.next)
    }

    fn remove(&mut self, tag: u32) -> Option<Parcel> {
        let parcel = self.waiting.remove(&tag)?;
        self.bytes -= parcel.bytes.len() + EACH;
        Some(parcel)
    }
}
