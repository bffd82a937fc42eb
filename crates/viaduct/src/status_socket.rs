//! Status socket of a service, the exclusive ownership of its name, and reads of a status.

use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chownat, fstat, stat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{getegid, geteuid};
use rustix::thread::Gid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};
use viaduct_sys::process::dir_lock::DirLock;

/// Time within which a client of the status socket must read the status.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of clients of other users than root and the service's, which read a status at the
/// same time.
const MAX_CLIENTS: usize = 32;
/// Permits of these clients.
static CLIENTS: Semaphore = Semaphore::const_new(MAX_CLIENTS);
/// Mode of the socket: the service's user and group may read the status.
const SOCKET_MODE: u32 = 0o660;
/// Time within which a process that takes over the service must replace the socket.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of checks whether the socket has been replaced.
const REPLACE_POLL: Duration = Duration::from_millis(1);
/// Delay before the next attempt after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// File name of a service's socket; the file is removed when this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Name {
    path: PathBuf,
    /// Device and inode, to detect that another service has replaced the socket.
    file: Option<(u64, u64)>,
}

impl Name {
    /// Name of the socket that this process has just bound to `path`.
    pub fn of(path: &Path) -> Name {
        Name { file: file_of(path), path: path.to_owned() }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _lock = self.path.parent().map(DirLock::take);
        if self.file.is_some() && file_of(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// File of a socket that another process will replace.
#[derive(Debug)]
pub struct SocketFile<'a> {
    path: &'a Path,
    file: Option<(u64, u64)>,
}

impl SocketFile<'_> {
    /// File to which `path` currently refers.
    pub fn of(path: &Path) -> SocketFile<'_> {
        SocketFile { path, file: file_of(path) }
    }

    /// Waits until `path` refers to another file, for at most a second.
    pub fn wait_until_replaced(&self) {
        let deadline = Instant::now() + REPLACE_TIMEOUT;
        while file_of(self.path) == self.file && Instant::now() < deadline {
            thread::sleep(REPLACE_POLL);
        }
    }
}

fn file_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|of| (of.dev(), of.ino()))
}

/// Opens the status socket `path`, and creates its directory. Must be called in a runtime. Errors:
/// a service of this name is running, or the socket cannot be created.
pub fn open(path: &Path) -> Result<(UnixListener, Name)> {
    open_with_mode(path, SOCKET_MODE)
}

/// Opens the status socket `path` as [`open`] does, with another mode.
pub fn open_with_mode(path: &Path, mode: u32) -> Result<(UnixListener, Name)> {
    // The lock serializes services that start at the same time.
    let _lock = DirLock::around(path)
        .with_context(|| format!("run-dir: cannot lock the directory of {}", path.display()))?;
    check_free(path)?;
    let _ = fs::remove_file(path);
    let bound = UnixListener::bind(path);
    let listener =
        bound.with_context(|| format!("cannot open the status socket {}", path.display()))?;
    set_mode(path, mode)?;
    Ok((listener, Name::of(path)))
}

/// Socket under a temporary name, which will replace the socket of the running process.
#[derive(Debug)]
#[must_use]
pub struct Unpublished {
    temporary: Name,
    path: PathBuf,
}

impl Unpublished {
    /// Renames the socket to its final name. The rename is atomic: clients find the old socket or
    /// this one.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn publish(self) -> Result<Name> {
        let renamed = fs::rename(&self.temporary.path, &self.path);
        renamed.with_context(|| format!("cannot open the socket {}", self.path.display()))?;
        Ok(Name::of(&self.path))
    }
}

/// Temporary name under which [`beside`] binds the socket for `path`.
pub fn temporary_path(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    PathBuf::from(temporary)
}

/// Opens the socket for `path` with `bind`, under a temporary name.
///
/// # Errors
/// The socket cannot be created.
pub fn beside<L>(
    path: &Path,
    bind: impl FnOnce(&Path) -> io::Result<L>,
) -> Result<(L, Unpublished)> {
    let temporary = temporary_path(path);
    // A process that was killed may have left it.
    let _ = fs::remove_file(&temporary);
    let bound = bind(&temporary);
    let listener =
        bound.with_context(|| format!("cannot open the socket {}", temporary.display()))?;
    set_mode(&temporary, SOCKET_MODE)?;
    Ok((listener, Unpublished { temporary: Name::of(&temporary), path: path.to_owned() }))
}

/// Sets the mode and group of a socket that this process has created. If another user owns the
/// directory, that user may have replaced the socket with a link, which is not followed. Errors:
/// `path` is not a socket of this user, or its mode cannot be set.
pub fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let set = || -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::open(path, flags, Mode::empty())?;
        let of = fstat(&socket)?;
        let is_socket = FileType::from_raw_mode(of.st_mode) == FileType::Socket;
        if of.st_uid != geteuid().as_raw() || !is_socket {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if getegid().is_root()
            && let Some(directory) = path.parent()
        {
            // A socket of root's group gets the directory's group, so that the same users can read
            // the status of all services there. Without CAP_CHOWN only root can read it.
            let group = Gid::from_raw(stat(directory)?.st_gid);
            let _ = chownat(&socket, "", None, Some(group), AtFlags::EMPTY_PATH);
        }
        let opened = format!("/proc/self/fd/{}", socket.as_raw_fd());
        fs::set_permissions(opened, fs::Permissions::from_mode(mode))
    };
    set().with_context(|| format!("cannot set the mode of {}", path.display()))
}

