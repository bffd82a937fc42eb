//! Choice of the interposer that reports the program's connects, and start of the program under it.
//!
//! ```text
//!   cgroup    BPF on the program's cgroup: all connects, including io_uring's  requires root
//!   seccomp   the kernel reports calls, including those of static programs     disables io_uring
//!   preload   a library between program and libc; not in static or set-user-ID programs
//! ```

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tracing::info;
use viaduct_sys::bpf::{Freezer, Group};
use viaduct_sys::process::supervise;
use viaduct_sys::seccomp::{self as kernel, SeccompError};

use super::cgroup::EventBarrier;
use super::datagrams::DatagramCounts;
use super::held_udp::HeldUdp;
use super::pending::Interposition;
use super::user_udp::UserUdp;
use super::{Plan, cgroup, negotiate, preload, seccomp};
use crate::master::carrier::Carrier;

/// Interposers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// cgroup if this user may use it, otherwise seccomp
    #[default]
    Auto,
    /// BPF on a cgroup for the program
    Cgroup,
    /// Seccomp's user notification
    Seccomp,
    /// A library in the program
    Preload,
}

/// Environment variable of programs whose calls seccomp or the preloaded library reports.
const REPORTED_VAR: &str = "VIADUCT_REPORTED";

/// Environment variable of programs in a run with `--via cgroup --strict`.
const STRICT_VAR: &str = "VIADUCT_STRICT";

/// BPF on a cgroup.
#[derive(Debug)]
pub struct CgroupInterposer {
    group: Group,
    /// Holder of datagrams, if they go through the handlers.
    held_udp: Option<HeldUdp>,
    /// True with `--strict`.
    strict: bool,
    barrier: Arc<EventBarrier>,
}

/// The interposer of a run.
#[derive(Debug)]
pub enum Interposer {
    /// BPF on a cgroup.
    Cgroup(CgroupInterposer),
    /// Seccomp notifications.
    Seccomp(Arc<Interposition>),
    /// A library, and the environment that loads it.
    Preload(preload::PreloadServer),
}

impl Interposer {
    /// Opens the interposer `via` for `plan`. Connects are passed to `carrier`; descriptors that
    /// must outlive this process are added to `store`.
    pub fn new(
        via: Via,
        plan: &Plan,
        carrier: &Carrier,
        store: Option<&OwnedFd>,
    ) -> Result<Interposer> {
        let via = negotiate::choose_via(via, plan);
        match via {
            Via::Cgroup => Self::cgroup(plan, carrier, store),
            Via::Seccomp => Ok(Interposer::Seccomp(Interposition::new(plan, carrier.clone())?)),
            Via::Preload => {
                let interposition = Interposition::new(plan, carrier.clone())?;
                Ok(Interposer::Preload(preload::start(interposition)?))
            }
            Via::Auto => Self::cgroup(plan, carrier, store).or_else(|why| {
                info!("using seccomp, because cgroup cannot be used: {why:#}");
                Ok(Interposer::Seccomp(Interposition::new(plan, carrier.clone())?))
            }),
        }
    }

    fn cgroup(plan: &Plan, carrier: &Carrier, store: Option<&OwnedFd>) -> Result<Interposer> {
        // An outer run that uses seccomp would intercept the connects before BPF.
        if env::var_os(REPORTED_VAR).is_some() && kernel::is_traced() {
            bail!(
                "another viaduct run handles this process's calls by seccomp; start that run with \
                 --via cgroup"
            );
        }
        // Programs of this run would be in a separate cgroup, so their direct flows and inbound
        // connections would bypass the outer run.
        if env::var_os(STRICT_VAR).is_some() {
            bail!(
                "this run would bypass another viaduct run, which uses --via cgroup and --strict"
            );
        }
        let group = Group::new()?;
        let (held_udp, barrier) = cgroup::start(&group, plan, carrier.clone(), store)?;
        let strict = plan.rules.strict;
        Ok(Interposer::Cgroup(CgroupInterposer { group, held_udp, strict, barrier }))
    }

