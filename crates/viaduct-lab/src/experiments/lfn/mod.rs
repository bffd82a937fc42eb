//! The figures of "Taming the LFN": what long fat networks do to TCP, and what a tunnel of few
//! long-lived connections does about it.

mod browsing;
pub(super) mod delay;
pub(super) mod fill;
pub(super) mod mux;
mod neighbours;
mod small_site;
mod stalled_link;
mod stalls;
pub(super) mod traces;

use viaduct_proto::link::LinkConfig;

/// A link as text says; the text is ours and right.
fn link(text: &str) -> LinkConfig {
    text.parse().expect("a link config of this module")
}
