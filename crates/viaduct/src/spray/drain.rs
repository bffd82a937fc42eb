//! List of drained replicas in the service's directory, which `viaduct spray drain` changes while
//! the service runs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use viaduct_sys::journal::replace_file;
use viaduct_sys::process::dir_lock::DirLock;

use super::ReplicaArgs;
use super::status::SprayStatus;
use crate::run_dir::running;

/// Time within which a service must read a changed list.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between queries of the status until the service has read the list.
const POLL: Duration = Duration::from_millis(20);

/// List of drained replicas, one name a line.
#[derive(Debug)]
pub struct DrainList {
    path: PathBuf,
    read: Option<(SystemTime, u64)>,
    names: BTreeSet<String>,
}

impl DrainList {
    /// Reads the list of the service `name`, which is empty if there is no file.
    pub fn open(run_dir: &Path, name: &str) -> DrainList {
        let path = run_dir.join(format!("spray-{name}.drain"));
        let mut list = DrainList { path, read: None, names: BTreeSet::new() };
        list.reload();
        list
    }

    /// Reads the file again if it has changed; returns whether the names have changed.
    pub fn reload(&mut self) -> bool {
        let meta = fs::metadata(&self.path);
        let stamp = meta.ok().and_then(|meta| Some((meta.modified().ok()?, meta.len())));
        if stamp == self.read {
            return false;
        }
        self.read = stamp;
        let names = read(&self.path);
        std::mem::replace(&mut self.names, names) != self.names
    }

    /// Returns whether a replica is drained.
    pub fn has(&self, replica: &str) -> bool {
        self.names.contains(replica)
    }
}

fn read(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Drains or resumes replicas of a running service, and waits until the service has done so.
///
/// # Errors
/// The service does not run, has no such replica, or does not read the list in time; the list
/// cannot be written; or a replica to be resumed is drained in the config.
pub fn change(args: &ReplicaArgs, drain: bool) -> Result<()> {
    let socket = running(args.run_dir.path().join(format!("spray-{}.sock", args.name)));
    let run_dir = socket.parent().unwrap_or(Path::new("."));
    let status = status(&socket)?;
    for replica in &args.replicas {
        if !status.replicas.iter().any(|known| known.name == *replica) {
            let known: Vec<_> = status.replicas.iter().map(|known| &known.name[..]).collect();
            bail!("there is no replica {replica}; there are {}", known.join(", "));
        }
    }
    let mut list = DrainList::open(run_dir, &args.name);
    {
        let _lock = DirLock::around(&list.path)?;
        list.names = read(&list.path);
        for replica in &args.replicas {
            match drain {
                true => list.names.insert(replica.clone()),
                false => list.names.remove(replica),
            };
        }
        let text: String = list.names.iter().map(|name| format!("{name}\n")).collect();
        let written = replace_file(&list.path, text.as_bytes());
        written.with_context(|| format!("cannot write {}", list.path.display()))?;
    }
    wait_until(&socket, &args.replicas, drain)
}

/// Waits until the service reports these replicas as drained, or, if `drained` is false, as not
/// drained.
fn wait_until(socket: &Path, replicas: &[String], drained: bool) -> Result<()> {
    let deadline = Instant::now() + READ_TIMEOUT;
    loop {
        let now = status(socket)?.replicas;
        let of = |name: &String| now.iter().find(|known| known.name == *name);
        let differ = |name: &&String| of(name).is_some_and(|known| known.is_drained != drained);
        let Some(other) = replicas.iter().find(differ) else { return Ok(()) };
        if of(other).is_some_and(|known| known.is_drained_by_config) {
            bail!("replica {other} has `drain = true` in the config, which takes precedence");
        }
        if Instant::now() > deadline {
            bail!("the service has not read the list within {} s", READ_TIMEOUT.as_secs());
        }
        thread::sleep(POLL);
    }
}

fn status(socket: &Path) -> Result<SprayStatus> {
    let ask = || -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.shutdown(Shutdown::Write)?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(text)
    };
    let text = ask().with_context(|| format!("no service answers at {}", socket.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_list_is_read_again() {
        let dir = std::env::temp_dir().join(format!("viaduct-drain-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut list = DrainList::open(&dir, "www");
        assert!(!list.reload() && !list.has("b1"));
        fs::write(dir.join("spray-www.drain"), "b1\n\n b2 \n").unwrap();
        assert!(list.reload() && list.has("b1") && list.has("b2"));
        assert!(!list.reload());
        fs::remove_dir_all(&dir).unwrap();
        assert!(list.reload() && !list.has("b1"));
    }
}
