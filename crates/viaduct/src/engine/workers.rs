//! Workers that carry the flows of wrapped programs: the far end's host determines the worker of a
//! flow.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use viaduct_proto::flow::Address;

use super::commands::CommandSender;

/// Number of workers: one for each core if `wanted` is 0.
pub fn count(wanted: u16) -> u32 {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    if wanted == 0 { u32::try_from(cores()).unwrap_or(1) } else { u32::from(wanted) }
}

/// Senders of commands to the workers; at least one.
#[derive(Clone, Debug)]
pub struct Workers {
    first: CommandSender,
    others: Arc<[CommandSender]>,
}

impl Workers {
    /// Returns the workers to which `senders` send commands. Errors: `senders` is empty.
    pub(super) fn new(senders: &[CommandSender]) -> Result<Workers> {
        let (first, others) = senders.split_first().context("no worker runs")?;
        Ok(Workers { first: first.clone(), others: others.into() })
    }

    /// The first worker; the only one, unless more are configured.
    pub fn first(&self) -> &CommandSender {
        &self.first
    }

    /// Worker of flows to `far`.
    pub fn to(&self, far: &Address) -> &CommandSender {
        match far {
            Address::Ip(at) => self.with(at.ip()),
            Address::Name(name, _) => self.of(name),
        }
    }

    /// Worker of flows with the host `far`: always the same worker, so that the handlers of all
    /// flows with a host share their state.
    pub fn with(&self, far: IpAddr) -> &CommandSender {
        self.of(far.to_canonical())
    }

    fn of(&self, host: impl Hash) -> &CommandSender {
        if self.others.is_empty() {
            return &self.first;
        }
        let mut hasher = DefaultHasher::new();
        host.hash(&mut hasher);
        let at = hasher.finish() % (1 + self.others.len() as u64);
        at.checked_sub(1).map_or(&self.first, |at| &self.others[at as usize])
    }
}
