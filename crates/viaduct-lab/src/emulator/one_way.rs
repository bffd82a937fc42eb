//! Single direction of the emulator: from a TUN device through the link to the other TUN device.

use viaduct_proto::link::{Delivery, Link, LinkConfig, flip_bit};
use viaduct_proto::time::Instant;
use viaduct_sys::route::interface::InterfaceError;
use viaduct_sys::route::tun::Tun;

use super::pool::Pool;

/// Packets written per batch: few, so that neither direction waits long for the other.
const WRITES: usize = 32;
/// Packets read per batch. More than [`WRITES`]: while reads are delayed, the TUN's queue may
/// overflow, and only the model should drop packets. A delayed write only makes a packet late.
const READS: usize = 128;

/// Direction of the link, with its buffers.
#[derive(Debug)]
pub(super) struct OneWay {
    pub(super) link: Link<u32>,
    pool: Pool,
    mtu: usize,
    /// Deliveries that the far TUN device rejected.
    pub(super) unwritable: u64,
}

/// Result of one batch of reads or writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    /// Packets read or written.
    pub(super) packets: usize,
    /// True if the batch reached its limit while more packets may be waiting.
    pub(super) more: bool,
}

impl OneWay {
    /// Creates an empty direction that reads from `from`, whose MTU determines the buffer size.
    pub(super) fn new(
        from: &Tun,
        config: LinkConfig,
        seed: u64,
        memory: usize,
    ) -> Result<OneWay, InterfaceError> {
        let mtu = from.interface().mtu()? as usize;
        // One byte above the MTU, to distinguish a packet that fits from a truncated one.
        let pool = Pool::new(mtu + 1, memory);
        Ok(OneWay { link: Link::new(config, seed, Instant::ZERO), pool, mtu, unwritable: 0 })
    }

    /// Reads available packets from `from`, at most a batch.
    pub(super) fn read(&mut self, from: &Tun, clock: impl Fn() -> Instant) -> Batch {
        for packets in 0..READS {
            if !self.read_one(from, &clock) {
                return Batch { packets, more: false };
            }
        }
        Batch { packets: READS, more: true }
    }

    /// Writes packets due by `now` to `to`, at most a batch.
    pub(super) fn write(&mut self, to: &Tun, now: Instant) -> Batch {
        for packets in 0..WRITES {
            let Some(delivery) = self.link.poll(now) else {
                return Batch { packets, more: false };
            };
            self.write_one(to, &delivery);
        }
        Batch { packets: WRITES, more: true }
    }

    /// Returns whether a packet was read. An error counts as no packet: an interface that is down
    /// delivers nothing and may come up again.
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

    /// Reads and discards a packet because no buffer is free. The packet counts as lost if the
    /// loss model selects it; otherwise as dropped by the queue.
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
