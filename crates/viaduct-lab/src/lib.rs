//! The lab: worlds in network namespaces, experiments in them, their results and the report.
//!
//! ```text
//!   cli ──> experiment ──> topology      hosts, gateways, programs
//!             |    └─────> emulator      the link between the gateways
//!             └──> results (JSON) ──> report (one HTML page)
//! ```

pub mod stop;
pub mod topology;
