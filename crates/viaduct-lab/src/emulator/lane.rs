//! One direction: from a TUN through the link to the other TUN.

use viaduct_proto::link::{Delivery, Link, LinkConfig, flip_bit};
use viaduct_proto::time::Instant;
use viaduct_sys::interface::InterfaceError;
use viaduct_sys::tun::Tun;

use super::pool::Pool;

/// Packets written in one go, so that neither direction waits long for the other.
const WRITES: usize = 32;
/// Packets read in one go: more, for what is not read in time is dropped by the TUN's queue and
/// not by the model, while what is written a little later is only that.
const READS: usize = 128;

/// One direction of the link.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) link: Link<u32>,
    pool: Pool,
    mtu: usize,
    /// Deliveries that the far TUN did not take.
    pub(super) unwritable: u64,
}

/// What a turn of work did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Packets read or written.
    pub(super) packets: usize,
    /// Whether the batch ended before the work did.
    pub(super) more: bool,
}

impl Lane {
    /// An empty direction out of `from`, whose MTU sizes the buffers.
    pub(super) fn new(
        from: &Tun,
        config: LinkConfig,
        seed: u64,
        memory: usize,
    ) -> Result<Lane, InterfaceError> {
        let mtu = from.interface().mtu()? as usize;
        // One byte more than the MTU tells a packet that fits from one that was cut off.
        let pool = Pool::new(mtu + 1, memory);
        Ok(Lane { link: Link::new(config, seed, Instant::ZERO), pool, mtu, unwritable: 0 })
    }

    /// Reads what `from` has, at most a batch.
    pub(super) fn read(&mut self, from: &Tun, clock: impl Fn() -> Instant) -> Turn {
        for packets in 0..READS {
            if !self.read_one(from, &clock) {
                return Turn { packets, more: false };
            }
        }
        Turn { packets: READS, more: true }
    }

    /// Writes to `to` what is due by `now`, at most a batch.
    pub(super) fn write(&mut self, to: &Tun, now: Instant) -> Turn {
        for packets in 0..WRITES {
            let Some(delivery) = self.link.poll(now) else {
                return Turn { packets, more: false };
            };
            self.write_one(to, &delivery);
        }
        Turn { packets: WRITES, more: true }
    }

    /// False when there was nothing to read. An error counts as nothing: an interface that is down
    /// has nothing, and may come up again.
    fn read_one(&mut self, from: &Tun, clock: impl Fn() -> Instant) -> bool {
        let Some(buffer) = self.pool.take() else { return self.read_away(from) };
        let Ok(len) = from.read(self.pool.bytes(buffer)) else {
            self.pool.give(buffer);
            return false;
        };
        if len > self.mtu {
            self.link.push_unheld();
            self.pool.give(buffer);
        } else if let Err(refused) = self.link.push(clock(), buffer, len) {
            self.pool.give(refused.item);
        }
        true
    }

    /// Without a buffer the packet is read all the same, and counts as dropped by the queue.
    fn read_away(&mut self, from: &Tun) -> bool {
        let read = from.read(&mut [0; 1]).is_ok();
        if read {
            self.link.push_unheld();
        }
        read
    }

    fn write_one(&mut self, to: &Tun, delivery: &Delivery<u32>) {
        let packet = &mut self.pool.bytes(delivery.item)[..delivery.len];
        if let Some(bit) = delivery.flipped {
            flip_bit(packet, bit);
        }
        for _ in 0..delivery.copies {
            self.unwritable += u64::from(to.write(packet).is_err());
        }
        self.pool.give(delivery.item);
    }
}
