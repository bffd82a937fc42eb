//! Names that most experiments use.

pub(super) use std::net::SocketAddr;
pub(super) use std::thread;
pub(super) use std::time::{Duration, Instant};

pub(super) use anyhow::{Context, Result, bail, ensure};
pub(super) use viaduct_proto::link::LinkConfig;
pub(super) use viaduct_proto::rng::Rng;

pub(super) use super::link;
pub(super) use super::parallel::{join, parallel};
pub(super) use super::statistics::*;
pub(super) use crate::binary::binary;
pub(super) use crate::experiment::{About, Bound, Plot, Run};
pub(super) use crate::gateways::GatewaySpec;
pub(super) use crate::stop;
pub(super) use crate::topology::programs::Iperf;
pub(super) use crate::topology::{Dumbbell, DumbbellSpec, Host, Journal, Node, Scratch, Wan};
pub(super) use crate::world::World;
