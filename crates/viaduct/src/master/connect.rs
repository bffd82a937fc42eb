//! Connection to a shared master by its name, and to a successor after that master has ended.

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

use super::{find_socket, netns_inode};

const RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// Name and socket path of a master.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) name: String,
    socket_path: PathBuf,
}

impl Connector {
    /// Returns a connector to the master `name`, whose socket is in `run_dir`.
    pub(super) fn new(name: &str, run_dir: &Path) -> Connector {
        Connector { name: name.to_owned(), socket_path: find_socket(run_dir, name) }
    }

    /// Connects to the master, and sends the hello. Returns the welcome, which announces the
    /// master's rules. Errors: no master of this name runs, or the master rejects this run.
    pub(super) fn connect(&self) -> Result<(OwnedFd, Welcome)> {
        let (name, at) = (&self.name, self.socket_path.to_string_lossy());
        let socket = seqpacket::connect(&at).map_err(|error| connect_error(name, &at, &error))?;
        let welcome =
            handshake(&socket).with_context(|| format!("cannot join the master {name} ({at})"))?;
        Ok((socket, welcome))
    }

    /// Waits for a successor with the rules and offload of `promised`, on which running programs
    /// rely.
    pub(super) fn reconnect(&self, promised: &Welcome) -> OwnedFd {
        let name = &self.name;
        let mut is_another = false;
        loop {
            thread::sleep(RECONNECT_INTERVAL);
            let Ok((socket, welcome)) = self.connect() else { continue };
            if (welcome.rules, welcome.offload) == (promised.rules, promised.offload) {
                warn!("the master {name} runs again and carries new flows");
                return socket;
            }
            if !std::mem::replace(&mut is_another, true) {
                warn!(
                    "the master {name} runs again, but with different rules: new flows of running \
                     programs are refused; restart the programs"
                );
            }
        }
    }
}

/// Sends the hello, and returns the welcome. Errors: the master rejects this run; the message has
/// the reason.
fn handshake(socket: &OwnedFd) -> Result<Welcome> {
    let network = netns_inode().context("cannot read the network namespace")?;
    seqpacket::send(socket, &Up::Hello { network }.emit(), None)?;
    let mut bytes = vec![0; WELCOME];
    let (length, _) = seqpacket::receive(socket, &mut bytes)?;
    match Answer::parse(&bytes[..length]) {
        Some(Answer::Welcome(welcome)) => Ok(welcome),
        Some(Answer::Done(Errno::XDEV)) => {
            bail!(
                "it is in another network namespace, where it cannot reach the program's \
                    destinations"
            )
        }
        Some(Answer::Done(Errno::PERM)) => bail!("only its user and root may use it"),
        Some(Answer::Done(Errno::AGAIN)) => {
            bail!("it has reached its limit of runs (viaduct master --user-runs)")
        }
        _ if length == 0 => bail!("it accepts no more programs"),
        _ => bail!("it is of another version of viaduct: install the same version for both"),
    }
}

fn connect_error(name: &str, at: &str, error: &io::Error) -> anyhow::Error {
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
        PermissionDenied => anyhow::anyhow!("{at}: only the master's user and root may use it"),
        _ => anyhow::anyhow!("the master {name} cannot be reached at {at}: {error}"),
    }
}
