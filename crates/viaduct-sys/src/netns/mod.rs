//! Network namespaces without names, and the [capture namespace](capture_ns), in which wrapped
//! programs run or listen.
//!
//! A namespace is kept alive only by a descriptor of this process and by the threads and children
//! in it. Nothing is mounted in `/run/netns`: when the process ends, even by `kill -9`, the kernel
//! removes the namespaces and every interface in them.
//!
//! ```text
//!   this process            the namespace
//!   Netns (a descriptor) ── keeps alive ──> interfaces, routes, sysctls, sockets
//!      enter(|| …)          runs a closure in a thread inside
//!      command("ip")        a program inside, which dies with the thread that starts it
//!      path()               /proc/<pid>/fd/<n>, for `ip link … netns PATH`, `nsenter --net=PATH`
//! ```
#![allow(unsafe_code)]

pub mod capture_ns;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::os;
use crate::process::die_with_parent;

/// `SO_NETNS_COOKIE`.
pub(crate) const NETNS_COOKIE: libc::c_int = 71;

/// Errors of namespaces.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The kernel did not create the namespace.
    #[error(
        "cannot create a network namespace (requires root, or a kernel that allows unprivileged \
         user namespaces)"
    )]
    Create(#[source] io::Error),
    /// A thread could not be started or moved into the namespace, or the namespace's processes or
    /// settings could not be read.
    #[error("cannot enter a network namespace or read from it")]
    Enter(#[source] io::Error),
    /// The kernel refused a setting.
    #[error("cannot set {key} to {value:?} in a network namespace")]
    Sysctl {
        /// Path below `/proc/sys`, such as `net/ipv4/ip_forward`.
        key: String,
        /// The value.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a user namespace to a process without root.
    #[error("cannot create an unprivileged user namespace; {hint}")]
    User {
        /// The kernel's answer.
        source: io::Error,
        /// Advice on how to allow it.
        hint: &'static str,
    },
}

/// A network namespace, kept alive by a descriptor. Clones share it.
#[derive(Clone, Debug)]
pub struct Netns {
    fd: Arc<OwnedFd>,
}

impl Netns {
    /// Creates a namespace. Its only interface is a loopback interface, which is down.
    pub fn new() -> Result<Netns, NetnsError> {
        let make = || -> io::Result<OwnedFd> {
            // SAFETY: the only flag is NEWNET, which unshares nothing that memory safety depends on
            // (file descriptor tables and the like stay shared).
            unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
            Ok(fs::File::open("/proc/thread-self/ns/net")?.into())
        };
        // Runs in a new thread, so that the caller stays in its namespace. The descriptor outlives
        // the thread.
        let fd = in_thread(make).and_then(|made| made).map_err(NetnsError::Create)?;
        Ok(Netns { fd: Arc::new(fd) })
    }

    /// Returns the namespace that the calling thread is in.
    pub fn current() -> Result<Netns, NetnsError> {
        let file = fs::File::open("/proc/thread-self/ns/net").map_err(NetnsError::Enter)?;
        Ok(Netns { fd: Arc::new(file.into()) })
    }

    /// Runs `work` in a thread inside the namespace and waits for it. Sockets that `work` opens
    /// stay in the namespace permanently. A panic in `work` is propagated. Errors: no thread can be
    /// started, or the kernel refuses to move it into the namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        in_thread(|| self.join().map(|()| work()))
            .and_then(|entered| entered)
            .map_err(NetnsError::Enter)
    }

    /// Moves the calling thread, and threads that it starts later, into the namespace permanently.
    pub fn join(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Returns a command that runs `program` inside the namespace. The program is killed when the
    /// thread that spawns it ends; [`crate::process::Process::spawn`] spawns from a thread that
    /// lives as long as this process.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        die_with_parent(&mut command);
        let netns = self.clone();
        // SAFETY: between fork and exec the closure makes one system call on a descriptor that it
        // owns; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(move || netns.join()) };
        command
    }

    /// Returns a path for `ip link add … netns` and `nsenter --net=`, valid while this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Returns the namespace's inode number, as in `net:[4026531840]`.
    pub fn id(&self) -> Result<u64, NetnsError> {
        Ok(fs::metadata(self.path()).map_err(NetnsError::Enter)?.ino())
    }

    /// Kills every process whose main thread is in the namespace, except this process. Daemons that
    /// a program has left behind would keep the namespace alive.
    pub fn kill_all(&self) -> Result<(), NetnsError> {
        let id = self.id()?;
        let own = std::process::id().cast_signed();
        for entry in fs::read_dir("/proc").map_err(NetnsError::Enter)?.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(pid) = pid.filter(|pid| *pid != own).and_then(Pid::from_raw) else { continue };
            // The pidfd is opened before the check. If the process ends and another one gets its
            // PID in between, the pidfd still refers to the first one, and the signal has no
            // effect.
            let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if fs::metadata(entry.path().join("ns/net")).is_ok_and(|ns| ns.ino() == id) {
                // A process that has just ended needs no signal.
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        Ok(())
    }

    /// Writes settings such as `("net/ipv4/ip_forward", "1")` inside the namespace. Stops at the
    /// first setting that the kernel refuses.
    pub fn set_sysctls(&self, settings: &[(&str, &str)]) -> Result<(), NetnsError> {
        self.enter(|| settings.iter().try_for_each(|(key, value)| write_sysctl(key, value)))?
    }

    /// Reads a setting inside the namespace, without the trailing newline.
    pub fn sysctl(&self, key: &str) -> Result<String, NetnsError> {
        let path = format!("/proc/sys/{key}");
        let text = self.enter(|| fs::read_to_string(path))?.map_err(NetnsError::Enter)?;
        Ok(text.trim_end().to_owned())
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the cookie of the calling thread's network namespace, unique in this kernel. Errors: the
/// kernel has no such cookie (before 5.14), or no socket can be opened.
pub fn cookie() -> io::Result<u64> {
    let socket = os::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    os::getsockopt(socket.as_fd(), libc::SOL_SOCKET, NETNS_COOKIE)
}

/// Moves the calling thread into a new network namespace permanently. Errors: CAP_SYS_ADMIN is
/// missing.
pub fn move_to_new() -> Result<(), NetnsError> {
    // SAFETY: as in [`Netns::new`].
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| NetnsError::Create(e.into()))
}

/// Makes this process, which is not root, the root of a new user namespace with a new network
/// namespace, so that everything in this module works. Must be called at the start of `main`,
/// before any thread is started. Errors: the kernel refuses; the message names the setting that
/// would allow the user namespace.
pub fn enter_user_namespace() -> Result<(), NetnsError> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // SAFETY: the flags create namespaces and unshare nothing that memory safety depends on.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
        .map_err(|e| user_error(e.into()))?;
    let map = |file: &str, text: String| fs::write(format!("/proc/self/{file}"), text);
    // Without `deny` the kernel refuses a group map from a process without root.
    map("setgroups", "deny".into())
        .and_then(|()| map("uid_map", format!("0 {uid} 1")))
        .and_then(|()| map("gid_map", format!("0 {gid} 1")))
        .map_err(user_error)
}

fn user_error(source: io::Error) -> NetnsError {
    let hint = match rustix::io::Errno::from_io_error(&source) {
        Some(rustix::io::Errno::INVAL) if !Path::new("/proc/self/ns/user").exists() => {
            "the kernel has none (CONFIG_USER_NS): run as root"
        }
        Some(rustix::io::Errno::INVAL) => "it must be created before the process starts threads",
        Some(rustix::io::Errno::NOSPC | rustix::io::Errno::USERS) => {
            "sysctl user.max_user_namespaces allows no more: raise it, or run as root"
        }
        _ => {
            "the kernel forbids it (see sysctl kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns and user.max_user_namespaces): run as \
             root"
        }
    };
    NetnsError::User { source, hint }
}

fn write_sysctl(key: &str, value: &str) -> Result<(), NetnsError> {
    fs::write(format!("/proc/sys/{key}"), value).map_err(|source| NetnsError::Sysctl {
        key: key.to_owned(),
        value: value.to_owned(),
        source,
    })
}

/// Runs `work` in a new thread and waits for it. A panic is propagated.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_new_namespace_has_its_own_id_and_only_a_loopback_interface() {
        let (here, new) = (Netns::current().unwrap(), Netns::new().unwrap());
        assert_ne!(here.id().unwrap(), new.id().unwrap());
        let listed = new.command("ip").args(["-o", "link"]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert_eq!(listed.lines().count(), 1, "{listed}");
        assert!(listed.contains("lo:"), "{listed}");
    }

    #[test]
    fn the_caller_stays_where_it_is() {
        let before = Netns::current().unwrap().id().unwrap();
        let netns = Netns::new().unwrap();
        let inside = netns.enter(|| Netns::current().unwrap().id().unwrap()).unwrap();
        assert_eq!(inside, netns.id().unwrap());
        assert_eq!(Netns::current().unwrap().id().unwrap(), before);
    }

    #[test]
    fn a_socket_stays_in_the_namespace_that_it_was_opened_in() {
        let netns = Netns::new().unwrap();
        assert!(netns.command("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let inside = netns.enter(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let to = inside.local_addr().unwrap();
        inside.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        // Outside the namespace the same address belongs to another stack.
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"outside", to).unwrap();
        netns
            .enter(|| UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"inside", to).unwrap())
            .unwrap();
        let mut got = [0; 16];
        let len = inside.recv(&mut got).unwrap();
        assert_eq!(&got[..len], b"inside");
    }

    #[test]
    fn a_daemon_inside_is_killed_and_one_outside_is_not() {
        let (netns, other) = (Netns::new().unwrap(), Netns::new().unwrap());
        let mut inside = netns.command("sleep").arg("60").spawn().unwrap();
        let mut outside = other.command("sleep").arg("60").spawn().unwrap();
        netns.kill_all().unwrap();
        assert!(!inside.wait().unwrap().success());
        assert!(outside.try_wait().unwrap().is_none());
        outside.kill().unwrap();
        outside.wait().unwrap();
    }

    #[test]
    fn each_namespace_has_its_own_settings() {
        let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
        one.set_sysctls(&[("net/ipv4/ip_forward", "1")]).unwrap();
        two.set_sysctls(&[("net/ipv4/ip_forward", "0")]).unwrap();
        assert_eq!(one.sysctl("net/ipv4/ip_forward").unwrap(), "1");
        assert_eq!(two.sysctl("net/ipv4/ip_forward").unwrap(), "0");
    }

    #[test]
    fn a_refused_setting_is_named() {
        let refused = Netns::new().unwrap().set_sysctls(&[("net/ipv4/no_such_thing", "1")]);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("net/ipv4/no_such_thing") && text.contains("\"1\""), "{text}");
    }

    #[test]
    fn a_veth_pair_can_have_its_ends_in_two_namespaces() {
        let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
        let add = ["link", "add", "left", "type", "veth", "peer", "name", "right", "netns"];
        assert!(one.command("ip").args(add).arg(two.path()).status().unwrap().success());
        for (netns, name) in [(&one, "left"), (&two, "right")] {
            let show = netns.command("ip").args(["link", "show", name]).output().unwrap();
            assert!(show.status.success(), "{name} is not where it should be");
        }
    }

    #[test]
    fn a_panic_inside_is_propagated() {
        let netns = Netns::new().unwrap();
        let caught = std::panic::catch_unwind(|| netns.enter(|| panic!("inside")));
        assert!(caught.is_err());
    }
}
