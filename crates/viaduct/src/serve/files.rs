//! What stands at a path below a directory, and in no case outside it.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use viaduct_proto::web::{Found, Listing, Request};

/// What a directory is served by, if it has one.
const INDEX: &str = "index.html";
/// The one name with a dot that is served (RFC 8615).
const WELL_KNOWN: &str = ".well-known";

/// No descriptor or memory is left to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starved;

/// A directory as it is: another when something was added to it, removed or renamed. Two changes of one tick of the
/// kernel's clock look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, u64),
}

/// The directory that is served.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
}

impl Root {
    /// That at `path`.
    ///
    /// # Errors
    /// It is none, or may not be read.
    pub fn open(path: &Path) -> io::Result<Root> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Root { directory: open(path, flags, Mode::empty())? })
    }

    /// What is asked for; with the file, if it is one.
    ///
    /// # Errors
    /// [`Starved`]: nobody knows what is there.
    pub fn find(&self, request: &Request) -> Result<(Found, Option<File>), Starved> {
        let Some(path) = path(request) else { return Ok((Found::Nothing, None)) };
        self.look(&path, request).or_else(|error| match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(Starved),
            Errno::ACCESS | Errno::PERM => Ok((Found::Forbidden, None)),
            // The last is openat2's, of a directory that was renamed meanwhile.
            Errno::IO | Errno::STALE | Errno::AGAIN => Ok((Found::Unavailable, None)),
            _ => Ok((Found::Nothing, None)),
        })
    }

    /// That of the directory without an index at the request's path, if there is one.
    pub fn stamp(&self, request: &Request) -> Option<Stamp> {
        let path = path(request)?;
        let opened = beneath(self.directory.as_fd(), &path).ok()?;
        let stat = fstat(&opened)
            .ok()
            .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)?;
        let index = beneath(self.directory.as_fd(), &format!("{path}/{INDEX}"));
        let changed = (stat.st_mtime, stat.st_mtime_nsec);
        (index.err() == Some(Errno::NOENT)).then_some(Stamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            changed,
        })
    }

    fn look(&self, path: &str, request: &Request) -> Result<(Found, Option<File>), Errno> {
        let opened = beneath(self.directory.as_fd(), path)?;
        let wants_directory = request.directory || request.path.is_empty();
        match FileType::from_raw_mode(fstat(&opened)?.st_mode) {
            FileType::RegularFile if !request.directory => file(opened),
            FileType::RegularFile => Ok((Found::Nothing, None)),
            // It is told to ask with a slash.
            FileType::Directory if !wants_directory => {
                Ok((Found::Directory(Listing::default()), None))
            }
            FileType::Directory => {
                let index = format!("{path}/{INDEX}");
                match beneath(self.directory.as_fd(), &index).and_then(file) {
                    Ok((index @ Found::File { .. }, opened)) => Ok((index, opened)),
                    Ok(_) | Err(Errno::NOENT) => {
                        let listing = Listing::new(&request.path, names(&opened)?);
                        Ok((Found::Directory(listing), None))
                    }
                    Err(why) => Err(why),
                }
            }
            _ => Ok((Found::Forbidden, None)),
        }
    }
}

/// Opens without leaving the directory, whatever links say; a pipe is not waited for.
fn beneath(directory: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, path, flags, Mode::empty(), within)
}

fn file(opened: OwnedFd) -> Result<(Found, Option<File>), Errno> {
    let stat = fstat(&opened)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok((Found::Forbidden, None));
    }
    let file = opened.into();
    Ok((found(&file).ok_or(Errno::IO)?, Some(file)))
}

/// What an open file is now.
pub(super) fn found(file: &File) -> Option<Found> {
    let stat = fstat(file).ok()?;
    Some(Found::File {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: u64::try_from(stat.st_mtime).unwrap_or(0),
        nanos: stat.st_mtime_nsec as u32,
    })
}

/// The path of what is asked for, if it may be.
fn path(request: &Request) -> Option<String> {
    let path = match request.path.join("/") {
        path if path.is_empty() => ".".to_owned(),
        path => path,
    };
    (!request.path.iter().any(|part| is_hidden(part))).then_some(path)
}

fn names(directory: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        // What is no text cannot be asked for by a link of ours.
        let Ok(name) = entry.file_name().to_str() else { continue };
        if !name.starts_with('.') {
            let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
    }
    Ok(names)
}

fn is_hidden(part: &str) -> bool {
    part.starts_with('.') && part != WELL_KNOWN
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn find(root: &Root, path: &str) -> Found {
        let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let (request, _) = Request::parse(text.as_bytes()).unwrap().unwrap();
        root.find(&request).unwrap().0
    }

    #[test]
    fn nothing_outside_is_found_and_nothing_hidden() {
        let at = std::env::temp_dir().join(format!("viaduct-serve-{}", std::process::id()));
        let within = at.join("within");
        fs::create_dir_all(within.join("a/b")).unwrap();
        fs::create_dir_all(within.join("with")).unwrap();
        fs::write(at.join("secret"), "s").unwrap();
        fs::write(within.join("a/file.txt"), "12345").unwrap();
        fs::write(within.join(".hidden"), "s").unwrap();
        fs::write(within.join("with").join(INDEX), "index").unwrap();
        symlink("../../secret", within.join("a/out")).unwrap();
        symlink("a/file.txt", within.join("inside")).unwrap();
        fs::create_dir_all(within.join("linked")).unwrap();
        symlink("../a/file.txt", within.join("linked").join(INDEX)).unwrap();
        let root = Root::open(&within).unwrap();
        for path in ["/a/file.txt", "/inside"] {
            assert!(matches!(find(&root, path), Found::File { size: 5, .. }), "{path}");
        }
        assert!(matches!(find(&root, "/with/"), Found::File { size: 5, .. }));
        assert!(matches!(find(&root, "/linked/"), Found::File { size: 5, .. }));
        for path in ["/a/out", "/.hidden", "/none", "/a/file.txt/", "/a/file.txt/x"] {
            assert_eq!(find(&root, path), Found::Nothing, "{path}");
        }
        assert_eq!(find(&root, "/with"), Found::Directory(Listing::default()));
        let names = ["b/", "file.txt", "out"].map(str::to_owned).to_vec();
        assert_eq!(find(&root, "/a/"), Found::Directory(Listing::new(&["a".to_owned()], names)));
        assert!(matches!(find(&root, "/"), Found::Directory(_)));
        assert!(Root::open(&at.join("secret")).is_err());
        fs::remove_dir_all(&at).unwrap();
    }
}
