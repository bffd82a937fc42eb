//! Start of programs that run until dropped, and the status that Viaduct's own programs report.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::de::DeserializeOwned;
use viaduct_sys::process::Process;

use crate::stop;
use crate::topology::Node;

/// Time limit for a program to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Starts `command` in `node` with its output in the file `log`, and waits until `is_ready`
/// returns true. Fails if the program ends or is not ready in time; the error contains the
/// program's output.
pub(crate) fn start(
    node: &Node,
    mut command: Command,
    log: &Path,
    is_ready: impl Fn() -> Result<bool>,
) -> Result<Process> {
    let program = command.get_program().to_string_lossy().into_owned();
    let file = File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut process = node.spawn(command)?;
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_ready()? {
        stop::check()?;
        if matches!(process.try_wait(), Ok(Some(_))) || Instant::now() > deadline {
            let said = fs::read_to_string(log)?;
            bail!("{program} in {} is not ready; its output: {said}", node.name());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(process)
}

/// Reads the status at a status socket.
pub(crate) fn status<T: DeserializeOwned>(socket: &Path) -> Result<T> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(serde_json::from_str(&io::read_to_string(stream)?)?)
}
