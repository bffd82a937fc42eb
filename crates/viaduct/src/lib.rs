//! The program `viaduct`: parses the command line and runs one service. To add a handler of your
//! own, build a `viaduct` that registers it; this crate needs no change (see `examples/handler`):
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut registry = viaduct::handlers();
//!     // registry.add("mine", build);
//!     viaduct::main(registry)
//! }
//! ```

#![allow(unreachable_pub, reason = "the modules are private: `pub` in them is crate-wide")]

mod access_log;
mod capabilities;
mod congestion_control;
mod dash;
mod dead_after;
mod engine;
mod etcd;
mod fleet;
mod gateway;
mod handover;
mod hop_agent;
mod key;
#[cfg(not(feature = "lab"))]
mod lab_program;
mod log_filter;
mod manual;
mod master;
mod metrics;
mod notify;
mod observe;
mod overlay;
mod overlay_table;
mod proxy;
mod random;
mod rate_limited;
mod root_secrets;
mod rule_args;
mod run;
mod run_dir;
mod serve;
mod settings;
mod setup;
mod shell;
mod signals;
mod source;
mod spray;
mod status;
mod status_socket;
mod stdout;
mod steer;
mod tcp_probe;
mod text;
mod tunnel;
mod upgrade;
mod value_parser;
mod watchdog;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use viaduct_proto::flow::Registry;

/// Makes unmodified applications fast over long links that lose packets.
#[derive(Debug, Parser)]
#[command(name = "viaduct", version)]
struct CommandLine {
    /// Log in JSON, one object a line
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a site's gateway: mask the packet loss of the WAN for all hosts of the site
    Gateway {
        /// Config file of the site
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Check the config, print its meaning, and change nothing
        #[arg(long)]
        check: bool,
        /// Descriptor of the connection to the process that this one replaces (viaduct upgrade)
        #[arg(long, hide = true)]
        takeover: Option<std::os::fd::RawFd>,
    },
    /// Keep the members of racks in a gateway's config up to date, from etcd
    Fleet {
        #[command(flatten)]
        args: fleet::FleetArgs,
    },
    /// Write the first config of a site's gateway, from questions or flags; print the other site's
    /// command
    #[command(after_help = setup::EXAMPLES)]
    Setup {
        #[command(flatten)]
        args: setup::SetupArgs,
    },
    /// Run a proxy, one hop of a chain: split TCP connections, and connect to the server as soon
    /// as the client's SYN is seen
    Proxy {
        #[command(flatten)]
        options: Box<proxy::ProxyOptions>,
    },
    /// Run many hops, of which only those in use have a process: the first SYN to a hop starts it
    HopAgent {
        #[command(flatten)]
        args: hop_agent::HopAgentArgs,
    },
    /// Run a program, with handlers on its connections: viaduct run +shape:rate=2M -- curl ...
    Run {
        #[command(flatten)]
        args: run::RunArgs,
    },
    /// Run handlers that several programs share: viaduct run --master NAME adds a program
    Master {
        #[command(flatten)]
        args: master::MasterArgs,
    },
    /// Send this host's own connections through a hop, with their destination in a TCP option of
    /// the SYN
    Steer {
        #[command(flatten)]
        args: steer::SteerArgs,
    },
    /// Run a node of the overlay that the handler `route` uses
    Overlay {
        #[command(flatten)]
        args: overlay::OverlayArgs,
    },
    /// Distribute the packets of a service over its replicas, without state
    Spray {
        #[command(flatten)]
        args: spray::SprayArgs,
    },
    /// Serve the files of a directory
    Serve {
        #[command(flatten)]
        args: serve::ServeArgs,
    },
    /// Show all running services in one table, or all counters of one of them (--name)
    #[command(after_help = status::STATUS_HELP)]
    Status {
        #[command(flatten)]
        selector: status::ServiceSelector,
        /// Print all counters as JSON: the object of --name, or an object of all services by name
        #[arg(long)]
        json: bool,
    },
    /// Show all running services live, with rates and the last two minutes; `?` lists the keys
    #[command(after_help = status::TOP_HELP)]
    Top {
        #[command(flatten)]
        selector: status::ServiceSelector,
    },
    /// Show live plots of all services of this machine on a web page, http://127.0.0.1:7480/
    Dash {
        #[command(flatten)]
        args: dash::DashArgs,
    },
    /// Continue a proxy or a gateway in a new process of the installed version: no connection is
    /// refused or reset, and repairs pause for up to 50 ms
    Upgrade {
        #[command(flatten)]
        args: upgrade::UpgradeArgs,
    },
    /// Report from captures of a link's traffic what the link lost, and what repairs would have
    /// recovered
    Observe {
        #[command(flatten)]
        args: observe::ObserveArgs,
    },
    /// Create and show keys
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Print shell completions: viaduct completions bash
    Completions(manual::CompletionArgs),
    /// Write the man pages: viaduct man DIR
    Man(manual::ManArgs),
    /// Run four programs between two sites over a link that loses packets, without and with
    /// Viaduct
    #[cfg(feature = "lab")]
    Demo(viaduct_lab::demo::DemoArgs),
    /// Build test networks of network namespaces, and run experiments in them
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(viaduct_lab::cli::LabCommand),
    /// Run four programs between two sites over a link that loses packets, without and with
    /// Viaduct (package viaduct-lab)
    #[cfg(not(feature = "lab"))]
    #[command(disable_help_flag = true)]
    Demo(lab_program::LabArgs),
    /// Build test networks of network namespaces, and run experiments in them (package viaduct-lab)
    #[cfg(not(feature = "lab"))]
    #[command(disable_help_flag = true)]
    Lab(lab_program::LabArgs),
}

