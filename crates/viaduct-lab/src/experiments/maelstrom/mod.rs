//! Maelstrom's figures: effect of FEC gateways on unmodified programs over a lossy link.

pub(super) mod adaptive;
pub(super) mod burst;
pub(super) mod classes;
pub(super) mod coprime;
pub(super) mod delivery_trace;
pub(super) mod equal_mtu;
pub(super) mod fair;
pub(super) mod forwarding;
pub(super) mod interleaves;
pub(super) mod latency_delay;
pub(super) mod latency_loss;
pub(super) mod observe;
pub(super) mod onset;
pub(super) mod peers;
mod real_stream;
pub(super) mod recovery;
mod simulated;
pub(super) mod split;
mod stream;
pub(super) mod throughput_burst;
pub(super) mod throughput_delay;
pub(super) mod throughput_gigabit;
pub(super) mod throughput_loss;
pub(super) mod vs_reed_solomon;

use viaduct_proto::link::LinkConfig;

/// Parses a link configuration written in this module.
fn link(text: &str) -> LinkConfig {
    text.parse().expect("a link config of this module")
}

/// Formats a share for people, as in `0.1 %`.
fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}
