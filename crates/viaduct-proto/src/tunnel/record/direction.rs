//! Sealing and opening the records of one direction.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf;

use super::{REKEY, RecordError, TAG};

/// Key of one direction, and the number of its next record.
pub(super) struct Direction {
    secret: [u8; 32],
    key: LessSafeKey,
    pub(super) number: u64,
}

impl Direction {
    pub(super) fn new(secret: [u8; 32]) -> Direction {
        let key = UnboundKey::new(&AES_256_GCM, &secret).expect("AES-256 keys have 32 bytes");
        Direction { secret, key: LessSafeKey::new(key), number: 0 }
    }

    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let head = ((plain.len() + TAG) as u16).to_be_bytes();
        out.extend(head);
        let start = out.len();
        out.extend_from_slice(plain);
        let nonce = self.next();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut out[start..]);
        out.extend_from_slice(tag.expect("a record is far shorter than 64 GiB").as_ref());
    }

    pub(super) fn open<'a>(
        &mut self,
        head: [u8; 2],
        message: &'a mut [u8],
    ) -> Result<&'a [u8], RecordError> {
        let nonce = self.next();
        let plain = self.key.open_in_place(nonce, Aad::from(head), message);
        plain.map(|plain| &*plain).map_err(|_| RecordError::Forged)
    }

    /// Returns the nonce of the next record, and advances the number. After [`REKEY`] records, the
    /// key is replaced first.
    fn next(&mut self) -> Nonce {
        if self.number == REKEY {
            *self = Direction::new(next_secret(&self.secret));
        }
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

fn next_secret(secret: &[u8; 32]) -> [u8; 32] {
    let mut next = [0; 32];
    hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret)
        .expand(&[b"viaduct tunnel next key"], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut next))
        .expect("32 bytes are one block of SHA-256");
    next
}
