//! What we change on the system, written down before it is changed, so that it is put back:
//! on exit by us, after kill -9 by the next start.
//!
//! ```text
//!   offload_off, route_mtu, mss_clamp, sysctl:
//!      read how it is --> write it to the journal (fsync, rename) --> change it
//!   restore, drop, or the next open after a kill:
//!      undo each, the last first --> delete the journal
//! ```
//!
//! Each undoing may be repeated, so being killed in the middle of one does no harm either. The
//! journal names its owner by process id and start time; a second owner is refused while the first
//! lives. A journal from before a reboot, or of another network namespace, tells of things that
//! are gone, and is deleted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::claim::Claim;
use crate::hold::Hold;
use crate::intercept::Intercept;
use crate::keep_out::KeepOut;
use crate::nft::{MssClamp, NftError};
use crate::offload::{OffloadError, OffloadState};
use crate::route::{RouteError, RouteMtu};
use crate::sysctl::{Sysctl, SysctlError};
use crate::tool::ToolError;

/// How long a process that was killed may take to be gone: it may be seen as dead while its last threads
/// and descriptors still go.
const DYING: Duration = Duration::from_millis(500);

/// Why a change was not made, not written down or not put back.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process is at work.
    #[error(
        "{} is in use by process {pid}, which is running: stop it, or choose another name or \
         run directory", path.display()
    )]
    Busy {
        /// The journal.
        path: PathBuf,
        /// Its owner.
        pid: u32,
    },
    /// Another process has rules of the same port in this network namespace.
    #[error(
        "the nftables table viaduct_{0} is another process's, which runs or still ends its flows: \
         wait for its end, or listen at another port"
    )]
    Claimed(String),
    /// The journal cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// `read`, `write` or `delete`.
        action: &'static str,
        /// The journal.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The journal is something else.
    #[error(
        "{} is no journal of changes; delete it and see to offloads, routes and nftables yourself, \
         or name another run_dir", path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// What was wrong.
        source: serde_json::Error,
    },
    /// Some of it could not be put back; it is still in the journal.
    #[error("not put back, and tried again at the next start: {}", .0.join("; "))]
    Restore(Vec<String>),
    /// An interface's offloads.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A route.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The nftables table.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// A kernel setting.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

impl From<ToolError> for JournalError {
    fn from(error: ToolError) -> Self {
        JournalError::Route(error.into())
    }
}

/// The changes that this process has made. Dropping it puts all of them back.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
    journal: Journal,
    warnings: Vec<String>,
    took_over: bool,
    /// Tables that no other process may make or delete. Dropped after all was put back.
    claims: Vec<(String, Claim)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    owner: Owner,
    changes: Vec<Change>,
    /// What an earlier owner has left whose tables are another process's now. It is not ours to put
    /// back, as long as that lives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    disputed: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Offload(OffloadState),
    Route(RouteMtu),
    Mss(MssClamp),
    Intercept(Intercept),
    Hold(Hold),
    KeepOut(KeepOut),
    Sysctl(Sysctl),
}

impl Changes {
    /// Takes over the journal at `path`: puts back what an owner that died has left, and starts
    /// with no changes. Call it, and all else here, from a thread of the network namespace that
    /// is to be changed.
    ///
    /// # Errors
    /// A live owner, or a file that cannot be used. What cannot be put back is a warning only.
    pub fn open(path: &Path) -> Result<Changes, JournalError> {
        let failed = |source| JournalError::File { action: "read", path: path.to_owned(), source };
        let owner = Owner::this_process().map_err(failed)?;
        let (mut changes, mut disputed) = (Vec::new(), Vec::new());
        let (mut warnings, mut took_over) = (Vec::new(), false);
        if let Some(left) = read(path)? {
            if eventually(|| (!left.owner.is_running()).then_some(())).is_none() {
                return Err(JournalError::Busy { path: path.to_owned(), pid: left.owner.pid });
            }
            if left.owner.same_world(&owner) {
                let all = [left.disputed, left.changes].concat();
                let count = all.len();
                (disputed, (changes, warnings)) = undo_unclaimed(all);
                took_over = disputed.len() < count;
            }
        }
        // Not earlier: dropping it deletes the journal, which until here may be another's.
        let journal = Journal { owner, changes, disputed };
        let claims = Vec::new();
        let changes = Changes { path: path.to_owned(), journal, warnings, took_over, claims };
        changes.save()?;
        Ok(changes)
    }

