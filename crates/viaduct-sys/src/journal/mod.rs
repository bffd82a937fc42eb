//! Journal of system changes. Each change is recorded before it is made, so that all changes are
//! undone: by this process when it exits, or by the next start after kill -9.
//!
//! ```text
//!   each change (offload_off, route_mtu, intercept, ...):
//!      read the old state --> write it to the journal (fsync, rename) --> make the change
//!   restore, drop, or the next open after a kill:
//!      undo each change, the last one first --> delete the journal
//! ```
//!
//! Undoing a change twice is harmless, so the process may be killed while it undoes a change. The
//! journal names its owner by process ID and start time; a second owner is refused while the first
//! is alive. A journal from before a reboot, or of another network namespace, describes changes
//! that no longer exist, and is discarded.
//!
//! | part | content |
//! |---|---|
//! | `change` | one change: made, checked, undone |
//! | `file` | the file, replaced atomically |
//! | `owner` | the owner, and whether it is alive |
//! | `handover` | change of the owner while the changes stay in place |
//! | `trust` | checks that no other user could have written the journal |
//! | `error` | errors |

mod change;
mod error;
mod file;
mod handover;
mod owner;
mod trust;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use self::change::{Change, undo_all, undo_unlocked};
pub use self::error::JournalError;
use self::file::{Journal, read, remove_temporary};
pub use self::file::{replace_file, replace_secret_file};
use self::owner::{Owner, eventually, lock_instance};
pub use self::trust::read_unlinked;
use crate::capture::offload::OffloadState;
use crate::nft::intercept::Intercept;
use crate::nft::mss_clamp::MssClamp;
use crate::nft::path_rules::PathRules;
use crate::nft::rst_guard::RstGuard;
use crate::nft::spray::Spray;
use crate::nft::syn_hold::SynHold;
use crate::nft::table::Table as _;
use crate::process::dir_lock::DirLock;
use crate::process::instance_lock::InstanceLock;
use crate::route::mtu::RouteMtu;
use crate::route::sysctl::Sysctl;

/// Returns the number of changes in a journal; `None` if `bytes` are not a journal. For fuzzing.
pub fn count(bytes: &[u8]) -> Option<usize> {
    file::parse(bytes).ok().map(|journal| journal.changes.len() + journal.disputed.len())
}

/// Changes that this process has made. All are undone on drop.
#[derive(Debug)]
pub struct Changes {
    path: PathBuf,
    journal: Journal,
    warnings: Vec<String>,
    took_over: bool,
    /// Locked instances, whose tables are ours alone. Dropped after all changes are undone.
    locks: Vec<(String, InstanceLock)>,
    /// True if dropping leaves the changes and the journal in place, because another process is
    /// responsible for them.
    is_left: bool,
}

impl Changes {
    /// Takes over the journal at `path`: undoes the changes of an earlier owner that has died, and
    /// starts without changes. This and all other methods must be called from a thread in the
    /// network namespace that is to be changed. Errors: the journal's owner is alive, or the file
    /// cannot be used. Changes that cannot be undone only cause warnings.
    pub fn open(path: &Path) -> Result<Changes, JournalError> {
        let failed = |source| JournalError::File { action: "read", path: path.to_owned(), source };
        let owner = Owner::this_process().map_err(failed)?;
        // With this lock, the second of two processes that start at the same time finds the journal
        // of the first.
        let _lock = DirLock::around(path).map_err(failed)?;
        let (mut changes, mut disputed) = (Vec::new(), Vec::new());
        let (mut warnings, mut took_over) = (Vec::new(), false);
        if let Some(left) = read(path)? {
            if eventually(|| (!left.owner.is_running()).then_some(())).is_none() {
                return Err(JournalError::Busy { path: path.to_owned(), pid: left.owner.pid });
            }
            if left.owner.is_same_system(&owner) {
                let all = [left.disputed, left.changes].concat();
                let count = all.len();
                (disputed, (changes, warnings)) = undo_unlocked(all);
                took_over = disputed.len() < count;
            }
        }
        remove_temporary(path);
        // `Changes` is created only now, because dropping it deletes the journal, which may have
        // belonged to another process until now.
        let journal = Journal { owner, changes, disputed };
        let (locks, is_left) = (Vec::new(), false);
        let path = path.to_owned();
        let changes = Changes { path, journal, warnings, took_over, locks, is_left };
        changes.save()?;
        Ok(changes)
    }

