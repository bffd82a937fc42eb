//! Trickles on real packets: through a strict router, at `viaduct serve` and its replicas, and
//! under programs and proxies without support for it.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/mod.rs"]
mod common;
mod outbound;
mod replicas;
mod serve_tcp;
mod serve_trickles;
mod spray;
mod strict_router;
mod world;
