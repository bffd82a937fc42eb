//! An exclusive lock on a directory, for short work on the files in it: it needs no lock file, and the
//! kernel releases it however the process ends.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The lock; dropping it releases it.
#[derive(Debug)]
pub struct DirLock {
    _directory: File,
}

impl DirLock {
    /// Waits until no other holder has `directory`, which must exist.
    ///
    /// # Errors
    /// The directory cannot be opened, or its file system knows no locks.
    pub fn take(directory: &Path) -> io::Result<DirLock> {
        let file = File::open(directory)?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                done => return done.map(|()| DirLock { _directory: file }).map_err(Into::into),
            }
        }
    }

    /// As [`DirLock::take`], for the directory of the file `path`, which is made if it is not there.
    ///
    /// # Errors
    /// As [`DirLock::take`]'s.
    pub fn around(path: &Path) -> io::Result<DirLock> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        DirLock::take(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_holder_at_a_time() {
        let path = std::env::temp_dir().join(format!("viaduct-lock-{}/file", std::process::id()));
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = DirLock::around(&path).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        std::fs::remove_dir(path.parent().unwrap()).unwrap();
    }
}
