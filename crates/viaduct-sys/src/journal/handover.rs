//! Handover of a journal to another process, while its changes stay in place.
//!
//! ```text
//!   old owner ── locks() ──▶ take_over(): the file names the new owner
//!      ├── leave(), drop: nothing is undone      own(): from now on, drop undoes the changes
//!      └── reclaim(): the new owner has failed   drop before own(): nothing is undone
//! ```

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use super::file::{Journal, read};
use super::owner::Owner;
use super::{Changes, JournalError};
use crate::process::dir_lock::DirLock;
use crate::process::instance_lock::InstanceLock;

impl Changes {
    /// Records this process as the owner of the journal at `path`. The former owner, process `pid`,
    /// is still running and has sent `locks`, each with its instance name. The changes stay as they
    /// are. Dropping the result leaves the changes in place, until [`Changes::own`] is called.
    ///
    /// # Errors
    /// The journal belongs to another process or another network namespace, or cannot be written.
    pub fn take_over(
        path: &Path,
        pid: u32,
        locks: Vec<(String, OwnedFd)>,
    ) -> Result<Changes, JournalError> {
        let failed = |source| JournalError::File { action: "read", path: path.to_owned(), source };
        let owner = Owner::this_process().map_err(failed)?;
        let _lock = DirLock::around(path).map_err(failed)?;
        let left = read(path)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        if left.owner.pid != pid || !left.owner.is_same_system(&owner) {
            return Err(JournalError::Busy { path: path.to_owned(), pid: left.owner.pid });
        }
        let locks = locks.into_iter().map(|(name, fd)| (name, InstanceLock::inherited(fd)));
        let changes = Changes {
            path: path.to_owned(),
            journal: Journal { owner, ..left },
            warnings: Vec::new(),
            took_over: false,
            locks: locks.collect(),
            is_left: true,
        };
        changes.save()?;
        Ok(changes)
    }

    /// Makes this process responsible for the changes: from now on, dropping undoes them.
    pub fn own(&mut self) {
        self.is_left = false;
    }

    /// Leaves the changes and the locks to the process that has taken them over: dropping then
    /// undoes nothing.
    pub fn leave(&mut self) {
        self.is_left = true;
        self.locks.clear();
    }

    /// Records this process as the owner again, after another process has failed to take over.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn reclaim(&self) -> Result<(), JournalError> {
        self.save()
    }

    /// Returns the locked instances, with the descriptors that [`Changes::take_over`] needs.
    pub fn locks(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.locks.iter().map(|(name, lock)| (name.as_str(), lock.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::super::owner::lock_instance;
    use super::*;

    #[test]
    fn a_journal_changes_its_owner_and_only_the_owner_deletes_it() {
        let path = std::env::temp_dir().join(format!("viaduct-taken-{}.json", process::id()));
        let mut old = Changes::open(&path).unwrap();
        old.lock_instance("taken_1").unwrap();
        let wrong = Changes::take_over(&path, process::id() + 1, Vec::new()).unwrap_err();
        assert!(matches!(wrong, JournalError::Busy { .. }), "{wrong}");
        let locks = |of: &Changes| -> Vec<(String, OwnedFd)> {
            let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
            of.locks().map(|(name, fd)| (name.to_owned(), own(fd))).collect()
        };
        // The new owner fails: everything stays in place.
        drop(Changes::take_over(&path, process::id(), locks(&old)).unwrap());
        old.reclaim().unwrap();
        assert!(path.exists());
        let mut new = Changes::take_over(&path, process::id(), locks(&old)).unwrap();
        old.leave();
        new.own();
        drop(old);
        assert!(path.exists() && lock_instance("taken_1").is_none(), "the new one has the lock");
        drop(new);
        assert!(!path.exists() && lock_instance("taken_1").is_some());
    }
}
