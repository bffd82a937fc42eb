//! Lookup of paths within a directory, never outside the directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;
use viaduct_proto::web::{Found, Listing, Request};

const INDEX: &str = "index.html";
/// The only name with exactly one leading dot that is served (RFC 8615).
const WELL_KNOWN: &str = ".well-known";
/// Maximum mean length of the names in a full listing, in bytes. If the names are longer, the
/// listing has fewer names.
const MEAN_NAME: usize = 128;

/// Error: the lookup failed for lack of descriptors or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfDescriptors;

/// Identity of a directory's content. The stamp changes when an entry is added, removed or renamed,
/// but only once for several changes within one tick of the kernel's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, u64),
}

/// The served directory.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    /// Maximum number of names in the page of a directory.
    max_listed: usize,
}

/// Result of looking up a path.
#[derive(Debug)]
pub enum Lookup {
    /// File with its descriptor, or any other result that needs no directory page.
    Found(Found, Option<File>),
    /// Directory without an index file, whose page must be generated.
    Directory(Stamp),
}

impl Root {
    /// Opens the directory at `path`. Read permission is needed only for the directory's page.
    /// Errors: there is no directory at `path`, or openat2 is not permitted.
    pub fn open(path: &Path, max_listed: usize) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        match beneath(directory.as_fd(), b".", OFlags::PATH) {
            Err(Errno::NOSYS | Errno::PERM) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "openat2 is refused; possible causes are RestrictSUIDSGID= of systemd, and old \
                 filters of container engines",
            )),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Root { directory, max_listed }),
        }
    }

    /// Looks up the path of a request. If there is a file at the path, also returns the open file.
    /// Errors: [`OutOfDescriptors`].
    pub fn find(&self, request: &Request) -> Result<(Found, Option<File>), OutOfDescriptors> {
        match self.lookup(request)? {
            Lookup::Found(found, file) => Ok((found, file)),
            Lookup::Directory(_) => {
                let listed = self.list(request)?;
                Ok((listed.map_or_else(|found| found, Found::Directory), None))
            }
        }
    }

    /// Looks up the path of a request without generating a directory page, which would take much
    /// longer.
    pub fn lookup(&self, request: &Request) -> Result<Lookup, OutOfDescriptors> {
        let Some(path) = path(request) else { return Ok(Lookup::Found(Found::Nothing, None)) };
        self.inspect(&path, request).or_else(|error| Ok(Lookup::Found(refusal(error)?, None)))
    }

    /// Generates the page of a directory; returns another result if the directory cannot be listed.
    pub fn list(&self, request: &Request) -> Result<Result<Listing, Found>, OutOfDescriptors> {
        let Some(path) = path(request) else { return Ok(Err(Found::Nothing)) };
        let listed = beneath(self.directory.as_fd(), &path, OFlags::RDONLY | OFlags::DIRECTORY)
            .and_then(|opened| names(&opened, self.max_listed));
        match listed {
            Ok((names, more)) => Ok(Ok(Listing::new(&request.path, names, more))),
            Err(error) => Ok(Err(refusal(error)?)),
        }
    }

    /// Stamp of the directory at the request's path; `None` if there is no directory, or if the
    /// directory has an index file.
    pub fn stamp(&self, request: &Request) -> Option<Stamp> {
        match self.lookup(request) {
            Ok(Lookup::Directory(stamp)) => Some(stamp),
            _ => None,
        }
    }

    fn inspect(&self, path: &[u8], request: &Request) -> Result<Lookup, Errno> {
        let stat = self.stat(path)?;
        let wants_directory = request.directory || request.path.is_empty();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if !request.directory => self.file(path),
            FileType::RegularFile => Ok(Lookup::Found(Found::Nothing, None)),
            // The client is redirected to the path with a slash.
            FileType::Directory if !wants_directory => {
                Ok(Lookup::Found(Found::Directory(Listing::default()), None))
            }
            FileType::Directory => {
                Ok(self.index(path)?.unwrap_or_else(|| Lookup::Directory(Stamp::of(&stat))))
            }
            _ => Ok(Lookup::Found(Found::Forbidden, None)),
        }
    }

    /// Returns the index file of the directory at `path`. An entry of that name that is not a
    /// regular file (a pipe, a socket, a directory, a symbolic link that is broken or points
    /// outside) does not count as an index.
    fn index(&self, path: &[u8]) -> Result<Option<Lookup>, Errno> {
        let index = [path, b"/", INDEX.as_bytes()].concat();
        match self.stat(&index) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                self.file(&index).map(Some)
            }
            Err(error) if is_trouble(error) => Err(error),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Returns the attributes of a path. This requires no read permission, does not block on a
    /// pipe, and does not open a device.
    fn stat(&self, path: &[u8]) -> Result<Stat, Errno> {
        fstat(beneath(self.directory.as_fd(), path, OFlags::PATH)?)
    }

    fn file(&self, path: &[u8]) -> Result<Lookup, Errno> {
        let opened = beneath(self.directory.as_fd(), path, OFlags::RDONLY)?;
        // The path may now refer to another object.
        if FileType::from_raw_mode(fstat(&opened)?.st_mode) != FileType::RegularFile {
            return Ok(Lookup::Found(Found::Forbidden, None));
        }
        let file = opened.into();
        Ok(Lookup::Found(found(&file).ok_or(Errno::IO)?, Some(file)))
    }
}

impl Stamp {
    fn of(stat: &Stat) -> Stamp {
        let changed = (stat.st_mtime, stat.st_mtime_nsec);
        Stamp { device: stat.st_dev, inode: stat.st_ino, changed }
    }
}

/// Returns whether a lookup has failed for a reason other than a missing path.
fn is_trouble(error: Errno) -> bool {
    !matches!(refusal(error), Ok(Found::Nothing))
}

