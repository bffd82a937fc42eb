//! The master: runs the handlers of a program's flows (TESLA, 3.7), and the program.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use viaduct_sys::wrapped::{self, Change};
use viaduct_sys::{inherit, memory};

use super::agree::Begun;
use super::report::Report;
use super::via::Interposer;
use super::wrapper::Word;
use super::{Plan, RunArgs};
use crate::proxy::handle::{Beside, Handle};
use crate::proxy::settings::Settings;

/// How often it is looked whether anybody is left.
const LOOK: Duration = Duration::from_millis(200);
/// How long a report waits for what the program did last.
const SETTLE: Duration = Duration::from_millis(20);
/// How to end if the program is not there, or is none, or if it is Viaduct that cannot: as env(1) does.
const NOT_FOUND: u8 = 127;
const NOT_A_PROGRAM: u8 = 126;
const OUR_FAULT: u8 = 125;

/// The way to the wrapper, for as long as it is there.
#[derive(Clone, Debug)]
struct ToWrapper(Arc<Mutex<UnixStream>>);

impl ToWrapper {
    /// Nobody hears it when the wrapper has gone.
    fn say(&self, word: &Word) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.write_all(word.line().as_bytes());
    }
}

impl io::Write for ToWrapper {
    /// A line of the log.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.say(&Word::Say(String::from_utf8_lossy(bytes).trim_end().to_owned()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs the handlers, and the program above them; `fd` leads to the wrapper.
pub fn run(fd: RawFd, args: &RunArgs, plan: &Plan) -> Result<ExitCode> {
    let stream = UnixStream::from(inherit::take(fd).context("take the wrapper's socket")?);
    let wrapper = ToWrapper(Arc::new(Mutex::new(stream)));
    log(&wrapper);
    if let Err(error) = serve(&wrapper, args, plan) {
        let failed = error.downcast_ref::<Failed>().map_or(OUR_FAULT, |failed| failed.0);
        wrapper.say(&Word::Failed(failed, format!("{error:#}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// A program that cannot be started: how to end.
#[derive(Debug, thiserror::Error)]
#[error("{1}")]
struct Failed(u8, String);

fn serve(wrapper: &ToWrapper, args: &RunArgs, plan: &Plan) -> Result<()> {
    let name = format!("run-{}", std::process::id());
    let agreed = plan.agree.as_ref().map(|agree| agree.begin(args.via, &plan.chain));
    let (chain, agreeing) = match agreed.transpose()? {
        None => (plan.chain.clone(), None),
        Some(Begun::Offering(agreeing)) => (plan.chain.clone(), Some(agreeing)),
        Some(Begun::Greeting(chain)) => (chain, None),
    };
    let mut settings = Settings::for_programs(name, chain, "/run/viaduct".into());
    settings.agreeing = agreeing;
    let flows = Beside::start(settings)?;
    if let Some(names) = &plan.names {
        names.begin()?;
    }
    let worker = flows.handle.worker().context("no worker runs")?;
    let interposer = Interposer::new(args.via, plan, worker)?;
    if let (Some(names), Interposer::Cgroup(_)) = (&plan.names, &interposer) {
        names.check_daemons()?;
    }
    let program = start(&args.command, &interposer)?;
    wrapper.say(&Word::Runs(program));
    wrapped::adopt_orphans()?;
    wrapped::leave_terminal().context("leave the terminal")?;
    memory::let_go_of_start()?;
    loop {
        let change = wrapped::wait(program).context("wait for the program")?;
        let ended = matches!(change, Change::Exited(_) | Change::Killed(_));
        if ended && let Some(report) = &plan.report {
            say_report(wrapper, report, interposer.name(), &flows.handle);
        }
        wrapper.say(&Word::Did(change));
        if ended {
            break;
        }
    }
    // Others of its tree may be left; and what they have written is still on its way.
    while !interposer.is_alone()? {
        thread::sleep(LOOK);
    }
    flows.handle.drain();
    while !flows.is_over() {
        thread::sleep(LOOK);
    }
    flows.end()
}

/// What became of the program's flows, as far as it is known when it ends.
fn say_report(wrapper: &ToWrapper, report: &Report, via: &str, flows: &Handle) {
    // What it did last is still on its way here.
    thread::sleep(SETTLE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let bytes = runtime.map(|runtime| runtime.block_on(flows.status()).counters.bytes);
    for line in report.lines(via, bytes.unwrap_or_default()) {
        wrapper.say(&Word::Say(line));
    }
}

fn start(command: &[OsString], interposer: &Interposer) -> Result<u32> {
    let [program, arguments @ ..] = command else { anyhow::bail!("no program is given") };
    let fresh = || {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    };
    interposer.start(fresh).map_err(|error| {
        let Some(own) = error.downcast_ref::<io::Error>() else { return error };
        let code = if own.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_A_PROGRAM };
        Failed(code, format!("{}: {own}", program.to_string_lossy())).into()
    })
}

/// What is logged is said by the wrapper, while it is there.
fn log(wrapper: &ToWrapper) {
    let filter = EnvFilter::try_from_env("VIADUCT_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let wrapper = wrapper.clone();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    builder.without_time().with_target(false).with_writer(move || wrapper.clone()).init();
}
