//! Messages between the ends of a multipath flow.
//!
//! ```text
//!   0 hello      "viaduct" 1, public 32, window 4      opens a session, on its first connection
//!   1 welcome    public 32, window 4                   the answer; both ends now have the secret
//!   2 join       session 16, slot 1, nonce 16          another connection of a session
//!   3 challenge  nonce 16, received 8, proof 32
//!   4 proof      received 8, proof 32                  the connection is used from here on
//!   5 unknown                                          no such session
//!   6 data       at 8, length 2, bytes
//!   7 ack        received 8                            all bytes before it; the end counts as one
//!   8 end        at 8
//!   9 ping   10 pong   11 reset
//! ```

use bytes::{Buf as _, Bytes, BytesMut};

/// Maximum length of a message's data.
pub(super) const MAX_DATA: usize = 32 << 10;
/// Data shorter than this is copied after its header, which is cheaper than a separate piece.
const SHORT: usize = 2 << 10;
const MAGIC: &[u8; 8] = b"viaduct\x01";
const DATA: u8 = 6;
const DATA_HEAD: usize = 1 + 8 + 2;

pub(super) type Id = [u8; 16];
pub(super) type Nonce = [u8; 16];
pub(super) type Public = [u8; 32];
pub(super) type Proof = [u8; 32];

/// Message between the ends of a multipath flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello { public: Public, window: u32 },
    Welcome { public: Public, window: u32 },
    Join { session: Id, slot: u8, nonce: Nonce },
    Challenge { nonce: Nonce, received: u64, proof: Proof },
    Proof { received: u64, proof: Proof },
    Unknown,
    Data { at: u64, data: Bytes },
    Ack(u64),
    End(u64),
    Ping,
    Pong,
    Reset,
}

/// Error: bytes that are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid message; does the other end have this handler at the same position?")]
pub(super) struct InvalidFrame;

impl Frame {
    /// Serializes the message. For [`Frame::Data`] use [`data`], unless the data is short.
    pub(super) fn emit(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        match self {
            Frame::Hello { public, window } => {
                put(&mut out, 0, &[MAGIC, public, &window.to_be_bytes()]);
            }
            Frame::Welcome { public, window } => {
                put(&mut out, 1, &[public, &window.to_be_bytes()]);
            }
            Frame::Join { session, slot, nonce } => put(&mut out, 2, &[session, &[*slot], nonce]),
            Frame::Challenge { nonce, received, proof } => {
                put(&mut out, 3, &[nonce, &received.to_be_bytes(), proof]);
            }
            Frame::Proof { received, proof } => {
                put(&mut out, 4, &[&received.to_be_bytes(), proof]);
            }
            Frame::Unknown => put(&mut out, 5, &[]),
            Frame::Data { at, data } => {
                let length = (data.len() as u16).to_be_bytes();
                put(&mut out, DATA, &[&at.to_be_bytes(), &length, data]);
            }
            Frame::Ack(received) => put(&mut out, 7, &[&received.to_be_bytes()]),
            Frame::End(at) => put(&mut out, 8, &[&at.to_be_bytes()]),
            Frame::Ping => put(&mut out, 9, &[]),
            Frame::Pong => put(&mut out, 10, &[]),
            Frame::Reset => put(&mut out, 11, &[]),
        }
        out.into()
    }

    /// Takes the next message, if it is complete.
    pub(super) fn take(inbox: &mut BytesMut) -> Result<Option<Frame>, InvalidFrame> {
        let Some(&kind) = inbox.first() else { return Ok(None) };
        let length = match kind {
            0 => 1 + 8 + 32 + 4,
            1 => 1 + 32 + 4,
            2 => 1 + 16 + 1 + 16,
            3 => 1 + 16 + 8 + 32,
            4 => 1 + 8 + 32,
            5 | 9..=11 => 1,
            DATA => match inbox.get(9..DATA_HEAD) {
                None => return Ok(None),
                Some(length) => match usize::from(u16::from_be_bytes([length[0], length[1]])) {
                    length @ 1..=MAX_DATA => DATA_HEAD + length,
                    _ => return Err(InvalidFrame),
                },
            },
            7 | 8 => 1 + 8,
            _ => return Err(InvalidFrame),
        };
        // Another protocol is recognized by its first bytes, before a complete message has arrived.
        let magic = inbox.len().min(1 + MAGIC.len());
        if kind == 0 && inbox[1..magic] != MAGIC[..magic - 1] {
            return Err(InvalidFrame);
        }
        if inbox.len() < length {
            return Ok(None);
        }
        let mut body = inbox.split_to(length);
        body.advance(1);
        Ok(Some(Frame::of(kind, body)))
    }