    /// Returns log messages about changes of an earlier owner that could not be undone. Changes
    /// that this version does not know are dropped. The others stay in the journal, and
    /// [`Changes::restore`] tries again.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns whether an earlier owner was killed and its changes were undone.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// Switches off segmentation, coalescing and checksum offload of `interface`. Errors: those of
    /// [`OffloadState`]'s methods; nothing is changed then.
    pub fn offload_off(&mut self, interface: &str) -> Result<(), JournalError> {
        let state = OffloadState::read(interface)?;
        self.make(&Change::Offload(state))
    }

    /// Lowers the MTU towards `prefix` through `dev`. Errors: those of [`RouteMtu::plan`]; nothing
    /// is changed then.
    pub fn route_mtu(
        &mut self,
        prefix: (IpAddr, u8),
        dev: &str,
        mtu: u32,
    ) -> Result<(), JournalError> {
        self.make(&Change::Route(RouteMtu::plan(prefix, dev, mtu)?))
    }

    /// Clamps the MSS of forwarded SYNs. Errors: those of [`MssClamp::apply`]; nothing is changed
    /// then.
    pub fn mss_clamp(&mut self, clamp: MssClamp) -> Result<(), JournalError> {
        clamp.check()?;
        self.make(&Change::Mss(clamp))
    }

    /// Locks the tables of `instance` before anything is changed for the instance. Errors: another
    /// process of this network namespace has locked them.
    pub fn lock_instance(&mut self, instance: &str) -> Result<(), JournalError> {
        if self.locks.iter().any(|(ours, _)| ours == instance) {
            return Ok(());
        }
        let lock =
            lock_instance(instance).ok_or_else(|| JournalError::Locked(instance.to_owned()))?;
        self.locks.push((instance.to_owned(), lock));
        Ok(())
    }

    /// Redirects connections to a proxy on this machine. Errors: those of
    /// [`Changes::lock_instance`] and [`Intercept::apply`]; nothing is changed then.
    pub fn intercept(&mut self, intercept: Intercept) -> Result<(), JournalError> {
        intercept.check()?;
        self.lock_instance(&intercept.instance)?;
        self.make(&Change::Intercept(intercept))
    }

    /// Makes the kernel hold SYNs until a proxy gives a verdict on each. Errors: those of
    /// [`Changes::lock_instance`] and [`SynHold::apply`]; nothing is changed then.
    pub fn syn_hold(&mut self, hold: SynHold) -> Result<(), JournalError> {
        hold.check()?;
        self.lock_instance(&hold.instance)?;
        self.make(&Change::SynHold(hold))
    }

    /// Hides packets with the given TCP option from this machine's TCP, which would reset their
    /// connections. Errors: those of [`Changes::lock_instance`] and [`RstGuard::apply`]; nothing is
    /// changed then.
    pub fn rst_guard(&mut self, guard: RstGuard) -> Result<(), JournalError> {
        guard.check()?;
        self.lock_instance(&guard.instance)?;
        self.make(&Change::RstGuard(guard))
    }

