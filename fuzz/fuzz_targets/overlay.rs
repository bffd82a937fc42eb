//! A node of the overlay that receives arbitrary bytes, and messages of its peers in any order,
//! repeated and late. Refused messages are counted, and memory stays bounded.
#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, Steps};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::overlay::{Config, Node, Peer, Policy, Timing, reads};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};

#[derive(Arbitrary, Debug)]
enum Step {
    /// Raw bytes.
    Raw(Bytes),
    /// An earlier message to node 0, by number, arrives again, unchanged or with one byte changed.
    Again { number: u16, change: Option<(u8, u8)> },
    /// Time passes, in milliseconds; messages in flight arrive or are lost.
    Wait { millis: u16, lost: u8 },
}

/// Keys of the nodes, created once because key generation is slow.
static KEYS: LazyLock<[SecretKey; 3]> =
    LazyLock::new(|| [1, 2, 3].map(|n| SecretKey::from_bytes([n; 32])));

fn node(n: usize) -> Node {
    let rng = Mutex::new(Rng::from_seed(n as u64));
    let entropy = Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out));
    let peer = |m: usize| Peer {
        name: format!("n{m}"),
        key: KEYS[m].public(),
        socks: Some(([10, 0, 0, m as u8], 1080).into()),
        hop: None,
        serves: Vec::new(),
    };
    let config = Config {
        name: format!("n{n}"),
        key: KEYS[n].clone(),
        serves: Vec::new(),
        peers: (0..3).filter(|&m| m != n).map(peer).collect(),
        policy: Policy::Latency,
        timing: Timing::default(),
    };
    Node::new(config, entropy, Instant::ZERO).expect("a node")
}

fuzz_target!(|steps: Steps<Step>| {
    let mut nodes = [0, 1, 2].map(node);
    let (mut now, mut heard) = (Instant::ZERO, Vec::<Vec<u8>>::new());
    for step in &steps.0 {
        match step {
            Step::Raw(bytes) => {
                reads(&bytes.0);
                let before = refused(&nodes[0]);
                nodes[0].handle_datagram(now, &bytes.0);
                assert_eq!(refused(&nodes[0]), before + 1, "arbitrary bytes are refused");
            }
            Step::Again { number, change } => {
                let Some(at) = usize::from(*number).checked_rem(heard.len()) else { continue };
                let mut bytes = heard[at].clone();
                if let Some((at, to)) = *change {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] = to;
                }
                nodes[0].handle_datagram(now, &bytes);
            }
            Step::Wait { millis, lost } => {
                now += Duration::from_millis((*millis).into());
                carry(&mut nodes, now, *lost, &mut heard);
            }
        }
    }
    let table = nodes[0].table();
    assert_eq!(table.nodes.len(), 2);
    assert!(table.nodes.iter().all(|place| place.others.len() <= 1 && place.routes.len() <= 2));
});

fn refused(node: &Node) -> u64 {
    let stats = node.stats();
    stats.malformed + stats.strangers + stats.forged
}

/// Sends all messages that are due. Each arrives unless the bit of its turn in `lost` is set.
fn carry(nodes: &mut [Node; 3], now: Instant, lost: u8, heard: &mut Vec<Vec<u8>>) {
    for node in nodes.iter_mut().filter(|node| node.poll_timeout().is_some_and(|at| at <= now)) {
        node.handle_timeout(now);
    }
    for turn in 0..8 {
        for from in 0..3 {
            while let Some((peer, bytes)) = nodes[from].poll_transmit() {
                let to = peer + usize::from(peer >= from);
                if to == 0 && heard.len() < 256 {
                    heard.push(bytes.clone());
                }
                if lost >> turn & 1 == 0 {
                    nodes[to].handle_datagram(now, &bytes);
                }
            }
        }
    }
}
