//! An exclusive lock on a directory, held during short operations on the files in it. The lock is
//! on a file in the directory that only this user may open: any user who can read the directory
//! could lock the directory itself, and thereby block services. The kernel releases the lock when
//! the process ends, even by a crash. The file is removed when the lock is released.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// Prefix of the file's name. The user ID follows, so that each user has a lock file of its own.
const PREFIX: &str = ".lock-";
/// Max time to wait until another holder releases the lock.
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The lock, released on drop.
#[derive(Debug)]
pub struct DirLock {
    path: PathBuf,
    _file: File,
}

impl DirLock {
    /// Locks `directory`, which must exist. Waits at most 5 seconds for another holder. Errors:
    /// `TimedOut` if another process holds the lock for longer; other errors if the file cannot be
    /// created or locked.
    pub fn take(directory: &Path) -> io::Result<DirLock> {
        let path = file_in(directory);
        let mut open = OpenOptions::new();
        // The directory's owner may have put a link or a pipe in place of the file. A confined
        // process may create files, but not write to them.
        let flags = libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        open.read(true).mode(0o600).custom_flags(flags);
        let until = Instant::now() + HOLD_TIMEOUT;
        loop {
            let file = open.open(&path)?;
            if !file.metadata()?.is_file() {
                let other = format!("{} is not a regular file", path.display());
                return Err(io::Error::new(ErrorKind::InvalidInput, other));
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let held = format!("{} is locked by another process", path.display());
                    return Err(io::Error::new(ErrorKind::TimedOut, held));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                // The previous holder may have removed the file that was opened here.
                Ok(()) if inode(&path) == Some(file.metadata()?.ino()) => {
                    return Ok(DirLock { path, _file: file });
                }
                Ok(()) => {}
            }
        }
    }

    /// Locks the directory of the file `path`, as [`DirLock::take`] does. Creates the directory if
    /// it does not exist. Errors: those of [`DirLock::take`], or the directory cannot be created.
    pub fn around(path: &Path) -> io::Result<DirLock> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        DirLock::take(directory)
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // The file is removed while the lock is still held: a process that has opened it meanwhile
        // notices the removal when it gets the lock, and creates a new file.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|of| of.ino())
}

fn file_in(directory: &Path) -> PathBuf {
    directory.join(format!("{PREFIX}{}", rustix::process::geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_holder_at_a_time() {
        let path = std::env::temp_dir().join(format!("viaduct-lock-{}/file", std::process::id()));
        let inside = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = DirLock::around(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        std::fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn the_lock_file_is_private_and_other_files_and_locks_block_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("viaduct-locked-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let of_a_reader = File::open(&path).unwrap();
        flock(&of_a_reader, FlockOperation::LockExclusive).unwrap();
        let lock = DirLock::take(&path).unwrap();
        let mode = std::fs::metadata(file_in(&path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(lock);
        // Opening a pipe without a reader would block.
        let (cwd, fifo) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(cwd, file_in(&path), fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        assert!(DirLock::take(&path).is_err());
        std::fs::remove_dir_all(path).unwrap();
    }
}
