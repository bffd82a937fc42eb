//! `viaduct upgrade`: asks a running proxy or gateway to continue in a process of the installed
//! version.
//!
//! ```text
//!   upgrade ── request ──▶ NAME.upgrade ──▶ handover in the service: starts the new process
//! ```

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use viaduct_sys::socket::seqpacket;

use crate::handover::{Reply, Report, Request};
use crate::status::ServiceSelector;
use crate::stdout::print_line;

/// Maximum length of a reply in bytes.
const MAX_REPLY: usize = 64 << 10;

/// Options of `viaduct upgrade`.
#[derive(Debug, clap::Args)]
pub struct UpgradeArgs {
    #[command(flatten)]
    selector: ServiceSelector,
    /// Program to continue in [default: the file from which the service was started]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Upgrades the selected service, and prints the result.
pub fn run(args: &UpgradeArgs) -> Result<()> {
    let status = args.selector.only(|path| path.with_extension("upgrade").exists())?;
    let name = status.file_stem().map(|name| name.to_string_lossy().into_owned());
    // The service may have a different working directory.
    let program = args.program.as_ref().map(|path| {
        path.canonicalize().with_context(|| format!("program: cannot find {}", path.display()))
    });
    let request = Request { program: program.transpose()? };
    match ask(&status.with_extension("upgrade"), &request)? {
        Reply::Upgraded(report) if args.json => {
            print_line!("{}", serde_json::to_string(&report)?)
        }
        Reply::Upgraded(Report { old, new, flows: 0, peers }) if peers > 0 => print_line!(
            "{}: process {new} continues the sessions with {peers} peers; process {old} ends",
            name.unwrap_or_default()
        ),
        Reply::Upgraded(Report { old, new, flows, peers }) if peers > 0 => print_line!(
            "{}: process {new} continues the sessions with {peers} peers, and {flows} flows; \
             process {old} ends after its last",
            name.unwrap_or_default()
        ),
        Reply::Upgraded(Report { old, new, flows, .. }) => print_line!(
            "{}: process {new} continues with {flows} flows; process {old} ends after its last",
            name.unwrap_or_default()
        ),
        Reply::Refused(why) => bail!("not upgraded, nothing has changed: {why}"),
    }
}

fn ask(socket: &Path, request: &Request) -> Result<Reply> {
    let at = socket.display();
    let path = socket.to_str().with_context(|| format!("{at}: not a valid path"))?;
    let connection = seqpacket::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "there is no {at}: only a gateway, or a proxy without on-demand, can be upgraded, \
             and only if its version has this command; restart the service instead"
        ),
        ErrorKind::ConnectionRefused => {
            anyhow!("no service answers at {at}: the service that created it was killed")
        }
        ErrorKind::PermissionDenied => {
            anyhow!("{at}: only root and the service's user may upgrade it")
        }
        _ => anyhow!("no service answers at {at}: {error}"),
    })?;
    seqpacket::send(&connection, &serde_json::to_vec(request)?, None)?;
    let mut bytes = vec![0; MAX_REPLY];
    let (length, _) = seqpacket::receive(&connection, &mut bytes)?;
    if length == 0 {
        bail!("the service has ended");
    }
    serde_json::from_slice(&bytes[..length]).context("the service may be of another version")
}
