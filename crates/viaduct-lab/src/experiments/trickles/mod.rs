//! Trickles (NSDI 2005).

pub(super) mod garbage;