pub use bytes;
pub use viaduct_proto::flow;

/// Returns the handlers that come with Viaduct.
pub fn handlers() -> Registry {
    viaduct_proto::handlers::registry(&shell::shell())
}

/// Runs the service that the command line selects, with the handlers of `registry`.
pub fn main(registry: Registry) -> ExitCode {
    // All services wait for child processes, which fails if the parent process ignored SIGCHLD.
    viaduct_sys::process::inherited_state::reset_sigchld();
    viaduct_sys::process::static_link::restrict_host_lookups();
    let words = run::expand(std::env::args_os());
    // `viaduct run` exits with the status of its program, so failures of viaduct itself need a
    // status of their own.
    let failed = words.get(1).filter(|word| *word == "run").map(|_| run::OUR_FAULT);
    let read = CommandLine::command().try_get_matches_from(words);
    let read = read.and_then(|matches| Ok((CommandLine::from_arg_matches(&matches)?, matches)));
    let (line, matches) = read.unwrap_or_else(|error| refuse(&error, failed));
    let beside = match matches.subcommand() {
        Some(("proxy", options)) => proxy::check_beside_config(options),
        _ => Ok(()),
    };
    match beside.and_then(|()| execute(line, registry)) {
        Ok(code) => code,
        Err(error) => {
            stdout::print_error(&format!("{error:#}"));
            failed.map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// Prints the command line's error, or the help that was requested, and exits.
fn refuse(error: &clap::Error, failed: Option<u8>) -> ! {
    let Some(failed) = failed.filter(|_| error.use_stderr()) else { error.exit() };
    match run::suggestion(error) {
        Some(suggestion) => stdout::print_error(&suggestion),
        // Printing fails if standard error is closed; the exit status then reports the failure.
        None => drop(error.print()),
    }
    std::process::exit(failed.into());
}

fn execute(line: CommandLine, registry: Registry) -> Result<ExitCode> {
    let log = || log(line.log_json);
    match line.command {
        Command::Gateway { config, check: true, .. } => gateway::check(&config, &registry)?,
        Command::Gateway { config, takeover, .. } => {
            log();
            gateway::run(&config, registry, takeover)?;
        }
        Command::Fleet { args } => {
            log();
            fleet::run(&args)?;
        }
        Command::Setup { args } => setup::run(&args)?,
        Command::Proxy { options } => {
            log();
            match options.check {
                true => proxy::check(&options, &registry)?,
                false => proxy::run(&options, registry)?,
            }
        }
        Command::HopAgent { args } => hop_agent::run(&args, registry, line.log_json, log)?,
        Command::Run { args } => return run::run(&args, &registry),
        Command::Master { args } => return master::run(&args, &registry, log),
        Command::Steer { args } => {
            log();
            steer::run(&args)?;
        }
        Command::Overlay { args } => {
            log();
            overlay::run(&args, &registry)?;
        }
        Command::Spray { args } => spray::run(&args, log)?,
        Command::Serve { args } => {
            log();
            serve::run(&args)?;
        }
        Command::Status { selector, json } => status::status(&selector, json)?,
        Command::Top { selector } => status::top(&selector)?,
        Command::Dash { args } => {
            log();
            dash::run(&args)?;
        }
        Command::Upgrade { args } => upgrade::run(&args)?,
        Command::Observe { args } => observe::run(&args)?,
        Command::Key(command) => key::run(&command)?,
        Command::Completions(args) => manual::print_completions(CommandLine::command(), args)?,
        Command::Man(args) => manual::write_pages(CommandLine::command(), &args)?,
        #[cfg(feature = "lab")]
        Command::Demo(args) => return viaduct_lab::demo::execute(&args),
        #[cfg(feature = "lab")]
        Command::Lab(command) => return viaduct_lab::cli::execute(command),
        #[cfg(not(feature = "lab"))]
        Command::Demo(args) => return lab_program::execute("demo", &args),
        #[cfg(not(feature = "lab"))]
        Command::Lab(args) => return lab_program::execute("lab", &args),
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets up the log on standard error. `VIADUCT_LOG=debug` adds debug lines.
fn log(json: bool) {
    let filter = log_filter::from_env(LevelFilter::INFO);
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false);
    if json {
        builder.json().finish().with(filter).init();
    } else {
        builder.finish().with(filter).init();
    }
}
