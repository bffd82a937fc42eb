//! A tunnel on any input from a peer. Frames parse to the same wherever the stream is split, a
//! tunnel that receives them stays consistent and holds no more data than it has granted, and
//! records that were not sealed are not opened.
#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::frames::{FrameKind, emitted, greeting};
use viaduct_fuzz::{Bytes, Steps};
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::tunnel::record::Secure;
use viaduct_proto::tunnel::wire::{Frame, Parser};
use viaduct_proto::tunnel::{Carrier, Event, Settings, Tunnel};

#[derive(Arbitrary, Debug)]
struct Input {
    streams: bool,
    /// True for each link on which the peer begins with a valid greeting.
    greeted: [bool; 2],
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Raw bytes.
    Raw {
        link: bool,
        lane: u8,
        bytes: Bytes,
    },
    /// A valid frame.
    Frame {
        link: bool,
        stream: u8,
        frame: FrameKind,
    },
    /// This end opens a stream and writes.
    Open {
        count: u16,
    },
    /// This end reads all available data, and consumes it or not.
    Read {
        done: bool,
    },
    /// This end resets, or shuts down, all of its streams.
    Reset,
    Shutdown,
    /// Time passes, in milliseconds.
    Wait {
        millis: u16,
    },
}

fn settings() -> Settings {
    let (initial, limit, least_window) = (20_000, 60_000, 100);
    Settings { initial, limit, least_window, streams: 8, queue: 4_000, ..Settings::default() }
}

fuzz_target!(|input: Input| {
    let carrier = if input.streams { Carrier::Streams } else { Carrier::Stream };
    let mut tunnel = Tunnel::new(settings(), 1);
    let mut now = Instant::from_nanos(1_000_000);
    let links = [tunnel.dial(now, carrier), tunnel.dial(now, carrier)];
    for (link, _) in links.into_iter().zip(input.greeted).filter(|(_, greeted)| *greeted) {
        feed(&mut tunnel, now, link, 0, &greeting(link, 10_000));
    }
    let (mut streams, mut pinged) = (Vec::new(), [0; 2]);
    for step in &input.steps.0 {
        match step {
            Step::Raw { link, lane, bytes } => {
                cut_anywhere(&bytes.0);
                sealed(&bytes.0);
                let link = links[usize::from(*link)];
                feed(&mut tunnel, now, link, u32::from(*lane), &bytes.0);
            }
            Step::Frame { link, stream, frame } => {
                let (stream, at) = (frame.stream(*stream), usize::from(*link));
                let bytes = emitted(stream, &frame.framed(links[at], pinged[at]));
                // Acknowledgements are not sent on the lane of their stream.
                let lane = match frame {
                    FrameKind::Ack { .. } | FrameKind::FinAck => 0,
                    _ if input.streams => stream,
                    _ => 0,
                };
                feed(&mut tunnel, now, links[at], lane, &bytes);
            }
            Step::Open { count } => {
                if let Some(id) = tunnel.open(Address::Name("a".into(), 1), None) {
                    tunnel.write(now, id, vec![7; usize::from(*count)].into());
                    streams.push(id);
                }
            }
            Step::Read { done } => {
                for &id in &streams {
                    while let Some(bytes) = tunnel.read(id) {
                        tunnel.consumed(now, id, if *done { bytes.len() } else { 0 });
                    }
                }
            }
            Step::Reset => streams.drain(..).for_each(|id| tunnel.reset(id, Failure::Reset)),
            Step::Shutdown => streams.iter().for_each(|&id| tunnel.shutdown(id)),
            Step::Wait { millis } => {
                now += Duration::from_millis(u64::from(*millis));
                tunnel.handle_timeout(now);
            }
        }
        while let Some(event) = tunnel.poll_event() {
            if let Event::Opened { id, .. } = event {
                tunnel.accept(id);
                streams.push(id);
            }
        }
        let mut out = Vec::new();
        while let Some((link, _)) = tunnel.poll_transmit(now, &mut out) {
            // Everything that the tunnel sends can be parsed.
            let mut parser = Parser::default();
            let mut rest = &out[..];
            while let Some((_, frame)) = parser.next(&mut rest).expect("frames") {
                if let Frame::Ping(any) = frame {
                    pinged[usize::from(link == links[1])] = any;
                }
            }
            assert!(parser.is_between());
            out.clear();
        }
        tunnel.check();
        let most = settings().limit + 2 * 16 * u64::from(settings().least_window);
        assert!(tunnel.stats().held <= most);
    }
});

/// Passes bytes to the tunnel in two pieces.
fn feed(tunnel: &mut Tunnel, now: Instant, link: u32, lane: u32, bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    tunnel.handle_bytes(now, link, lane, first);
    tunnel.handle_bytes(now, link, lane, second);
}

/// Frames of a stream up to its first error, and its concatenated data.
fn meaning<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, Vec<u8>) {
    let (mut parser, mut said, mut data) = (Parser::default(), Vec::new(), Vec::new());
    for mut piece in pieces {
        loop {
            match parser.next(&mut piece) {
                Ok(Some((_, Frame::Data(bytes)))) => data.extend_from_slice(bytes),
                Ok(Some((stream, frame))) => said.push(format!("{stream} {frame:?}")),
                Ok(None) => break,
                Err(error) => {
                    said.push(error.to_string());
                    return (said, data);
                }
            }
        }
    }
    (said, data)
}

fn cut_anywhere(bytes: &[u8]) {
    let whole = meaning(std::iter::once(bytes));
    assert_eq!(whole, meaning(bytes.chunks(1)));
    assert_eq!(whole, meaning(bytes.chunks(5)));
}

/// Checks that bytes that were not sealed are not opened, and that arbitrary bytes complete no
/// handshake.
fn sealed(bytes: &[u8]) {
    static KEYS: LazyLock<[SecretKey; 2]> =
        LazyLock::new(|| [1, 2].map(|n| SecretKey::from_bytes([n; 32])));
    let entropy: Entropy = Arc::new(|out: &mut [u8]| out.fill(5));
    let mut listener = Secure::listen(&KEYS[0], vec![KEYS[1].public()], entropy);
    listener.inbox().extend_from_slice(bytes);
    let _ = listener.open(&mut Vec::new(), |_| panic!("unsealed bytes are opened"));
    assert!(!listener.is_up());
}
