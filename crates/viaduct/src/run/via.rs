//! Choice of the interposer that sees the program's calls, and the start of the program under it.
//!
//! ```text
//!   cgroup    BPF on its cgroup: all of it, io_uring too           takes root
//!   seccomp   the kernel tells of its calls: static ones too       it has no io_uring
//!   preload   a library in it, between it and libc                 not in static, set-user-ID ones
//! ```

use std::env;
use std::io;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tracing::info;
use viaduct_sys::bpf::{Freezer, Group};
use viaduct_sys::process::supervise;
use viaduct_sys::seccomp::{self as kernel, SeccompError};

use super::carrier::Carrier;
use super::datagrams::{Holder, Passed};
use super::keep::Keep;
use super::waiting::Common;
use super::{Plan, agree, diverted, preload, seccomp};

/// Interposers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// The one that sees most, of those that this user may use
    #[default]
    Auto,
    /// BPF on a cgroup of its own
    Cgroup,
    /// Seccomp's user notification
    Seccomp,
    /// A library in the program
    Preload,
}

/// Environment variable that tells programs that seccomp or a library reports their calls.
const HEARD: &str = "VIADUCT_HEARD";

/// Environment variable that tells programs that a run by cgroup lets nothing go around it.
const WHOLE: &str = "VIADUCT_WHOLE";

/// The interposer of a run.
#[derive(Debug)]
pub enum Interposer {
    /// BPF on a cgroup, the holder of datagrams, and whether all flows must pass it (`--strict`).
    Cgroup(Group, Option<Holder>, bool),
    /// Seccomp notifications.
    Seccomp(Arc<Common>),
    /// A library, and the environment that loads it.
    Preload(preload::Stubs),
}

impl Interposer {
    /// Opens the interposer `via` for `plan`. Connects go to `carrier`, and descriptors that
    /// are to outlive this process to `keep`.
    pub fn new(
        via: Via,
        plan: &Plan,
        carrier: &Carrier,
        keep: Option<&Keep>,
    ) -> Result<Interposer> {
        let via = agree::via(via, plan);
        match via {
            Via::Cgroup => Self::cgroup(plan, carrier, keep),
            Via::Seccomp => Ok(Interposer::Seccomp(Common::new(plan, carrier.clone())?)),
            Via::Preload => {
                let common = Common::new(plan, carrier.clone())?;
                Ok(Interposer::Preload(preload::start(common)?))
            }
            Via::Auto => Self::cgroup(plan, carrier, keep).or_else(|why| {
                info!("not by cgroup ({why:#}), but by seccomp");
                Ok(Interposer::Seccomp(Common::new(plan, carrier.clone())?))
            }),
        }
    }

    fn cgroup(plan: &Plan, carrier: &Carrier, keep: Option<&Keep>) -> Result<Interposer> {
        // That run would take the connects before BPF sees them.
        if env::var_os(HEARD).is_some() && kernel::is_traced() {
            bail!(
                "another viaduct run hears of this process's calls by seccomp; run that by cgroup"
            );
        }
        // Programs of this run would be in a cgroup of their own: their direct flows and
        // inbound connections would go around that run.
        if env::var_os(WHOLE).is_some() {
            bail!("another viaduct run by cgroup lets nothing go around it (--strict)");
        }
        let group = Group::new()?;
        let holder = diverted::start(&group, plan, carrier.clone(), keep)?;
        Ok(Interposer::Cgroup(group, holder, plan.rules.strict))
    }

    /// Returns the counts of the programs' datagrams that handlers have released.
    pub fn passed(&self) -> Passed {
        match self {
            Interposer::Cgroup(_, holder, _) => holder.as_ref().map(Holder::passed),
            Interposer::Seccomp(_) | Interposer::Preload(_) => {
                self.common().and_then(|common| common.carried()).map(|carried| carried.passed())
            }
        }
        .unwrap_or_default()
    }

    /// Returns whether a datagram is held.
    pub fn holds_any(&self) -> bool {
        match self {
            Interposer::Cgroup(_, holder, _) => holder.as_ref().is_some_and(|of| !of.is_empty()),
            Interposer::Seccomp(_) | Interposer::Preload(_) => {
                let carried = self.common().and_then(|common| common.carried());
                carried.is_some_and(|carried| !carried.is_empty())
            }
        }
    }

    /// Stops holding datagrams.
    pub fn end(&self) {
        if let Interposer::Cgroup(_, Some(holder), _) = self {
            holder.end();
        }
    }

    fn common(&self) -> Option<&Common> {
        match self {
            Interposer::Cgroup(..) => None,
            Interposer::Seccomp(common) => Some(common),
            Interposer::Preload(stubs) => Some(stubs.common()),
        }
    }

    /// Name of the interposer.
    pub fn name(&self) -> &'static str {
        match self {
            Interposer::Cgroup(..) => "cgroup",
            Interposer::Seccomp(_) => "seccomp",
            Interposer::Preload(_) => "preload",
        }
    }

    /// Returns the freezer of the programs, where they can be frozen.
    pub fn freezer(&self) -> Result<Option<Freezer>> {
        Ok(match self {
            Interposer::Cgroup(group, ..) => Some(group.freezer()?),
            Interposer::Seccomp(_) | Interposer::Preload(_) => None,
        })
    }

    /// Starts the command that `fresh` makes under the interposer. Returns its process ID.
    ///
    /// # Errors
    /// Fails if the program cannot be started; with [`io::Error`] if the cause is the program
    /// itself.
    pub fn start(&self, fresh: impl Fn() -> Command) -> Result<u32> {
        let mut command = fresh();
        if !matches!(self, Interposer::Cgroup(..)) {
            command.env(HEARD, self.name());
        }
        match self {
            Interposer::Cgroup(group, _, strict) => {
                if *strict {
                    kernel::restrict_families(&mut command);
                    command.env(WHOLE, self.name());
                }
                supervise::join_cgroup(&mut command, group.members());
                Ok(command.spawn()?.id())
            }
            Interposer::Seccomp(common) => match seccomp::start(common, command, None) {
                Err(SeccompError::Spawn(error)) => Err(error.into()),
                other => other.context("--via seccomp"),
            },
            Interposer::Preload(stubs) => stubs.start(command, fresh),
        }
    }

    /// Frees ports of listeners whose programs have ended.
    pub fn let_go(&self) {
        if let Some(fronts) = self.common().and_then(|common| common.fronts.as_ref()) {
            fronts.sweep();
        }
    }

    /// Returns whether no program of the run is left; reaps children that have ended.
    pub fn is_alone(&self) -> io::Result<bool> {
        match self {
            Interposer::Cgroup(group, ..) => {
                supervise::reap();
                group.is_empty().map_err(io::Error::other)
            }
            // A child may be the holder of a capture namespace.
            Interposer::Seccomp(common) => Ok(supervise::reap_all() || common.has_ended()),
            Interposer::Preload(stubs) => Ok(supervise::reap_all() || stubs.common().has_ended()),
        }
    }
}
