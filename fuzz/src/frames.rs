//! Frames that the peer of the fuzzed end sends. Tunnels and `mux` have the same frames.

use arbitrary::Arbitrary;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::tunnel::wire::{Frame, Hello, Opening};

/// Valid frame.
#[derive(Arbitrary, Debug)]
pub enum FrameKind {
    Hello {
        instance: u8,
        tokens: u32,
        least_window: u16,
        streams: u8,
    },
    Grant {
        tokens: u64,
    },
    Gone {
        link: u8,
    },
    Ping {
        any: u64,
    },
    /// Answer to the last ping, or a wrong one.
    Pong {
        right: bool,
    },
    Leave,
    Syn {
        opens: bool,
    },
    Data {
        count: u16,
    },
    Fin,
    FinAck,
    Rst,
    Ack {
        freed: u16,
    },
}

impl FrameKind {
    /// Returns the number of the stream: 1 to 16, chosen by `stream`, or 0 for a frame of the link.
    pub fn stream(&self, stream: u8) -> u32 {
        match self {
            FrameKind::Hello { .. } | FrameKind::Grant { .. } | FrameKind::Gone { .. } => 0,
            FrameKind::Ping { .. } | FrameKind::Pong { .. } | FrameKind::Leave => 0,
            _ => u32::from(stream % 16) + 1,
        }
    }

    /// Returns the frame to send on this link; a correct `Pong` answers `pinged`.
    pub fn framed(&self, link: u32, pinged: u64) -> Frame<'static> {
        const BYTES: [u8; 16_384] = [9; 16_384];
        match *self {
            FrameKind::Hello { instance, tokens, least_window, streams } => Frame::Hello(Hello {
                instance: u64::from(instance),
                link,
                tokens: u64::from(tokens),
                least_window: u32::from(least_window),
                streams: u32::from(streams),
            }),
            FrameKind::Grant { tokens } => Frame::Grant(tokens),
            FrameKind::Gone { link } => Frame::Gone(u32::from(link % 4)),
            FrameKind::Ping { any } => Frame::Ping(any),
            FrameKind::Pong { right } => Frame::Pong(if right { pinged } else { pinged / 2 }),
            FrameKind::Leave => Frame::Leave,
            FrameKind::Syn { opens } => Frame::Syn(opens.then(|| {
                let to = Address::Name("host.example".into(), 80);
                Box::new(Opening { to, source: "[::1]:9".parse().ok() })
            })),
            FrameKind::Data { count } => Frame::Data(&BYTES[..usize::from(count % 16_384) + 1]),
            FrameKind::Fin => Frame::Fin,
            FrameKind::FinAck => Frame::FinAck,
            FrameKind::Rst => Frame::Rst(Failure::Denied),
            FrameKind::Ack { freed } => Frame::Ack(u32::from(freed)),
        }
    }
}

/// First frame of the other end on this link, a `Hello` with `tokens` tokens.
pub fn greeting(link: u32, tokens: u64) -> Vec<u8> {
    emitted(0, &Frame::Hello(Hello { instance: 2, link, tokens, least_window: 50, streams: 8 }))
}

/// The bytes of a frame.
pub fn emitted(stream: u32, frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.emit(stream, &mut bytes);
    bytes
}