    /// Distributes a service's packets over its replicas. Replaces the distribution that this
    /// process has set earlier, if any. Errors: those of [`Changes::lock_instance`] and
    /// [`Spray::apply`]; the earlier distribution stays in force then.
    pub fn spray(&mut self, spray: Spray) -> Result<(), JournalError> {
        spray.check()?;
        self.lock_instance(&spray.instance)?;
        let mut changes = self.journal.changes.iter().enumerate();
        let found = changes.find_map(|(at, change)| match change {
            Change::Spray(earlier) => Some((at, earlier.clone())),
            _ => None,
        });
        let Some((at, earlier)) = found else { return self.make(&Change::Spray(spray)) };
        self.replace(at, Change::Spray(spray.clone()), || Ok(earlier.replace_by(&spray)?))
    }

    /// Selects paths for packets. Replaces the selection that this process has set earlier, if any.
    /// Errors: those of [`Changes::lock_instance`] and [`PathRules::apply`]; the earlier selection
    /// stays in force then.
    pub fn path_rules(&mut self, rules: PathRules) -> Result<(), JournalError> {
        rules.check()?;
        self.lock_instance(&rules.instance)?;
        let mut changes = self.journal.changes.iter().enumerate();
        let found = changes.find_map(|(at, change)| match change {
            Change::Paths(earlier) => Some((at, earlier.clone())),
            _ => None,
        });
        let Some((at, earlier)) = found else { return self.make(&Change::Paths(rules)) };
        self.replace(at, Change::Paths(rules.clone()), || Ok(earlier.replace_by(&rules)?))
    }

    /// Replaces change `at` by `next`, which is undone in the same way. The journal is saved before
    /// `apply` replaces the table: if saving fails, the table keeps its counters.
    fn replace(
        &mut self,
        at: usize,
        next: Change,
        apply: impl FnOnce() -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let earlier = std::mem::replace(&mut self.journal.changes[at], next);
        let done = self.save().and_then(|()| apply());
        if done.is_err() {
            self.journal.changes[at] = earlier;
        }
        done
    }

    /// Lets new connections bypass the proxy of [`Changes::intercept`]. The proxy keeps its
    /// existing connections. Errors: those of [`Intercept::pass_by`].
    pub fn pass_by(&mut self) -> Result<(), JournalError> {
        for change in &mut self.journal.changes {
            if let Change::Intercept(intercept) = change {
                intercept.passed_by = true;
                // Rules that another program has deleted are installed again.
                intercept.pass_by().or_else(|_| intercept.apply())?;
            }
        }
        self.save()
    }

    /// Changes a kernel setting. `name` is its path below `/proc/sys`, with slashes. Errors: those
    /// of [`Sysctl`]'s methods; nothing is changed then.
    pub fn sysctl(&mut self, name: &str, value: &str) -> Result<(), JournalError> {
        self.make(&Change::Sysctl(Sysctl::plan(name, value)?))
    }

    /// Returns the number of changes in force, for [`Changes::restore_since`].
    pub fn mark(&self) -> usize {
        self.journal.changes.len()
    }

    /// Applies the changes before `mark` again, in case another program has undone them. Offloads
    /// that have been switched on since the change are switched off, too. Errors: those of the
    /// methods that made the changes.
    pub fn repeat(&mut self, mark: usize) -> Result<(), JournalError> {
        let mut has_more = false;
        for change in self.journal.changes.iter_mut().take(mark) {
            if let Change::Offload(state) = change {
                has_more |= state.add_new()?;
            }
        }
        if has_more {
            self.save()?;
        }
        self.journal.changes.iter().take(mark).try_for_each(Change::apply)
    }

    /// Reinstalls tables and rules that another program has deleted. Returns whether any was
    /// missing. Errors: those of the methods that made the changes.
    pub fn repair(&self) -> Result<bool, JournalError> {
        let mut repaired = false;
        for change in &self.journal.changes {
            if !change.is_installed()? {
                change.apply()?;
                repaired = true;
            }
        }
        Ok(repaired)
    }

    /// Undoes the changes since `mark`, the last one first. Errors: some changes could not be
    /// undone; they stay in the journal.
    pub fn restore_since(&mut self, mark: usize) -> Result<(), JournalError> {
        // Fails before anything is undone if the journal cannot be written.
        self.save()?;
        let since = self.journal.changes.split_off(mark.min(self.mark()));
        let (left, failures) = undo_all(since);
        self.journal.changes.extend(left);
        self.save()?;
        if failures.is_empty() { Ok(()) } else { Err(JournalError::Restore(failures)) }
    }