    /// What an earlier owner left behind and could not be put back, for the log. It stays in the
    /// journal and is tried again by [`Changes::restore`].
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether an earlier owner was killed and what it had changed was put back.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// Switches off segmentation, coalescing and checksum offload of `interface`.
    ///
    /// # Errors
    /// As [`OffloadState`]'s; nothing is left changed.
    pub fn offload_off(&mut self, interface: &str) -> Result<(), JournalError> {
        let state = OffloadState::read(interface)?;
        self.make(&Change::Offload(state))
    }

    /// Lowers the MTU towards `prefix` through `dev`.
    ///
    /// # Errors
    /// As [`RouteMtu::plan`]'s; nothing is left changed.
    pub fn route_mtu(
        &mut self,
        prefix: (IpAddr, u8),
        dev: &str,
        mtu: u32,
    ) -> Result<(), JournalError> {
        self.make(&Change::Route(RouteMtu::plan(prefix, dev, mtu)?))
    }

    /// Clamps the MSS of forwarded SYNs.
    ///
    /// # Errors
    /// As [`MssClamp::apply`]'s; nothing is left changed.
    pub fn mss_clamp(&mut self, clamp: MssClamp) -> Result<(), JournalError> {
        clamp.check()?;
        self.make(&Change::Mss(clamp))
    }

    /// Makes sure of the tables of `instance` before anything is changed for it.
    ///
    /// # Errors
    /// Another process of this network namespace has them.
    pub fn claim(&mut self, instance: &str) -> Result<(), JournalError> {
        if self.claims.iter().any(|(ours, _)| ours == instance) {
            return Ok(());
        }
        let claim = claim(instance).ok_or_else(|| JournalError::Claimed(instance.to_owned()))?;
        self.claims.push((instance.to_owned(), claim));
        Ok(())
    }

    /// Hands connections to a proxy on this machine.
    ///
    /// # Errors
    /// As [`Changes::claim`]'s and [`Intercept::apply`]'s; nothing is left changed.
    pub fn intercept(&mut self, intercept: Intercept) -> Result<(), JournalError> {
        intercept.check()?;
        self.claim(&intercept.instance)?;
        self.make(&Change::Intercept(intercept))
    }

    /// Has the kernel hold SYNs until a proxy says what becomes of them.
    ///
    /// # Errors
    /// As [`Changes::claim`]'s and [`Hold::apply`]'s; nothing is left changed.
    pub fn hold(&mut self, hold: Hold) -> Result<(), JournalError> {
        hold.check()?;
        self.claim(&hold.instance)?;
        self.make(&Change::Hold(hold))
    }

    /// Keeps marked packets from this machine's TCP.
    ///
    /// # Errors
    /// As [`Changes::claim`]'s and [`KeepOut::apply`]'s; nothing is left changed.
    pub fn keep_out(&mut self, keep_out: KeepOut) -> Result<(), JournalError> {
        keep_out.check()?;
        self.claim(&keep_out.instance)?;
        self.make(&Change::KeepOut(keep_out))
    }

    /// Has new connections pass by what [`Changes::intercept`] has led somewhere; those that have begun
    /// are led there still.
    ///
    /// # Errors
    /// As [`Intercept::pass_by`]'s.
    pub fn pass_by(&mut self) -> Result<(), JournalError> {
        for change in &mut self.journal.changes {
            if let Change::Intercept(intercept) = change {
                intercept.passed_by = true;
                // Where somebody has taken the rules away they are made anew.
                intercept.pass_by().or_else(|_| intercept.apply())?;
            }
        }
        self.save()
    }

    /// Sets a kernel setting, named as below `/proc/sys`, with slashes.
    ///
    /// # Errors
    /// As [`Sysctl`]'s; nothing is left changed.
    pub fn sysctl(&mut self, name: &str, value: &str) -> Result<(), JournalError> {
        self.make(&Change::Sysctl(Sysctl::plan(name, value)?))
    }

    /// How many changes are in force: where [`Changes::restore_since`] may go back to.
    pub fn mark(&self) -> usize {
        self.journal.changes.len()
    }

