//! Names that most experiments use.

pub(super) use std::fs::{self, File};
pub(super) use std::net::{Ipv4Addr, SocketAddr};
pub(super) use std::path::Path;
pub(super) use std::sync::atomic::{AtomicBool, Ordering};
pub(super) use std::thread;
pub(super) use std::time::{Duration, Instant};

pub(super) use anyhow::{Context, Result, bail, ensure};
pub(super) use serde_json::Value;
pub(super) use viaduct_proto::link::LinkConfig;
pub(super) use viaduct_proto::repair::stats::SenderStats;
pub(super) use viaduct_proto::rng::Rng;
pub(super) use viaduct_sys::process::Process;

pub(super) use super::link;
pub(super) use super::parallel::{join, parallel};
pub(super) use super::statistics::*;
pub(super) use crate::binary::binary;
pub(super) use crate::daemon;
pub(super) use crate::emulator::Direction;
pub(super) use crate::experiment::{About, Bound, Plot, Run};
pub(super) use crate::gateways::GatewaySpec;
pub(super) use crate::proxies::Proxy;
pub(super) use crate::stop;
pub(super) use crate::topology::programs::Iperf;
pub(super) use crate::topology::{Dumbbell, DumbbellSpec, Host, Journal, Node, Scratch, Wan};
pub(super) use crate::world::World;
