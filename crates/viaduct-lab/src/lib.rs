//! The lab: worlds in network namespaces, experiments in them, their results and the report.
//!
//! ```text
//!   cli ──> experiments (one file each) ──> topology      hosts, gateways, programs
//!    |           |                    └───> emulator      the link between the gateways
//!    |           ├──> bench: benchmark programs as separate processes, to be wrapped
//!    |           ├──> load: many connections or much data, cheaper than real programs
//!    |           └──> experiment: runs; results as JSON, a table, an exit status
//!    ├──> report: one HTML page of all results; FIGURES.md
//!    ├──> shell: a terminal inside a world
//!    └──> demo: an experiment that explains its result
//! ```

pub mod bench;
pub mod binary;
pub mod cgroup;
pub mod cli;
mod daemon;
pub mod demo;
pub mod emulator;
pub mod example_tunnel;
pub mod experiment;
pub mod experiments;
pub mod flood;
pub mod forge;
pub mod gateways;
pub mod load;
pub mod overlays;
pub mod proxies;
pub mod racks;
pub mod report;
pub mod shell;
pub mod sprays;
pub mod stop;
pub mod topology;
pub mod upgrade;
pub mod world;
