//! Which interposer sees the program's calls, and what becomes of the program by each.
//!
//! ```text
//!   cgroup    BPF on its cgroup: all of it, io_uring too           takes root
//!   seccomp   the kernel tells of its calls: static ones too       io_uring is absent for it
//!   preload   a library in it, between it and libc                 not in static and set-user-ID ones
//! ```

use std::io;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use tracing::info;
use viaduct_sys::bpf::Group;
use viaduct_sys::seccomp::SeccompError;
use viaduct_sys::wrapped;

use super::waiting::Common;
use super::{Plan, agree, diverted, preload, seccomp};
use crate::proxy::orders::ToWorker;

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

/// What sees the program's calls.
#[derive(Debug)]
pub enum Interposer {
    /// BPF.
    Cgroup(Group),
    /// Notifications.
    Seccomp(Arc<Common>),
    /// A library, and the environment that puts it in.
    Preload(preload::Stubs),
}

impl Interposer {
    /// The one that is asked for, for what is planned; connects go to `worker`.
    pub fn new(via: Via, plan: &Plan, worker: &ToWorker) -> Result<Interposer> {
        let via = agree::via(via, plan);
        match via {
            Via::Cgroup => Self::cgroup(plan, worker),
            Via::Seccomp => Ok(Interposer::Seccomp(Common::new(plan, worker.clone())?)),
            Via::Preload => {
                let common = Common::new(plan, worker.clone())?;
                Ok(Interposer::Preload(preload::start(common)?))
            }
            Via::Auto => Self::cgroup(plan, worker).or_else(|why| {
                info!("not by cgroup ({why:#}), but by seccomp");
                Ok(Interposer::Seccomp(Common::new(plan, worker.clone())?))
            }),
        }
    }

    fn cgroup(plan: &Plan, worker: &ToWorker) -> Result<Interposer> {
        let group = Group::new()?;
        diverted::start(&group, plan, worker.clone())?;
        Ok(Interposer::Cgroup(group))
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Interposer::Cgroup(_) => "cgroup",
            Interposer::Seccomp(_) => "seccomp",
            Interposer::Preload(_) => "preload",
        }
    }

    /// Starts what `fresh` makes where its calls are seen: its process.
    ///
    /// # Errors
    /// What kept it from starting, as [`io::Error`] if that is the program's own fault.
    pub fn start(&self, fresh: impl Fn() -> Command) -> Result<u32> {
        let mut command = fresh();
        match self {
            Interposer::Cgroup(group) => {
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

    /// Whether nobody is left whose calls it sees; reaps who has ended.
    pub fn is_alone(&self) -> io::Result<bool> {
        match self {
            Interposer::Cgroup(group) => {
                wrapped::reap();
                group.is_empty().map_err(io::Error::other)
            }
            Interposer::Seccomp(_) | Interposer::Preload(_) => Ok(wrapped::reap_all()),
        }
    }
}