    /// Decodes a message of a known kind, whose body has the right length.
    fn of(kind: u8, mut body: BytesMut) -> Frame {
        match kind {
            0 => {
                body.advance(MAGIC.len());
                Frame::Hello { public: array(&mut body), window: body.get_u32() }
            }
            1 => Frame::Welcome { public: array(&mut body), window: body.get_u32() },
            2 => Frame::Join {
                session: array(&mut body),
                slot: body.get_u8(),
                nonce: array(&mut body),
            },
            3 => Frame::Challenge {
                nonce: array(&mut body),
                received: body.get_u64(),
                proof: array(&mut body),
            },
            4 => Frame::Proof { received: body.get_u64(), proof: array(&mut body) },
            5 => Frame::Unknown,
            DATA => {
                let at = body.get_u64();
                body.advance(2);
                Frame::Data { at, data: body.freeze() }
            }
            7 => Frame::Ack(body.get_u64()),
            8 => Frame::End(body.get_u64()),
            9 => Frame::Ping,
            10 => Frame::Pong,
            _ => Frame::Reset,
        }
    }
}

/// Data message in the pieces to write.
pub(super) fn data(at: u64, data: &Bytes) -> [Option<Bytes>; 2] {
    if data.len() < SHORT {
        return [Some(Frame::Data { at, data: data.clone() }.emit()), None];
    }
    let mut head = Vec::with_capacity(DATA_HEAD);
    put(&mut head, DATA, &[&at.to_be_bytes(), &(data.len() as u16).to_be_bytes()]);
    [Some(head.into()), Some(data.clone())]
}

fn put(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    out.push(kind);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn array<const N: usize>(body: &mut BytesMut) -> [u8; N] {
    let mut array = [0; N];
    body.copy_to_slice(&mut array);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_parsed_when_they_arrive_byte_by_byte() {
        let frames = [
            Frame::Hello { public: [1; 32], window: 7 },
            Frame::Welcome { public: [2; 32], window: 8 },
            Frame::Join { session: [3; 16], slot: 4, nonce: [5; 16] },
            Frame::Challenge { nonce: [6; 16], received: 7, proof: [8; 32] },
            Frame::Proof { received: 9, proof: [10; 32] },
            Frame::Unknown,
            Frame::Data { at: 1 << 40, data: vec![11; 300].into() },
            Frame::Ack(12),
            Frame::End(13),
            Frame::Ping,
            Frame::Pong,
            Frame::Reset,
        ];
        for frame in frames {
            let bytes = frame.emit();
            let mut inbox = BytesMut::new();
            for &byte in &bytes {
                assert_eq!(Frame::take(&mut inbox), Ok(None));
                inbox.extend_from_slice(&[byte]);
            }
            assert_eq!((Frame::take(&mut inbox), inbox.len()), (Ok(Some(frame)), 0));
        }
        let long = vec![7; MAX_DATA].into();
        let [head, rest] = data(5, &long);
        let mut inbox = BytesMut::from(&[&head.unwrap()[..], &rest.unwrap()].concat()[..]);
        assert_eq!(Frame::take(&mut inbox), Ok(Some(Frame::Data { at: 5, data: long })));
        for wrong in [&b"GET / HTTP"[..], b"\0SSH-", &[6, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]] {
            assert_eq!(Frame::take(&mut BytesMut::from(wrong)), Err(InvalidFrame));
        }
    }
}