/// Accepts the next client of a status socket.
pub async fn accept(listener: &UnixListener) -> tokio::net::UnixStream {
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // The process may be out of descriptors, so an immediate retry would spin.
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Sends the status as one JSON object, and closes the connection. Clients of other users than root
/// and the service's get no status while [`MAX_CLIENTS`] of them are reading.
pub fn show(mut client: tokio::net::UnixStream, status: &impl Serialize) -> Result<()> {
    let user = client.peer_cred().ok().map(|of| of.uid());
    let Ok(permit) = admit(user) else { return Ok(()) };
    let text = serde_json::to_vec(status)?;
    tokio::spawn(async move {
        let _ = tokio::time::timeout(READ_TIMEOUT, client.write_all(&text)).await;
        drop(permit);
    });
    Ok(())
}

/// Returns the permit of a client of this user; `None` if it needs none.
fn admit(user: Option<u32>) -> Result<Option<SemaphorePermit<'static>>, TryAcquireError> {
    let is_trusted = user.is_some_and(|user| [0, geteuid().as_raw()].contains(&user));
    if is_trusted { Ok(None) } else { CLIENTS.try_acquire().map(Some) }
}

/// Connects to the status socket `path`. Errors: nothing listens there, or the queue of a service
/// that hangs is full ([`io::ErrorKind::WouldBlock`]).
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    // A blocking connect would wait for a place in the queue.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Reads the status at the socket `path`, of at most `max` bytes. Errors: those of [`connect`];
/// [`io::ErrorKind::TimedOut`] if the complete status has not arrived within `limit`, is longer, or
/// is empty.
pub fn read(path: &Path, max: usize, limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let mut stream = connect(path)?;
    // Half-closing tells an overlay node that no request follows.
    stream.shutdown(Shutdown::Write)?;
    let (mut text, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || text.len() > max {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 if text.is_empty() => return Err(io::ErrorKind::TimedOut.into()),
            0 => return Ok(text),
            length => text.extend_from_slice(&buffer[..length]),
        }
    }
}

/// Parses a status. Control characters in its texts are replaced: another user's service, or a name
/// that a service has received from elsewhere, must not control the terminal.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let mut value = serde_json::from_slice(text)?;
    replace_controls(&mut value);
    serde_json::from_value(value)
}

fn replace_controls(value: &mut Value) {
    let is_control = |c: char| c.is_control() && c != '\n';
    match value {
        Value::String(text) if text.contains(is_control) => *text = text.replace(is_control, "?"),
        Value::Array(values) => values.iter_mut().for_each(replace_controls),
        Value::Object(values) => values.values_mut().for_each(replace_controls),
        _ => {}
    }
}

/// Checks that no service accepts connections at `socket`, because [`open`] would replace its
/// socket. The file of a killed service remains, but refuses connections. Errors: a service
/// accepts.
pub fn check_free(socket: &Path) -> Result<()> {
    if !is_served(socket) {
        return Ok(());
    }
    bail!(
        "{}: a service of this name runs, or still drains its flows: wait until it has ended, or \
         give this service another name or run-dir",
        socket.display()
    )
}

/// Returns whether a service listens at `socket`. Does not wait for a service that hangs.
pub fn is_served(socket: &Path) -> bool {
    connect(socket).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("viaduct-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_service_that_hangs_is_noticed_at_once() {
        let dir = directory("hung");
        let path = dir.join("a.sock");
        check_free(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _queued = UnixStream::connect(&path).unwrap();
        assert!(check_free(&path).unwrap_err().to_string().contains("of this name runs"));
        drop(listener);
        check_free(&path).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn clients_of_other_users_are_limited() {
        let other = || admit(Some(geteuid().as_raw() + 1));
        let held: Vec<_> = (0..MAX_CLIENTS).map(|_| other().unwrap()).collect();
        assert!(other().is_err() && admit(None).is_err());
        assert!(admit(Some(0)).unwrap().is_none());
        assert!(admit(Some(geteuid().as_raw())).unwrap().is_none());
        drop(held);
        assert!(other().is_ok());
    }

    #[test]
    fn the_mode_of_a_link_is_not_set() {
        let dir = directory("socket-mode");
        let (path, file, link) = (dir.join("a.sock"), dir.join("file"), dir.join("link"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let _listener = UnixListener::bind(&path).unwrap();
        set_mode(&path, 0o666).unwrap();
        assert_eq!(mode(&path), 0o666);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        assert!(set_mode(&link, 0o666).is_err() && set_mode(&file, 0o666).is_err());
        assert_eq!(mode(&file), 0o600);
        fs::remove_dir_all(&dir).unwrap();
    }
}
