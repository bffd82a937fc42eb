//! The master: runs the handlers of a program's flows (section 3.7 of the TESLA paper), and starts
//! the program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use viaduct_sys::process::supervise::{self, StateChange};
use viaduct_sys::process::{self, inherited_fds, inherited_state, memory};
use viaduct_trickles::revert_stale_changes;

use super::freezer::FlowFreezer;
use super::negotiate::NegotiationMode;
use super::report::Report;
use super::via::Interposer;
use super::wrapper::Message;
use super::{OUR_FAULT, Plan, RunArgs, aware};
use crate::access_log::AccessLog;
use crate::engine::commands::WorkerCommand;
use crate::engine::config::EngineConfig;
use crate::engine::destination::Target;
use crate::engine::handle::{EngineThread, Handle};
use crate::engine::outbound::Outbound;
use crate::engine::policy::Policies;
use crate::engine::stats::ProxyStats;
use crate::log_filter;
use crate::master::carrier::Carrier;
use crate::master::client::MasterClient;
use crate::master::nested::NestedMaster;

/// Interval between checks for remaining processes and flows of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Delay of a report, so that events of the program's last calls can arrive.
const REPORT_DELAY: Duration = Duration::from_millis(20);
/// Maximum additional delay of a report while connections that are offloaded to the kernel are
/// open.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Exit status if the program does not exist.
const NOT_FOUND: u8 = 127;
/// Exit status if the program cannot be executed.
const NOT_A_PROGRAM: u8 = 126;

/// Connection to the wrapper, while the wrapper runs.
#[derive(Clone, Debug)]
struct ToWrapper(Arc<Mutex<UnixStream>>);

impl ToWrapper {
    /// Starts a thread that calls `act` when the wrapper has ended.
    fn when_gone(&self, act: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner).try_clone()?;
        let wait = move || {
            // The wrapper sends nothing: `read` returns when the wrapper has ended.
            let _ = stream.read(&mut [0]);
            act();
        };
        thread::Builder::new().name("wrapper".to_owned()).spawn(wait).map(drop)
    }

    /// Sends a message, which is lost if the wrapper has ended.
    fn send(&self, message: &Message) {
        let Ok(line) = serde_json::to_string(message) else { return };
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.write_all((line + "\n").as_bytes());
    }
}