    /// Undoes all changes, the last one first, and deletes the journal, unless it lists changes of
    /// an earlier owner whose tables another process has locked. Errors: some changes could not be
    /// undone; they stay in the journal.
    pub fn restore(mut self) -> Result<(), JournalError> {
        self.put_back()
    }

    fn make(&mut self, change: &Change) -> Result<(), JournalError> {
        self.journal.changes.push(change.clone());
        let made = self.save().and_then(|()| change.apply());
        if made.is_err() {
            // The change may have been made in part. If it cannot be undone, it stays in the
            // journal.
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
        if self.is_left {
            return;
        }
        // Failures are still in the journal, and the next start reports them.
        let _ = self.put_back();
    }
}

#[cfg(test)]
mod tests {
    use std::process;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn one_of_several_concurrent_openers_gets_the_journal_and_the_others_fail() {
        let directory = std::env::temp_dir().join(format!("viaduct-at-once-{}", process::id()));
        let path = directory.join("a.changes.json");
        for _ in 0..4 {
            let barrier = Barrier::new(3);
            let opened: Vec<_> = std::thread::scope(|scope| {
                let open = || {
                    barrier.wait();
                    Changes::open(&path)
                };
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(opened.iter().filter(|one| one.is_ok()).count(), 1, "{opened:?}");
            let busy = |one: &Result<Changes, JournalError>| {
                matches!(one, Ok(_) | Err(JournalError::Busy { .. }))
            };
            assert!(opened.iter().all(busy), "{opened:?}");
            assert!(path.exists(), "the owner's journal is gone");
        }
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn an_unknown_change_of_another_version_causes_one_warning() {
        let path = std::env::temp_dir().join(format!("viaduct-unknown-{}.json", process::id()));
        // No process has this start time.
        let mut owner = Owner::this_process().unwrap();
        owner.started = u64::MAX;
        let owner = serde_json::to_string(&owner).unwrap();
        let route =
            r#"{"route":{"entries":[{"family":"-4","ours":["10.2.0.0/16"],"before":null}]}}"#;
        fs::write(&path, format!(r#"{{"owner":{owner},"changes":[{route}]}}"#)).unwrap();
        let ours = Changes::open(&path).unwrap();
        assert!(ours.warnings().len() == 1 && ours.warnings()[0].contains("10.2.0.0/16"));
        assert_eq!(ours.mark(), 0);
        drop(ours);
        assert!(!path.exists());
    }

    #[test]
    fn a_change_whose_table_another_process_has_locked_stays_in_the_journal() {
        let path = std::env::temp_dir().join(format!("viaduct-disputed-{}.json", process::id()));
        let intercept = Intercept {
            instance: "disputed_1".to_owned(),
            to_port: 1,
            ways: Vec::new(),
            ports: Vec::new(),
            passed_by: false,
        };
        // No process has this start time.
        let mut owner = Owner::this_process().unwrap();
        owner.started = u64::MAX;
        let changes = vec![Change::Intercept(intercept)];
        let left = Journal { owner, changes: changes.clone(), disputed: Vec::new() };
        fs::write(&path, serde_json::to_vec(&left).unwrap()).unwrap();
        let _other = lock_instance("disputed_1").unwrap();
        let mut ours = Changes::open(&path).unwrap();
        assert!(!ours.took_over() && ours.warnings().is_empty());
        let refused = ours.lock_instance("disputed_1").unwrap_err();
        assert!(matches!(refused, JournalError::Locked(_)), "{refused}");
        drop(ours);
        assert_eq!(read(&path).unwrap().unwrap().disputed, changes);
        fs::remove_file(&path).unwrap();
    }
}
