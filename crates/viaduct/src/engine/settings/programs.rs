//! Settings of a worker that carries flows of wrapped programs.

use std::path::PathBuf;
use std::time::Duration;

use viaduct_proto::flow::DEFAULT_LIMIT;
use viaduct_sys::socket::tcp::TcpOptions;

use super::Settings;
use super::args::TRICKLES_BUFFER;
use crate::access_log::AccessLogArgs;
use crate::engine::chain_io::Factories;
use crate::engine::commands::Limits;
use crate::engine::destination::Target;
use crate::engine::liveness::DeadPeerLimits;
use crate::engine::outbound::Outbound;
use crate::engine::policy::{Plan, Policies};
use crate::value_parser::{dead_after, spin, wait};

/// Time that flows of ended programs have to complete: as long as the kernel keeps connections
/// whose program has gone.
const DRAIN: Duration = Duration::from_secs(60);

/// Timeouts among the options of `viaduct run` and `viaduct master`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[cfg_attr(test, derive(Default))]
pub struct ProgramTimes {
    /// Time within which an inbound connection of a program has to complete the handlers'
    /// handshake
    #[arg(long, value_name = "TIME", value_parser = wait, default_value = "60s")]
    arrival_wait: Duration,
    /// Time for which a far end may leave data, probes and keepalives unanswered before its
    /// flow ends; 0s: the kernel's
    #[arg(long, value_name = "TIME", value_parser = dead_after, default_value = "60s")]
    dead_after: Duration,
    /// Time for which the master polls for events before it sleeps, where that has paid of
    /// late; 0s: never
    #[arg(long, value_name = "TIME", value_parser = spin, default_value = "100us")]
    spin: Duration,
}

impl Settings {
    /// Returns settings for wrapped programs: flows pass `handlers`, take the route `by`, and
    /// end like direct ones.
    pub fn for_programs(
        name: String,
        handlers: Factories,
        by: Outbound,
        times: ProgramTimes,
        run_dir: PathBuf,
    ) -> Settings {
        let dead_after = Some(times.dead_after).filter(|time| !time.is_zero());
        let handlers = Some(handlers).filter(|list| !list.is_empty());
        let limits = Limits {
            flows: usize::MAX,
            early: None,
            // The kernel gives up when it would have for the program.
            connect: Duration::MAX,
            handshake: times.arrival_wait,
            silence: DeadPeerLimits { keep_alive: dead_after, dead_after },
            idle: None,
            idle_exit: None,
            drain: DRAIN,
            spin: times.spin,
            chain_buffer: DEFAULT_LIMIT,
            trickles_buffer: TRICKLES_BUFFER,
        };
        let settings = Settings {
            name,
            listen: Vec::new(),
            target: Target::Program,
            policies: Policies {
                otherwise: Plan { by, handlers, ..Plan::default() },
                ..Policies::default()
            },
            hop_signalling: None,
            negotiation: None,
            parent: None,
            options: TcpOptions::default(),
            limits,
            workers: 1,
            tunnels: None,
            intercept: None,
            holds: false,
            may_be_late: false,
            on_demand: false,
            run_dir,
            metrics: None,
            over_limit: None,
            access_log: AccessLogArgs::default(),
        };
        settings.fitted()
    }
}