    /// Makes the changes before `mark` once more, should somebody else have undone them.
    ///
    /// # Errors
    /// As when they were made.
    pub fn repeat(&self, mark: usize) -> Result<(), JournalError> {
        self.journal.changes.iter().take(mark).try_for_each(Change::apply)
    }

    /// Makes what somebody else has taken away of tables and rules once more; whether there was
    /// anything.
    ///
    /// # Errors
    /// As when it was made.
    pub fn repair(&self) -> Result<bool, JournalError> {
        let mut repaired = false;
        for change in &self.journal.changes {
            if !change.is_there()? {
                change.apply()?;
                repaired = true;
            }
        }
        Ok(repaired)
    }

    /// Puts back what was changed since `mark`, the last change first.
    ///
    /// # Errors
    /// What could not be put back; it stays in the journal.
    pub fn restore_since(&mut self, mark: usize) -> Result<(), JournalError> {
        // A journal that cannot be written now must be known before anything is undone.
        self.save()?;
        let since = self.journal.changes.split_off(mark.min(self.mark()));
        let (left, failures) = undo_all(since);
        self.journal.changes.extend(left);
        self.save()?;
        if failures.is_empty() { Ok(()) } else { Err(JournalError::Restore(failures)) }
    }

    /// Puts everything back, the last change first, and deletes the journal.
    ///
    /// # Errors
    /// What could not be put back; it stays in the journal.
    pub fn restore(mut self) -> Result<(), JournalError> {
        self.put_back()
    }

    fn make(&mut self, change: &Change) -> Result<(), JournalError> {
        self.journal.changes.push(change.clone());
        let made = self.save().and_then(|()| change.apply());
        if made.is_err() {
            // Some of it may have been done. If it cannot be undone it stays in the journal.
            if change.undo().is_ok() {
                self.journal.changes.pop();
            }
            self.save()?;
        }
        made
    }

    fn put_back(&mut self) -> Result<(), JournalError> {
        let (left, errors) = undo_all(std::mem::take(&mut self.journal.changes));
        self.journal.changes = left;
        if !errors.is_empty() {
            self.save()?;
            return Err(JournalError::Restore(errors));
        }
        if !self.journal.disputed.is_empty() {
            return self.save();
        }
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(JournalError::File { action: "delete", path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn save(&self) -> Result<(), JournalError> {
        let saved = serde_json::to_vec_pretty(&self.journal)
            .map_err(io::Error::from)
            .and_then(|bytes| replace_file(&self.path, &bytes));
        saved.map_err(|source| JournalError::File {
            action: "write",
            path: self.path.clone(),
            source,
        })
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        // What fails is in the journal still, and the next start says so.
        let _ = self.put_back();
    }
}

impl Change {
    /// The instance whose tables it makes, where another process's may have the same name.
    fn instance(&self) -> Option<&str> {
        match self {
            Change::Intercept(intercept) => Some(&intercept.instance),
            Change::Hold(hold) => Some(&hold.instance),
            Change::KeepOut(keep_out) => Some(&keep_out.instance),
            _ => None,
        }
    }

    /// Whether its tables and rules are in place; what has none is not looked at.
    fn is_there(&self) -> Result<bool, JournalError> {
        Ok(match self {
            Change::Mss(clamp) => clamp.is_there()?,
            Change::Intercept(intercept) => intercept.is_there()?,
            Change::Hold(hold) => hold.is_there()?,
            Change::KeepOut(keep_out) => keep_out.is_there()?,
            Change::Offload(_) | Change::Route(_) | Change::Sysctl(_) => true,
        })
    }

    fn apply(&self) -> Result<(), JournalError> {
        match self {
            Change::Offload(state) => state.switch_off()?,
            Change::Route(route) => route.apply()?,
            Change::Mss(clamp) => clamp.apply()?,
            Change::Intercept(intercept) => intercept.apply()?,
            Change::Hold(hold) => hold.apply()?,
            Change::KeepOut(keep_out) => keep_out.apply()?,
            Change::Sysctl(sysctl) => sysctl.apply()?,
        }
        Ok(())
    }

    fn undo(&self) -> Result<(), JournalError> {
        match self {
            Change::Offload(state) => state.restore()?,
            Change::Route(route) => route.undo()?,
            Change::Mss(clamp) => clamp.undo()?,
            Change::Intercept(intercept) => intercept.undo()?,
            Change::Hold(hold) => hold.undo()?,
            Change::KeepOut(keep_out) => keep_out.undo()?,
            Change::Sysctl(sysctl) => sysctl.undo()?,
        }
        Ok(())
    }
}

/// `None` if another process has the tables of `instance`, and does not end in these moments.
fn claim(instance: &str) -> Option<Claim> {
    eventually(|| Claim::take(&format!("viaduct_{instance}")).ok().flatten())
}

/// What is to be had at once, or when somebody who was killed is gone.
fn eventually<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + DYING;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(DYING / 50);
    }
}

/// As [`undo_all`], but for tables that another process has made its own meanwhile: those changes, and
/// what became of the others.
fn undo_unclaimed(changes: Vec<Change>) -> (Vec<Change>, (Vec<Change>, Vec<String>)) {
    let mut claims = BTreeMap::new();
    for instance in changes.iter().filter_map(Change::instance) {
        claims.entry(instance.to_owned()).or_insert_with(|| claim(instance));
    }
    let is_ours = |change: &Change| change.instance().is_none_or(|name| claims[name].is_some());
    let (ours, disputed) = changes.into_iter().partition(is_ours);
    (disputed, undo_all(ours))
}

/// Undoes the last first; what could not be undone, in order, and why.
fn undo_all(changes: Vec<Change>) -> (Vec<Change>, Vec<String>) {
    let mut left = Vec::new();
    let mut errors = Vec::new();
    for change in changes.into_iter().rev() {
        if let Err(error) = change.undo() {
            errors.push(whole(&error));
            left.insert(0, change);
        }
    }
    (left, errors)
}

/// An error and all that caused it, in one line.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn read(path: &Path) -> Result<Option<Journal>, JournalError> {
    match fs::read(path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(JournalError::File { action: "read", path: path.to_owned(), source }),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| JournalError::Corrupt { path: path.to_owned(), source }),
    }
}