    /// Returns the counters of the programs' datagrams; zeros if no datagrams go through handlers.
    pub fn datagram_counts(&self) -> DatagramCounts {
        let held = self.held_udp().map(HeldUdp::counts);
        held.or_else(|| Some(self.user_udp()?.counts())).unwrap_or_default()
    }

    /// Returns whether a datagram is held.
    pub fn holds_datagrams(&self) -> bool {
        self.held_udp().is_some_and(|held_udp| !held_udp.is_empty())
            || self.user_udp().is_some_and(|user_udp| !user_udp.is_empty())
    }

    /// Stops holding datagrams.
    pub fn stop_holding(&self) {
        if let Some(held_udp) = self.held_udp() {
            held_udp.end();
        }
    }

    fn held_udp(&self) -> Option<&HeldUdp> {
        match self {
            Interposer::Cgroup(cgroup) => cgroup.held_udp.as_ref(),
            Interposer::Seccomp(_) | Interposer::Preload(_) => None,
        }
    }

    fn user_udp(&self) -> Option<&Arc<UserUdp>> {
        self.interposition()?.user_udp()
    }

    fn interposition(&self) -> Option<&Interposition> {
        match self {
            Interposer::Cgroup(..) => None,
            Interposer::Seccomp(interposition) => Some(interposition),
            Interposer::Preload(server) => Some(&server.interposition),
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

    /// Returns the freezer of the programs; `None` if they cannot be frozen.
    pub fn freezer(&self) -> Result<Option<Freezer>> {
        Ok(match self {
            Interposer::Cgroup(cgroup) => Some(cgroup.group.freezer()?),
            Interposer::Seccomp(_) | Interposer::Preload(_) => None,
        })
    }

    /// Starts the command that `fresh` builds under the interposer, and returns its process ID.
    /// Errors: the program cannot be started; an [`io::Error`] if the program itself is the cause.
    pub fn start(&self, fresh: impl Fn() -> Command) -> Result<u32> {
        let mut command = fresh();
        if !matches!(self, Interposer::Cgroup(..)) {
            command.env(REPORTED_VAR, self.name());
        }
        match self {
            Interposer::Cgroup(CgroupInterposer { group, strict, .. }) => {
                if *strict {
                    kernel::restrict_families(&mut command);
                    command.env(STRICT_VAR, self.name());
                }
                supervise::join_cgroup(&mut command, group.members());
                Ok(command.spawn()?.id())
            }
            Interposer::Seccomp(interposition) => {
                match seccomp::start(interposition, command, None) {
                    Err(SeccompError::Spawn(error)) => Err(error.into()),
                    other => other.context("cannot use --via seccomp"),
                }
            }
            Interposer::Preload(server) => server.start(command, fresh),
        }
    }

    /// Waits until the events of ended programs' calls are logged and counted. With seccomp and the
    /// library this is always so, because each call is logged and counted before it is answered.
    pub fn settle(&self) {
        if let Interposer::Cgroup(cgroup) = self {
            cgroup.barrier.wait();
        }
    }

    /// Frees ports of listeners whose programs have ended.
    pub fn release_ports(&self) {
        let interposition = self.interposition();
        if let Some(listeners) = interposition.and_then(|of| of.public_listeners.as_ref()) {
            listeners.sweep(None);
        }
    }

    /// Returns whether no program of the run is left; reaps children that have ended.
    pub fn has_ended(&self) -> io::Result<bool> {
        if let Interposer::Cgroup(cgroup) = self {
            supervise::reap();
            return cgroup.group.is_empty().map_err(io::Error::other);
        }
        // The holder of a capture namespace is a child that may outlive the programs.
        Ok(supervise::reap_all() || self.interposition().is_some_and(Interposition::has_ended))
    }
}
