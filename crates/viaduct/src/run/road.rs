//! Connection to a shared master by its name, and to its successor when it has ended.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context, Result, bail};
use tracing::warn;
use viaduct_proto::wrap::Errno;
use viaduct_proto::wrap::shared::Up;
use viaduct_proto::wrap::wire::{Answer, WELCOME, Welcome};
use viaduct_sys::socket::seqpacket;

use crate::master::{find, network};

/// Interval between attempts to connect to a successor.
const AGAIN: Duration = Duration::from_millis(250);

/// Name and socket path of a master.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) name: String,
    door: PathBuf,
}

impl Road {
    /// Returns the path to the master `name`, whose socket is in `run_dir`.
    pub(super) fn to(name: &str, run_dir: &Path) -> Road {
        Road { name: name.to_owned(), door: find(run_dir, name) }
    }

    /// Connects and greets the master. Returns the welcome, which announces its rules.
    ///
    /// # Errors
    /// No master of this name runs, or it rejects this run.
    pub(super) fn open(&self) -> Result<(OwnedFd, Welcome)> {
        let (name, at) = (&self.name, self.door.to_string_lossy());
        let socket = seqpacket::connect(&at).map_err(|error| refusal(name, &at, &error))?;
        let welcome = greet(&socket).with_context(|| format!("the master {name} ({at})"))?;
        Ok((socket, welcome))
    }

    /// Waits for a successor that carries the flows that were `promised`: programs that run
    /// already know what goes direct.
    pub(super) fn open_again(&self, promised: &Welcome) -> OwnedFd {
        let name = &self.name;
        let mut is_another = false;
        loop {
            thread::sleep(AGAIN);
            let Ok((socket, welcome)) = self.open() else { continue };
            if (welcome.rules, welcome.offload) == (promised.rules, promised.offload) {
                warn!("the master {name} runs again: new flows are its");
                return socket;
            }
            if !std::mem::replace(&mut is_another, true) {
                warn!(
                    "the master {name} runs again and carries other flows than before: programs \
                        that \
                     began before are refused theirs; start them anew"
                );
            }
        }
    }
}

/// Sends the greeting; returns the answer.
fn greet(socket: &OwnedFd) -> Result<Welcome> {
    let network = network().context("ask for the network namespace")?;
    seqpacket::send(socket, &Up::Hello { network }.emit(), None)?;
    let mut bytes = vec![0; WELCOME];
    let (length, _) = seqpacket::receive(socket, &mut bytes)?;
    match Answer::parse(&bytes[..length]) {
        Some(Answer::Welcome(welcome)) => Ok(welcome),
        Some(Answer::Done(Errno::XDEV)) => {
            bail!(
                "it is in another network namespace, where it could not reach what the program \
                    means"
            )
        }
        Some(Answer::Done(Errno::PERM)) => bail!("only its user and root may share it"),
        Some(Answer::Done(Errno::AGAIN)) => {
            bail!("it has as many runs of this user as it takes (viaduct master --user-runs)")
        }
        _ if length == 0 => bail!("it accepts no more programs"),
        _ => bail!("it is of another version of viaduct: have both be the same"),
    }
}

fn refusal(name: &str, at: &str, error: &io::Error) -> anyhow::Error {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    match error.kind() {
        NotFound => anyhow::anyhow!(
            "no master is named {name}: there is no {at}; start one by `viaduct master --name \
                {name}`"
        ),
        ConnectionRefused => anyhow::anyhow!(
            "the master {name} has been killed: no answer at {at}; start it again by `viaduct \
             master --name {name}`"
        ),
        PermissionDenied => anyhow::anyhow!("{at}: only the master's user and root may share it"),
        _ => anyhow::anyhow!("the master {name} cannot be reached at {at}: {error}"),
    }
}
