//! Delta of a continuation, for a client that has another continuation of the same epoch (5.3).

use super::{CONTINUATION, Continuation, renumber};
use crate::trickles::bytes::{Reader, put_u48};
use crate::trickles::keys::{Keys, MAC};

/// Offset of the timestamp and the RTT.
const TIME_AT: usize = 32;

/// The fields of a continuation that cannot be derived from another continuation of the same epoch
/// (5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'a>(&'a [u8]);

/// Length of a [`Delta`] in bytes: number of the secret 1, timestamp 6, smoothed RTT 4, MAC 16.
pub const DELTA: usize = 1 + 6 + 4 + MAC;

impl<'a> Delta<'a> {
    /// Reads a delta from `reader`.
    pub(in crate::trickles) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        reader.take(DELTA).map(Delta)
    }

    pub(in crate::trickles) fn secret(self) -> u8 {
        self.0[0]
    }

    /// Expands the delta: returns the bytes of the continuation of packet base + `offset`. `model`
    /// is another continuation of the same epoch.
    pub(in crate::trickles) fn on(self, model: &[u8], offset: u32) -> Option<Vec<u8>> {
        let mut bytes = model.get(..CONTINUATION - MAC)?.to_vec();
        bytes[0] = self.0[0];
        // Sets the number of losses to 0: a delta implies that no losses wait for their repair.
        bytes[1] &= 0xf0;
        renumber(&mut bytes, offset);
        bytes[TIME_AT..TIME_AT + 10].copy_from_slice(&self.0[1..11]);
        bytes.extend_from_slice(&self.0[11..]);
        Some(bytes)
    }
}

impl Continuation {
    /// Appends the delta of the continuation, which must have no losses that wait for their repair.
    pub(in crate::trickles) fn emit_delta(&self, keys: &Keys, out: &mut Vec<u8>) {
        let start = out.len();
        self.emit_body(keys.number(), out);
        let mac = keys.transport(&out[start..]);
        out.truncate(start);
        out.push(keys.number());
        put_u48(out, self.timestamp);
        out.extend_from_slice(&self.rtt.to_be_bytes());
        out.extend_from_slice(&mac);
    }
}
