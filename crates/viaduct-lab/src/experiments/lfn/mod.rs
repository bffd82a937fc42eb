//! Figures of "Taming the LFN": effects of long fat networks on TCP, and of a tunnel with few
//! long-lived connections.

mod browsing;
pub(super) mod delay;
pub(super) mod fill;
pub(super) mod mux;
mod neighbours;
mod small_site;
mod stalled_link;
mod stalls;
pub(super) mod traces;