fn refusal(error: Errno) -> Result<Found, OutOfDescriptors> {
    match error {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(OutOfDescriptors),
        Errno::ACCESS | Errno::PERM => Ok(Found::Forbidden),
        // openat2 returns EAGAIN if a directory was renamed during the lookup.
        Errno::IO | Errno::STALE | Errno::AGAIN => Ok(Found::Unavailable),
        _ => Ok(Found::Nothing),
    }
}

/// Opens a path within `directory`. Symbolic links that point outside are errors, and opening a
/// pipe does not block.
fn beneath(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    // With O_PATH, openat2 refuses `O_NONBLOCK` and `O_NOCTTY`.
    let more = if flags.contains(OFlags::PATH) {
        OFlags::empty()
    } else {
        OFlags::NONBLOCK | OFlags::NOCTTY
    };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | more | OFlags::CLOEXEC;
    openat2(directory, OsStr::from_bytes(path), flags, Mode::empty(), within)
}

/// Size and modification time of an open file.
pub(super) fn found(file: &File) -> Option<Found> {
    let stat = fstat(file).ok()?;
    Some(Found::File {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: u64::try_from(stat.st_mtime).unwrap_or(0),
        nanos: stat.st_mtime_nsec as u32,
    })
}

fn path(request: &Request) -> Option<Vec<u8>> {
    let path = match request.path.join(&b'/') {
        path if path.is_empty() => b".".to_vec(),
        path => path,
    };
    (!request.path.iter().any(|part| is_hidden(part))).then_some(path)
}

/// Returns at most `most` names of a directory, of limited total length, and whether there are more
/// names. The rest is not read, so that the time does not depend on the directory's size.
fn names(directory: &OwnedFd, most: usize) -> Result<(Vec<Vec<u8>>, bool), Errno> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if [&b"."[..], b"..", WELL_KNOWN.as_bytes()].contains(&name) || is_hidden(name) {
            continue;
        }
        bytes += name.len();
        if names.len() >= most || bytes > most.saturating_mul(MEAN_NAME) {
            return Ok((names, true));
        }
        let mut name = name.to_vec();
        if entry.file_type() == FileType::Directory {
            name.push(b'/');
        }
        names.push(name);
    }
    Ok((names, false))
}

/// Returns whether a name is hidden: it begins with exactly one dot, and is not `.well-known`.
fn is_hidden(part: &[u8]) -> bool {
    part.starts_with(b".") && !part.starts_with(b"..") && part != WELL_KNOWN.as_bytes()
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
    fn files_outside_and_hidden_files_are_not_found() {
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
        let root = Root::open(&within, 100).unwrap();
        for path in ["/a/file.txt", "/inside"] {
            assert!(matches!(find(&root, path), Found::File { size: 5, .. }), "{path}");
        }
        assert!(matches!(find(&root, "/with/"), Found::File { size: 5, .. }));
        assert!(matches!(find(&root, "/linked/"), Found::File { size: 5, .. }));
        for path in ["/a/out", "/.hidden", "/none", "/a/file.txt/", "/a/file.txt/x"] {
            assert_eq!(find(&root, path), Found::Nothing, "{path}");
        }
        assert_eq!(find(&root, "/with"), Found::Directory(Listing::default()));
        let names = ["b/", "file.txt", "out"].map(|name| name.as_bytes().to_vec()).to_vec();
        let listing = Listing::new(&[b"a".to_vec()], names, false);
        assert_eq!(find(&root, "/a/"), Found::Directory(listing));
        assert!(matches!(find(&root, "/"), Found::Directory(_)));
        assert!(Root::open(&at.join("secret"), 100).is_err());
        fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn names_are_bytes_and_long_listings_are_truncated() {
        let at = std::env::temp_dir().join(format!("viaduct-names-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join(OsStr::from_bytes(b"caf\xe9")), "123").unwrap();
        let root = |most| Root::open(&at, most).unwrap();
        assert!(matches!(find(&root(2), "/caf%e9"), Found::File { size: 3, .. }));
        let page = |most| match find(&root(most), "/") {
            Found::Directory(listing) => String::from_utf8(listing.page().to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(page(1).contains("\"./caf%E9\"") && !page(1).contains("more names"));
        (0..9).for_each(|n| fs::write(at.join(n.to_string()), "").unwrap());
        let few = page(4);
        assert!(few.contains("more names") && few.matches("<li>").count() == 4, "{few}");
        (0..20).for_each(|n| fs::write(at.join(format!("{n:0>250}")), "").unwrap());
        assert!(page(25).matches("<li>").count() < 20, "long names count for more");
        fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn an_index_that_is_not_a_regular_file_is_ignored() {
        let at = std::env::temp_dir().join(format!("viaduct-index-{}", std::process::id()));
        for name in ["fifo", "socket", "directory", "nowhere", "out"] {
            fs::create_dir_all(at.join(name)).unwrap();
        }
        let index = |name: &str| at.join(name).join(INDEX);
        let cwd = rustix::fs::CWD;
        rustix::fs::mknodat(cwd, index("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(index("socket")).unwrap();
        fs::create_dir(index("directory")).unwrap();
        symlink("none", index("nowhere")).unwrap();
        symlink("/etc/passwd", index("out")).unwrap();
        let root = Root::open(&at, 100).unwrap();
        for name in ["fifo", "socket", "directory", "nowhere", "out"] {
            let found = find(&root, &format!("/{name}/"));
            assert!(matches!(found, Found::Directory(_)), "{name}: {found:?}");
        }
        assert_eq!(find(&root, "/fifo/index.html"), Found::Forbidden);
        fs::remove_dir_all(&at).unwrap();
    }
}