/// The file holds the old bytes or the new ones, whenever the power fails.
fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    if let Err(error) = write_and_rename(Path::new(&new), path, bytes) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

fn write_and_rename(new: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)
}

/// A process, and the world that its changes are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    pid: u32,
    /// Clock ticks after boot; a process id may be given again, but not with the same start.
    started: u64,
    /// The kernel's name for this boot.
    boot: String,
    /// The kernel's name for the network namespace.
    namespace: String,
}

impl Owner {
    fn this_process() -> io::Result<Owner> {
        let pid = process::id();
        let started = start_time(pid).ok_or_else(|| io::Error::other("/proc is not mounted"))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let namespace = fs::read_link("/proc/thread-self/ns/net")?.to_string_lossy().into_owned();
        Ok(Owner { pid, started, boot, namespace })
    }

    fn is_running(&self) -> bool {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        boot.trim() == self.boot && start_time(self.pid) == Some(self.started)
    }

    fn same_world(&self, other: &Owner) -> bool {
        self.boot == other.boot && self.namespace == other.namespace
    }
}

/// When a process that still runs was started.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the state follows it, the start is the 22nd field.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let dead = matches!(*fields.first()?, "Z" | "X");
    if dead { None } else { fields.get(19)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_has_made_its_own_stays_in_the_journal() {
        let path = std::env::temp_dir().join(format!("viaduct-disputed-{}.json", process::id()));
        let intercept = Intercept {
            instance: "disputed_1".to_owned(),
            to_port: 1,
            ways: Vec::new(),
            ports: Vec::new(),
            passed_by: false,
        };
        // No process has ever started so late.
        let owner = Owner { started: u64::MAX, ..Owner::this_process().unwrap() };
        let changes = vec![Change::Intercept(intercept)];
        let left = Journal { owner, changes: changes.clone(), disputed: Vec::new() };
        fs::write(&path, serde_json::to_vec(&left).unwrap()).unwrap();
        let _other = claim("disputed_1").unwrap();
        let mut ours = Changes::open(&path).unwrap();
        assert!(!ours.took_over() && ours.warnings().is_empty());
        let refused = ours.claim("disputed_1").unwrap_err();
        assert!(matches!(refused, JournalError::Claimed(_)), "{refused}");
        drop(ours);
        assert_eq!(read(&path).unwrap().unwrap().disputed, changes);
        fs::remove_file(&path).unwrap();
    }
}
