//! Options of `viaduct proxy`, which have the same names on the command line and in a config file.

use std::os::fd::RawFd;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, Command};

use viaduct_sys::process::confine::Confinement;

use crate::engine::listen_set::InheritedFd;
use crate::settings::ProxyArgs;

/// Options of the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct ProxyOptions {
    /// Config file with a table [proxy] of these options and tables [[policy]]; read again on
    /// SIGHUP
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, print its meaning, and change nothing
    #[arg(long)]
    pub check: bool,
    /// Listeners and taps that the parent process leaves open (--on-demand)
    #[arg(long, value_delimiter = ',', hide = true)]
    pub inherited: Vec<InheritedFd>,
    /// Exit after a successful start: a trial run by the parent process (--on-demand)
    #[arg(long, hide = true)]
    pub rehearse: bool,
    /// Descriptor of the config that the parent process has checked (--on-demand)
    #[arg(long = "told", hide = true)]
    pub config_fd: Option<RawFd>,
    /// Confinement of this process, which a hop agent has started
    #[arg(long, hide = true)]
    pub confined: Option<Confinement>,
    /// Descriptor of the connection to the process that this one replaces (viaduct upgrade)
    #[arg(long, hide = true)]
    pub takeover: Option<RawFd>,
    #[command(flatten)]
    pub args: ProxyArgs,
}

/// Refuses other options together with `--config`, which would have no effect, because all options
/// are then taken from the file.
///
/// # Errors
/// A line that names the first such option.
pub fn check_beside_config(said: &ArgMatches) -> Result<()> {
    let words = |id: &str| said.value_source(id) == Some(ValueSource::CommandLine);
    if !words("config") {
        return Ok(());
    }
    let all = ProxyArgs::augment_args(Command::new("proxy"));
    match all.get_arguments().find(|option| words(option.get_id().as_str())) {
        Some(option) => {
            let name = option.get_long().unwrap_or_default();
            bail!("{name}: with --config all options are in the file's table [proxy]; set it there")
        }
        None => Ok(()),
    }
}