impl io::Write for ToWrapper {
    /// Sends a line of the log.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&Message::Print(String::from_utf8_lossy(bytes).trim_end().to_owned()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs the handlers and the program; `fd` is the socket to the wrapper.
pub fn run(fd: RawFd, args: &RunArgs, plan: Plan) -> Result<ExitCode> {
    let stream =
        UnixStream::from(inherited_fds::take(fd).context("cannot take the wrapper's socket")?);
    let wrapper = ToWrapper(Arc::new(Mutex::new(stream)));
    log(&wrapper);
    if let Err(error) = serve(&wrapper, args, plan) {
        let failed = error.downcast_ref::<Failed>().map_or(OUR_FAULT, |failed| failed.0);
        wrapper.send(&Message::Failed(failed, format!("{error:#}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Failure to start the program, with the exit status.
#[derive(Debug, thiserror::Error)]
#[error("{1}")]
struct Failed(u8, String);

/// Minimum limit of open descriptors for a run's flows, independent of the program's own limit.
const MIN_DESCRIPTORS: u64 = 1 << 16;

fn serve(wrapper: &ToWrapper, args: &RunArgs, mut plan: Plan) -> Result<()> {
    process::raise_hard_fd_limit(MIN_DESCRIPTORS);
    let store = args
        .store_fd
        .map(inherited_fds::take)
        .transpose()
        .context("cannot take the descriptor store")?;
    let left = inherited_fds::take_rest().context("cannot list the open descriptors")?;
    let (carrier, flows) = carrier(args, &mut plan)?;
    let interposer = Interposer::new(args.via, &plan, &carrier, store.as_ref())?;
    drop(store);
    if let (Some(names), Interposer::Cgroup(..)) = (&plan.names, &interposer) {
        names.check_daemons()?;
    }
    let control = start_control(&carrier, &interposer)?;
    let program = start(&args.command, control.as_deref(), &interposer)?;
    drop(left);
    wrapper.send(&Message::Started(program));
    let pid = Pid::from_raw(program.cast_signed()).context("the program has no process ID")?;
    let pidfd =
        pidfd_open(pid, PidfdFlags::empty()).context("cannot open a pidfd of the program")?;
    // If the wrapper is killed, the program is killed too.
    wrapper.when_gone(move || {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    })?;
    supervise::adopt_orphans()?;
    supervise::detach_from_terminal().context("cannot detach from the terminal")?;
    memory::drop_clean_pages()?;
    loop {
        let change = supervise::wait(program).context("cannot wait for the program")?;
        let ended = matches!(change, StateChange::Exited(_) | StateChange::Killed(_));
        if ended {
            interposer.release_ports();
            interposer.settle();
        }
        if ended && let Some(report) = &plan.report {
            let flows = flows.as_ref().map(|flows| &flows.handle);
            send_report(wrapper, report, &interposer, flows, plan.by.trickles().is_some());
        }
        wrapper.send(&Message::Changed(change));
        if ended {
            break;
        }
    }
    // Other processes of the run may remain, and written data may still be in flight.
    while !interposer.has_ended()? {
        thread::sleep(POLL_INTERVAL);
    }
    let Some(flows) = flows else { return Ok(()) };
    flows.handle.drain();
    while !flows.is_over() || interposer.holds_datagrams() {
        thread::sleep(POLL_INTERVAL);
    }
    interposer.stop_holding();
    flows.end()
}

/// Starts the carrier of the program's flows: a worker in this process, a shared master, or a
/// worker nested under a shared master.
fn carrier(args: &RunArgs, plan: &mut Plan) -> Result<(Carrier, Option<EngineThread>)> {
    let Some(name) = &args.master else {
        let flows = worker(args, plan, None)?;
        return Ok((Carrier::Own(flows.handle.workers_of_programs()?), Some(flows)));
    };
    let (client, welcome) = MasterClient::join(name, &args.run_dir.path())?;
    if args.handlers.is_empty() {
        if plan.negotiation.is_some() {
            bail!("--prefer and --require cannot be used with --master, which carries the flows");
        }
        plan.adopt_shared(&welcome, args.no_offload)?;
        return Ok((Carrier::Shared(client), None));
    }
    let rules = Box::new(plan.rules);
    plan.adopt_parent(&welcome)?;
    let nested = Arc::new(NestedMaster::new(client, &welcome)?);
    let flows = worker(args, plan, Some(nested.clone()))?;
    Ok((Carrier::Nested(flows.handle.workers_of_programs()?, nested, rules), Some(flows)))
}

/// Starts the control socket for programs, unless a shared master carries the flows: the handlers
/// of a shared master serve other runs too.
fn start_control(carrier: &Carrier, interposer: &Interposer) -> Result<Option<String>> {
    let (Carrier::Own(workers) | Carrier::Nested(workers, ..)) = carrier else { return Ok(None) };
    let worker = workers.first();
    let freezer = FlowFreezer::new(interposer.freezer()?);
    worker.send(WorkerCommand::SetEventSink(Box::new(freezer)));
    aware::start(worker.clone()).map(Some)
}

/// Starts the worker that runs the handlers of `plan`, nested under a parent master if any.
fn worker(args: &RunArgs, plan: &Plan, nested: Option<Arc<NestedMaster>>) -> Result<EngineThread> {
    let name = format!("run-{}", std::process::id());
    let negotiation = plan.negotiation.as_ref();
    let negotiation =
        negotiation.map(|negotiation| negotiation.start(args.via, &plan.chain, nested.is_some()));
    let (chain, negotiation) = match negotiation.transpose()? {
        None => (plan.chain.clone(), None),
        Some(NegotiationMode::SynOptions(negotiation)) => (plan.chain.clone(), Some(negotiation)),
        Some(NegotiationMode::FirstBytes(chain)) => (chain, None),
    };
    let (by, run_dir) = (plan.by.clone(), args.run_dir.path());
    if by.trickles().is_some() {
        revert_stale_changes(&run_dir);
    }
    let config = EngineConfig {
        policies: Policies::uniform(by, chain),
        negotiation,
        parent: nested.map(|nested| nested as Arc<dyn Outbound>),
        ..EngineConfig::new(name, run_dir, Target::Program, args.times.limits())
    };
    let config = config.fitted();
    let listen_sets = config.listen_sets(None)?;
    EngineThread::start(config, listen_sets, AccessLog::default())
}

/// Sends the report on the program's flows, with the counters known when the program ends.
fn send_report(
    wrapper: &ToWrapper,
    report: &Report,
    via: &Interposer,
    flows: Option<&Handle>,
    trickles: bool,
) {
    // Events of the program's last calls may not have arrived yet.
    thread::sleep(REPORT_DELAY);
    let until = Instant::now() + MAX_CLOSE_WAIT;
    while report.awaits_offloaded() && Instant::now() < until {
        thread::sleep(REPORT_DELAY);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let datagrams = via.datagram_counts();
    // A shared master's counters include other runs, so only those of this run's own worker are
    // reported.
    let counters =
        runtime.ok().zip(flows).map(|(runtime, flows)| runtime.block_on(flows.status()).counters);
    let bytes = counters.as_ref().map(|counters| {
        let [out, back] = counters.bytes;
        [out + datagrams.bytes[0], back + datagrams.bytes[1]]
    });
    let lines = report.lines(via.name(), bytes, datagrams.dropped);
    for line in lines.into_iter().chain(counters.as_ref().filter(|_| trickles).map(by_trickles)) {
        wrapper.send(&Message::Print(line));
    }
}

/// Report line with the numbers of flows over Trickles, and over TCP (to servers without Trickles).
fn by_trickles(counters: &ProxyStats) -> String {
    let connected = |trickles: bool| -> u64 {
        let hops = counters.hops.iter().filter(|hop| hop.is_trickles() == trickles);
        hops.flat_map(|hop| hop.connected).sum()
    };
    format!("{} flows by Trickles, {} by TCP", connected(true), connected(false))
}

fn start(command: &[OsString], control: Option<&str>, interposer: &Interposer) -> Result<u32> {
    let [program, arguments @ ..] = command else { bail!("no program is given") };
    // Terminal signals are meant for the program. This process must ignore them, because it
    // detaches from the terminal only after the program has started.
    inherited_state::ignore_terminal();
    let fresh = || {
        let mut command = command_of(program, arguments, is_activated());
        match control {
            Some(control) => command.env(aware::CONTROL, control),
            None => command.env_remove(aware::CONTROL),
        };
        inherited_state::restore_in(&mut command);
        command
    };
    interposer.start(fresh).map_err(|error| {
        let Some(own) = error.downcast_ref::<io::Error>() else { return error };
        let code = if own.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_A_PROGRAM };
        Failed(code, format!("{}: {own}", program.to_string_lossy())).into()
    })
}

/// Builds the command of the program. If `activated`, a service manager has passed sockets, and has
/// set `LISTEN_PID` to the wrapper's process ID; the command then sets `LISTEN_PID` to the
/// program's.
fn command_of(program: &OsStr, arguments: &[OsString], activated: bool) -> Command {
    let mut command = match activated {
        false => Command::new(program),
        true => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).arg(program);
            shell
        }
    };
    command.args(arguments);
    command
}

/// Returns whether a service manager has passed sockets to the wrapper (`sd_listen_fds(3)`).
fn is_activated() -> bool {
    let named = env::var("LISTEN_PID").ok().and_then(|pid| pid.parse::<u32>().ok());
    named == Some(std::os::unix::process::parent_id())
}

/// Sends log lines to the wrapper, which prints them while it runs.
fn log(wrapper: &ToWrapper) {
    let wrapper = wrapper.clone();
    let builder = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false);
    let builder = builder.without_time().with_target(false).with_writer(move || wrapper.clone());
    builder.finish().with(log_filter::from_env(LevelFilter::WARN)).init();
}
