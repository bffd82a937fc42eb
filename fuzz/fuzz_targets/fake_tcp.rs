//! Fake TCP. Segments with numbers near those of a live connection, and arbitrary packets, arrive
//! at a gateway: nothing panics, no reset is answered, and a connection exists only after an
//! authentic datagram.
#![no_main]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, Steps, endpoint};
use viaduct_proto::fake_tcp::{FakeTcp, Kind, Ports, parse};
use viaduct_proto::keys::Entropy;
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};

#[derive(Arbitrary, Debug)]
enum Step {
    /// The other gateway sends a datagram.
    Send { opens: bool, bytes: Bytes },
    /// This gateway sends a datagram to the last sender.
    Reply { bytes: Bytes },
    /// Packets of both gateways arrive, each with one byte altered (unchanged if `change` is 0).
    Exchange { at: u16, change: u8 },
    /// Arbitrary bytes arrive.
    Hostile { bytes: Bytes },
    /// Time passes, in milliseconds.
    Wait { millis: u16 },
}

fn machine(side: usize) -> FakeTcp {
    let rng = Mutex::new(Rng::from_seed(side as u64));
    let entropy: Entropy =
        Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out));
    let ports = Ports { listen: endpoint(side), sources: vec![50_000, 50_001], mtu: 1_500 };
    FakeTcp::new(ports, entropy, Instant::ZERO)
}

fuzz_target!(|input: Steps<Step>| {
    let (mut now, mut ends) = (Instant::ZERO, [machine(0), machine(1)]);
    let mut peer: Option<SocketAddr> = None;
    let mut authentic = 0_u64;
    let mut take = |end: &mut FakeTcp, now, packet: &mut [u8]| {
        let waiting = end.transmits().len();
        let is_reset = parse(packet).is_some_and(|(segment, _)| segment.kind == Kind::End);
        end.handle_packet(now, packet, |from, datagram| {
            peer = Some(from);
            let is_authentic = datagram.first() == Some(&1);
            authentic += u64::from(is_authentic);
            is_authentic
        });
        assert!(!is_reset || end.transmits().len() == waiting);
        (peer, authentic)
    };
    let mut known = (None, 0);
    for step in &input.0 {
        match step {
            Step::Send { opens, bytes } => {
                let source = opens.then(|| endpoint(0).ip());
                ends[0].send(now, endpoint(1), source, &bytes.0);
            }
            Step::Reply { bytes } => {
                if let Some(to) = known.0 {
                    ends[1].send(now, to, None, &bytes.0);
                }
            }
            Step::Exchange { at, change } => {
                for from in 0..2 {
                    let packets: Vec<_> = ends[from].transmits().map(<[u8]>::to_vec).collect();
                    ends[from].clear_transmits();
                    for mut packet in packets {
                        let at = usize::from(*at) % packet.len();
                        packet[at] ^= change;
                        known = take(&mut ends[1 - from], now, &mut packet);
                    }
                }
            }
            Step::Hostile { bytes } => {
                ends[1].clear_transmits();
                known = take(&mut ends[1], now, &mut bytes.0.clone());
            }
            Step::Wait { millis } => {
                now += Duration::from_millis((*millis).into());
                for end in &mut ends {
                    end.handle_timeout(now);
                    assert!(end.poll_timeout().is_some_and(|due| due > now));
                }
            }
        }
        assert!(ends[1].stats().accepted <= known.1);
    }
});
