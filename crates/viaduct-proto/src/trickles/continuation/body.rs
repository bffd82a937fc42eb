//! Wire format of a continuation without its MAC.

use super::{Continuation, Losses, Mode};
use crate::trickles::bytes::{Reader, put_u48};
use crate::trickles::epoch::{Acks, Epoch};
use crate::trickles::plan::Run;

/// Offset of the packet's number.
const NUMBER_AT: usize = 24;

impl Continuation {
    /// Appends the continuation without its MAC; `secret` is the sealing secret's number.
    pub(in crate::trickles) fn emit_body(&self, secret: u8, out: &mut Vec<u8>) {
        let acks =
            u8::from(self.epoch.acks.delayed) << 5 | u8::from(self.epoch.acks.by_request) << 4;
        let offset = u32::try_from(self.number - self.epoch.base).unwrap_or(u32::MAX);
        out.extend_from_slice(&[secret, (self.mode as u8) << 6 | acks | self.losses.count]);
        out.extend_from_slice(&self.connection.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.tag.to_be_bytes());
        out.extend_from_slice(&self.epoch.base.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&self.epoch.start.to_be_bytes());
        out.extend_from_slice(&self.epoch.ssthresh.to_be_bytes());
        put_u48(out, self.timestamp);
        out.extend_from_slice(&self.rtt.to_be_bytes());
        out.push(self.nonces);
        out.extend_from_slice(&self.address.to_be_bytes());
        out.extend_from_slice(&self.message.to_be_bytes());
        out.push(u8::from(self.delta) << 7 | self.burst & 0x7f);
        for run in self.losses.runs() {
            out.extend_from_slice(&run.first.to_be_bytes());
            out.extend_from_slice(&run.count.to_be_bytes());
        }
    }

    /// Parses a continuation without its MAC. Returns the continuation and the number of
    /// parsed bytes.
    pub(in crate::trickles) fn peek_body(bytes: &[u8]) -> Option<(Continuation, usize)> {
        let mut reader = Reader(bytes);
        let continuation = read(&mut reader)?;
        Some((continuation, bytes.len() - reader.0.len()))
    }
}

/// Sets the packet's number in the body of a continuation to the base plus `offset`.
pub(in crate::trickles) fn renumber(body: &mut [u8], offset: u32) {
    if let Some(place) = body.get_mut(NUMBER_AT..NUMBER_AT + 4) {
        place.copy_from_slice(&offset.to_be_bytes());
    }
}

fn read(from: &mut Reader) -> Option<Continuation> {
    let _secret = from.u8()?;
    let flags = from.u8()?;
    let acks = Acks { delayed: flags & 0x20 != 0, by_request: flags & 0x10 != 0 };
    let mode =
        [Mode::AddressToken, Mode::Begun, Mode::Survivors].into_iter().nth((flags >> 6).into())?;
    let (connection, generation, tag) = (from.u64()?, from.u16()?, from.u32()?);
    let (base, offset) = (from.u64()?, from.u32()?);
    let (start, ssthresh) = (from.u16()?, from.u16()?);
    // The limit keeps packet numbers far below 2^64, so that their sums do not overflow.
    if base == 0 || base >= 1 << 62 || start == 0 {
        return None;
    }
    let mut continuation = Continuation {
        mode,
        connection,
        generation,
        tag,
        epoch: Epoch { base, start, ssthresh, acks },
        number: base + u64::from(offset),
        timestamp: from.u48()?,
        rtt: from.u32()?,
        nonces: from.u8()?,
        address: from.u64()?,
        message: from.u16()?,
        burst: 0,
        delta: false,
        losses: Losses::default(),
    };
    let last = from.u8()?;
    (continuation.delta, continuation.burst) = (last & 0x80 != 0, last & 0x7f);
    for _ in 0..flags & 0x0f {
        let run = Run { first: from.u64()?, count: from.u32()? };
        let below = run.count > 0 && run.first > 0 && run.first < base;
        if !below || base - run.first < run.count.into() {
            return None;
        }
        continuation.losses.push(run);
    }
    Some(continuation)
}
