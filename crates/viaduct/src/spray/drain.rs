//! List of drained replicas in the service's directory, which `viaduct spray drain` changes while
//! the service runs.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use tracing::warn;
use viaduct_sys::journal::{read_unlinked, replace_file};
use viaduct_sys::process::dir_lock::DirLock;

use super::ReplicaArgs;
use super::status::{ReplicaStatus, SprayStatus};
use crate::run_dir::running;
use crate::status_socket;

/// Time within which a service must apply a changed list.
const APPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between queries of the status until the service has applied the list.
const POLL: Duration = Duration::from_millis(20);
/// Maximum length of a status in bytes.
const MAX_STATUS: usize = 1 << 20;
/// Maximum length of a list in bytes.
const MAX_LIST: u64 = 1 << 20;

/// List of drained replicas, one name a line.
#[derive(Debug)]
pub struct DrainList {
    path: PathBuf,
    /// Modification time and length of the file that was read; `None` if there was no file.
    read: Option<(SystemTime, u64)>,
    names: BTreeSet<String>,
    /// Reason why the file cannot be read; `None` if `names` is its content.
    fault: Option<String>,
}

impl DrainList {
    /// Reads the list of the service `name`, which is empty if there is no file.
    pub fn open(run_dir: &Path, name: &str) -> DrainList {
        let path = path(run_dir, name);
        let mut list = DrainList { path, read: None, names: BTreeSet::new(), fault: None };
        list.reload();
        list
    }

    /// Reads the file again if it has changed; returns whether the names have changed. A file that
    /// cannot be read changes nothing.
    pub fn reload(&mut self) -> bool {
        let meta = fs::symlink_metadata(&self.path);
        let stamp = meta.ok().and_then(|meta| Some((meta.modified().ok()?, meta.len())));
        if stamp == self.read && self.fault.is_none() {
            return false;
        }
        match read(&self.path) {
            Ok(names) => {
                (self.read, self.fault) = (stamp, None);
                std::mem::replace(&mut self.names, names) != self.names
            }
            Err(error) => {
                let fault = format!(
                    "the drained replicas stay as they are, because {} cannot be read: {error}",
                    self.path.display()
                );
                if self.fault.as_ref() != Some(&fault) {
                    warn!("{fault}");
                }
                self.fault = Some(fault);
                false
            }
        }
    }

    /// Returns whether a replica is drained.
    pub fn has(&self, replica: &str) -> bool {
        self.names.contains(replica)
    }

    /// Reason why the list cannot be read; `None` if it was read.
    pub fn fault(&self) -> Option<&String> {
        self.fault.as_ref()
    }
}

fn path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("spray-{name}.drain"))
}

/// Reads a list, which is empty if there is no file. The directory may belong to another user.
fn read(path: &Path) -> io::Result<BTreeSet<String>> {
    let bytes = match read_unlinked(path, MAX_LIST) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let text = String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData)?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Drains or resumes replicas of a running service, and waits until the service has done so.
///
/// # Errors
/// The service does not run, has no such replica, or does not apply the list in time; the list
/// cannot be read or written; or a replica to be resumed is drained in the config.
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
    write(&path(run_dir, &args.name), &args.replicas, drain)?;
    wait_until(&socket, &args.replicas, drain)
}

/// Adds replicas to the list, or removes them from it.
fn write(path: &Path, replicas: &[String], drain: bool) -> Result<()> {
    let _lock = DirLock::around(path)?;
    let mut names = read(path).with_context(|| format!("cannot read {}", path.display()))?;
    for replica in replicas {
        match drain {
            true => names.insert(replica.clone()),
            false => names.remove(replica),
        };
    }
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    replace_file(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Waits until these replicas are drained or, if `drained` is false, resumed.
fn wait_until(socket: &Path, replicas: &[String], drained: bool) -> Result<()> {
    let deadline = Instant::now() + APPLY_TIMEOUT;
    loop {
        let now = status(socket)?;
        let is_one = |known: &&ReplicaStatus| replicas.contains(&known.name);
        let of_config = |known: &&ReplicaStatus| !drained && known.is_drained_by_config;
        if let Some(other) = now.replicas.iter().filter(is_one).find(of_config) {
            let name = &other.name;
            bail!("replica {name} has `drain = true` in the config, which takes precedence");
        }
        let Some(why) = pending(&now, replicas, drained) else { return Ok(()) };
        if Instant::now() > deadline {
            bail!("not applied within {} s: {why}", APPLY_TIMEOUT.as_secs());
        }
        thread::sleep(POLL);
    }
}

/// Reason why these replicas are not yet drained or resumed; `None` if the rules in force match.
fn pending(now: &SprayStatus, replicas: &[String], drained: bool) -> Option<String> {
    let differs = |known: &&ReplicaStatus| {
        let has_changed = known.is_drained == drained && !(drained && known.share > 0.0);
        replicas.contains(&known.name) && !has_changed
    };
    let unchanged = now.replicas.iter().find(differs);
    let unchanged = unchanged.map(|known| format!("replica {} is unchanged", known.name));
    now.drain_fault.clone().or_else(|| now.fault.clone()).or(unchanged)
}

fn status(socket: &Path) -> Result<SprayStatus> {
    let text = status_socket::read(socket, MAX_STATUS, APPLY_TIMEOUT);
    let text = text.with_context(|| format!("no service answers at {}", socket.display()))?;
    Ok(status_socket::parse(&text)?)
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

    #[test]
    fn an_unreadable_list_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("viaduct-undrain-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = path(&dir, "www");
        write(&path, &["b1".to_owned()], true).unwrap();
        let mut list = DrainList::open(&dir, "www");
        fs::write(&path, [b'b', 0xff, b'\n', b'\n']).unwrap();
        assert!(!list.reload() && list.has("b1") && list.fault().is_some());
        assert!(write(&path, &["b2".to_owned()], true).is_err());
        fs::write(&path, "b2\n").unwrap();
        assert!(list.reload() && list.has("b2") && list.fault().is_none());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_list_is_neither_read_nor_written() {
        let dir = std::env::temp_dir().join(format!("viaduct-linked-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (path, other) = (path(&dir, "www"), dir.join("other"));
        fs::write(&other, "secret\n").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(write(&path, &["b1".to_owned()], true).is_err());
        let list = DrainList::open(&dir, "www");
        assert!(!list.has("secret") && list.fault().is_some());
        assert_eq!(fs::read_to_string(&other).unwrap(), "secret\n");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_replica_is_drained_only_if_the_rules_in_force_send_it_nothing() {
        let replica = |name: &str, is_drained, share| ReplicaStatus {
            name: name.to_owned(),
            is_drained,
            share,
            ..ReplicaStatus::default()
        };
        let replicas = vec![replica("b1", false, 1.0), replica("b2", true, 0.0)];
        let mut now = SprayStatus { replicas, ..SprayStatus::default() };
        let names = ["b2".to_owned()];
        let is_pending = |now: &SprayStatus, drained| pending(now, &names, drained).is_some();
        assert!(!is_pending(&now, true) && is_pending(&now, false));
        now.replicas[1].share = 0.5;
        assert!(is_pending(&now, true));
        now.replicas[1].share = 0.0;
        now.fault = Some("the rules cannot be installed".to_owned());
        assert_eq!(pending(&now, &names, true), now.fault);
    }
}
