//! Which interposer sees the program's calls, and what becomes of the program by each.
//!
//! ```text
//!   cgroup    BPF on its cgroup: all of it, io_uring too           takes root
//!   seccomp   the kernel tells of its calls: static ones too       io_uring is absent for it
//!   preload   a library in it, between it and libc                 not in static and set-user-ID ones
//! ```

use std::env;
use std::io;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tracing::info;
use viaduct_sys::bpf::{Freezer, Group};
use viaduct_sys::seccomp::{self as kernel, SeccompError};
use viaduct_sys::wrapped;

use super::carrier::Carrier;
use super::datagrams::{Holder, Passed};
use super::keep::Keep;
use super::waiting::Common;
use super::{Plan, agree, diverted, preload, seccomp};

/// How a program's calls are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// The one that sees most of those that may be used
    #[default]
    Auto,
    /// BPF on a cgroup of its own
    Cgroup,
    /// Seccomp's user notification
    Seccomp,
    /// A library in the program
    Preload,
}

/// Tells programs that their calls are heard of.
const HEARD: &str = "VIADUCT_HEARD";

/// Tells programs that a run by cgroup lets nothing go around it.
const WHOLE: &str = "VIADUCT_WHOLE";

/// What sees the program's calls.
#[derive(Debug)]
pub enum Interposer {
    /// BPF, whoever holds datagrams, and whether all must pass it.
    Cgroup(Group, Option<Holder>, bool),
    /// Notifications.
    Seccomp(Arc<Common>),
    /// A library, and the environment that puts it in.
    Preload(preload::Stubs),
}

impl Interposer {
    /// The one that is asked for, for what is planned; connects go to `carrier`, and what is to outlive
    /// this process to `keep`.
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
        // That run would take the connects before the kernel looks at the group.
        if env::var_os(HEARD).is_some() && kernel::is_heard() {
            bail!(
                "another viaduct run hears of this process's calls by seccomp; run that by cgroup"
            );
        }
        // Its programs would be in a group of their own: what they send direct, and who comes to them, would
        // go around that run.
        if env::var_os(WHOLE).is_some() {
            bail!("another viaduct run by cgroup lets nothing go around it (--strict)");
        }
        let group = Group::new()?;
        let holder = diverted::start(&group, plan, carrier.clone(), keep)?;
        Ok(Interposer::Cgroup(group, holder, plan.rules.strict))
    }

    /// What handlers have let on of the programs' datagrams.
    pub fn passed(&self) -> Passed {
        match self {
            Interposer::Cgroup(_, holder, _) => holder.as_ref().map(Holder::passed),
            Interposer::Seccomp(_) | Interposer::Preload(_) => {
                self.common().and_then(|common| common.carried()).map(|carried| carried.passed())
            }
        }
        .unwrap_or_default()
    }

    /// Whether a datagram waits to be let on.
    pub fn holds_any(&self) -> bool {
        match self {
            Interposer::Cgroup(_, holder, _) => holder.as_ref().is_some_and(|of| !of.is_empty()),
            Interposer::Seccomp(_) | Interposer::Preload(_) => {
                let carried = self.common().and_then(|common| common.carried());
                carried.is_some_and(|carried| !carried.is_empty())
            }
        }
    }

    /// Holds no more datagrams.
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

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Interposer::Cgroup(..) => "cgroup",
            Interposer::Seccomp(_) => "seccomp",
            Interposer::Preload(_) => "preload",
        }
    }

    /// What freezes the programs, where that can be.
    pub fn freezer(&self) -> Result<Option<Freezer>> {
        Ok(match self {
            Interposer::Cgroup(group, ..) => Some(group.freezer()?),
            Interposer::Seccomp(_) | Interposer::Preload(_) => None,
        })
    }

    /// Starts what `fresh` makes where its calls are seen: its process.
    ///
    /// # Errors
    /// What kept it from starting, as [`io::Error`] if that is the program's own fault.
    pub fn start(&self, fresh: impl Fn() -> Command) -> Result<u32> {
        let mut command = fresh();
        if !matches!(self, Interposer::Cgroup(..)) {
            command.env(HEARD, self.name());
        }
        match self {
            Interposer::Cgroup(group, _, strict) => {
                if *strict {
                    kernel::keep_to_known_families(&mut command);
                    command.env(WHOLE, self.name());
                }
                wrapped::join(&mut command, group.members());
                Ok(command.spawn()?.id())
            }
            Interposer::Seccomp(common) => match seccomp::start(common, command, None) {
                Err(SeccompError::Spawn(error)) => Err(error.into()),
                other => other.context("--via seccomp"),
            },
            Interposer::Preload(stubs) => stubs.start(command, fresh),
        }
    }

    /// Lets go of ports that programs listened at which have ended: others may have them.
    pub fn let_go(&self) {
        if let Some(fronts) = self.common().and_then(|common| common.fronts.as_ref()) {
            fronts.sweep();
        }
    }

    /// Whether nobody is left whose calls it sees; reaps who has ended.
    pub fn is_alone(&self) -> io::Result<bool> {
        match self {
            Interposer::Cgroup(group, ..) => {
                wrapped::reap();
                group.is_empty().map_err(io::Error::other)
            }
            // A child may be ours: who keeps a hall.
            Interposer::Seccomp(common) => Ok(wrapped::reap_all() || common.has_ended()),
            Interposer::Preload(stubs) => Ok(wrapped::reap_all() || stubs.common().has_ended()),
        }
    }
}
