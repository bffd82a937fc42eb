//! Directories of the hops, below a directory of the agent.
//!
//! ```text
//!   run directory (perhaps of another user) ─▶ NAME.d (of the agent) ─▶ HOP (of the hop's user)
//! ```
//!
//! Links are not followed. Otherwise the owner of the run directory could make the agent change the
//! owner of any directory to a hop's user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fchown, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid};

/// Opens the directory of the hop `name` below `all`, and changes its owner to `user`, if given.
/// Both directories are created if they are missing.
///
/// # Errors
/// `all` or the hop's directory is a link, `all` belongs to another user, or a directory cannot be
/// created.
pub fn open(all: &Path, name: &str, user: Option<u32>) -> io::Result<OwnedFd> {
    let all = open_or_create(CWD, all)?;
    if fstat(&all)?.st_uid != geteuid().as_raw() {
        let why = "the directory of the hops belongs to another user: delete it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let own = open_or_create(&all, Path::new(name))?;
    if let Some(user) = user {
        fchown(&own, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))?;
    }
    Ok(own)
}

fn open_or_create(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    match mkdirat(&at, path, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_directory_is_given_to_its_user_unless_there_is_a_link() {
        const USER: u32 = 1_900_000_001;
        let place = std::env::temp_dir().join(format!("viaduct-hop-dir-{}", std::process::id()));
        let (all, other) = (place.join("hops.d"), place.join("other"));
        fs::create_dir_all(&other).unwrap();
        for _ in 0..2 {
            open(&all, "one", Some(USER)).unwrap();
        }
        assert_eq!(fs::metadata(all.join("one")).unwrap().uid(), USER);
        symlink(&other, all.join("two")).unwrap();
        open(&all, "two", Some(USER)).unwrap_err();
        symlink(&other, place.join("link.d")).unwrap();
        open(&place.join("link.d"), "one", Some(USER)).unwrap_err();
        chown(&all, Some(USER), None).unwrap();
        let error = open(&all, "one", Some(USER)).unwrap_err();
        assert!(error.to_string().contains("another user"), "{error}");
        assert_eq!(fs::metadata(&other).unwrap().uid(), geteuid().as_raw());
        fs::remove_dir_all(&place).unwrap();
    }
}
