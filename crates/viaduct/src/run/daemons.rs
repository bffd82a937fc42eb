//! UNIX sockets of daemons outside a run's process tree that act for the run's programs, and would
//! thus bypass its chain.
//!
//! | kind | service | refused |
//! |---|---|---|
//! | [`Kind::Resolver`] | look names up | if names are looked up at the far end |
//! | [`Kind::Launcher`] | start programs, or reach daemons that do | under `--strict` |
//!
//! Only seccomp sees connects of UNIX sockets, and can refuse those to such a daemon. So runs with
//! `--via preload` are covered if they also use seccomp, and runs with `--via cgroup` are not.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Service of a daemon for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Looks names up.
    Resolver,
    /// Starts programs, or gives access to daemons that do.
    Launcher,
}

/// Sockets of daemons that look names up, each with the service in the line `hosts:` of
/// nsswitch.conf that uses the daemon; the service is empty if the C library always uses the
/// daemon.
const RESOLVERS: [(&str, &str); 5] = [
    ("/run/nscd/socket", ""),
    ("/run/systemd/resolve/io.systemd.Resolve", "resolve"),
    ("/run/avahi-daemon/socket", "mdns"),
    ("/var/lib/sss/pipes/nss", "sss"),
    ("/run/nslcd/socket", "ldap"),
];
/// System bus, which gives access to daemons of both kinds: systemd-resolved, and systemd itself.
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
const LAUNCHERS: [&str; 8] = [
    "/run/systemd/private",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/libvirt/libvirt-sock",
    "/run/snapd.socket",
    "/var/lib/incus/unix.socket",
];
/// Sockets of launchers that users run, relative to the user's directory in `/run/user`.
const USER_LAUNCHERS: [&str; 3] = ["systemd/private", "docker.sock", "podman/podman.sock"];

/// Returns whether `path`, the `sun_path` of a program's `connect`, is the socket of a daemon of
/// this kind. `base` is the calling thread's `/proc/TID`, which has links to the program's root and
/// working directory.
pub fn is_daemon_socket(kind: Kind, path: &[u8], base: &Path) -> bool {
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    if path.is_empty() {
        // No known daemon has an abstract address.
        return false;
    }
    let path = Path::new(OsStr::from_bytes(path));
    let normalized = normalize(path);
    if kind == Kind::Launcher && is_of_user(&normalized) {
        return true;
    }
    let id = |path: &Path| fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
    let seen = match path.strip_prefix("/") {
        Ok(below) => base.join("root").join(below),
        Err(_) => base.join("cwd").join(path),
    };
    let seen = id(&seen);
    paths(kind).into_iter().any(|known| {
        normalized == Path::new(known) || seen.is_some() && seen == id(Path::new(known))
    })
}

/// Returns the first socket of a running daemon that programs of this machine use to look names up.
pub fn resolver_in_use() -> Option<&'static str> {
    let text = fs::read_to_string("/etc/nsswitch.conf").unwrap_or_default();
    let hosts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("hosts:"))
        .flat_map(str::split_whitespace)
        .collect();
    let is_used =
        |service: &str| service.is_empty() || hosts.iter().any(|word| word.starts_with(service));
    let mut used = RESOLVERS.into_iter().filter(|(_, service)| is_used(service));
    used.find(|(path, _)| is_alive(path)).map(|(path, _)| path)
}

fn paths(kind: Kind) -> Vec<&'static str> {
    let mut paths = match kind {
        Kind::Resolver => RESOLVERS.map(|(path, _)| path).to_vec(),
        Kind::Launcher => LAUNCHERS.to_vec(),
    };
    paths.push(SYSTEM_BUS);
    paths
}

/// Normalises a path: removes `.`, `..` and repeated slashes, and maps `/var/run` to `/run`.
fn normalize(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normalized.pop()),
            Component::CurDir => {}
            part => normalized.push(part),
        }
    }
    match normalized.strip_prefix("/var/run") {
        Ok(below) => Path::new("/run").join(below),
        Err(_) => normalized,
    }
}

fn is_of_user(path: &Path) -> bool {
    let Ok(below) = path.strip_prefix("/run/user") else { return false };
    let mut parts = below.components();
    parts.next().is_some() && USER_LAUNCHERS.iter().any(|of| parts.as_path() == Path::new(of))
}

/// Returns whether a socket is bound at `path`, without connecting to its daemon. Daemons listen on
/// stream sockets, to which a datagram socket cannot connect: `EPROTOTYPE` means that a stream
/// socket is bound.
fn is_alive(path: &str) -> bool {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let Ok(socket) = rustix::net::socket_with(family, SocketType::DGRAM, flags, None) else {
        return false;
    };
    let Ok(at) = SocketAddrUnix::new(path) else { return false };
    matches!(rustix::net::connect(&socket, &at), Ok(()) | Err(Errno::PROTOTYPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(kind: Kind, path: &str) -> bool {
        is_daemon_socket(kind, path.as_bytes(), Path::new("/proc/self"))
    }

    #[test]
    fn resolvers_and_launchers_are_recognized_by_any_spelling() {
        for path in [
            "/run/avahi-daemon/socket",
            "/var/run/nscd/socket",
            "//run/./nslcd/../nslcd/socket",
            "/var/lib/sss/pipes/nss",
            "/run/dbus/system_bus_socket\0rest",
        ] {
            assert!(is(Kind::Resolver, path), "{path}");
        }
        for path in [
            "/var/run/docker.sock",
            "/run/user/1000/podman/podman.sock",
            "/run/systemd/private",
            "/var/run/dbus/system_bus_socket",
        ] {
            assert!(is(Kind::Launcher, path), "{path}");
        }
        for path in
            ["/run/user/1000/bus", "/tmp/.X11-unix/X0", "/run/docker.socket", "\0docker", ""]
        {
            assert!(!is(Kind::Launcher, path) && !is(Kind::Resolver, path), "{path}");
        }
        assert!(!is(Kind::Launcher, "/run/nscd/socket"));
    }

    #[test]
    fn a_live_socket_is_detected_without_a_connection() {
        let path = std::env::temp_dir().join(format!("viaduct-alive-{}", std::process::id()));
        let text = path.to_str().unwrap();
        assert!(!is_alive(text));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(is_alive(text));
        assert!(listener.accept().is_err(), "no connection was made");
        drop(listener);
        assert!(!is_alive(text));
        fs::remove_file(path).unwrap();
    }
}
