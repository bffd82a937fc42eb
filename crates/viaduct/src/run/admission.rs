//! Access control for a run's abstract sockets, to which any local user can connect.
//!
//! A request is accepted if it begins with the run's secret, and comes from the run's user or from
//! root. If root has started the run, a request may also come from a process of the run with any
//! user ID, because programs can change their user ID.

use std::fs;
use std::os::fd::OwnedFd;

use anyhow::Result;
use rustix::net::{SocketType, ipproto, sockopt};
use viaduct_proto::wrap::Secret;
use viaduct_sys::random::random;
use viaduct_sys::socket::seqpacket::Peer;

/// Maximum number of ancestors of a process that are examined.
const MAX_DEPTH: usize = 4096;

/// Returns a secret for a new run.
pub fn secret() -> Result<Secret> {
    Ok(Secret::new(random()?))
}

/// Returns whether `peer` may send requests to this run.
pub fn admits(peer: Peer) -> bool {
    is_trusted(peer.user) || is_root() && is_of_this_run(peer.process)
}

/// Returns whether a socket created by `user` may send requests to this run: `user` is the run's
/// user or root; or root has started the run, and one of the run's processes has this user ID.
pub fn admits_user(user: u32) -> bool {
    is_trusted(user) || is_root() && has_process_of(user)
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::getuid().as_raw()
}

/// Returns whether a process of this run has this user ID.
fn has_process_of(user: u32) -> bool {
    processes().any(|process| users_of(process).contains(&user) && is_of_this_run(process))
}

/// Returns whether `parent` has a child other than `known`. A child that has ended counts until it
/// is reaped.
pub fn has_other_child(parent: u32, known: u32) -> bool {
    processes().any(|process| process != known && parent_of(process) == Some(parent))
}

/// IDs of all processes of this host.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Real, effective, saved and file system user IDs of a process; empty if the process has ended.
/// The owner of `/proc/PID` cannot be used: it is root if the process has changed its user ID.
fn users_of(process: u32) -> Vec<u32> {
    let ids = status_field(process, "Uid:").unwrap_or_default();
    ids.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Returns whether a socket passed by a program is a TCP socket, according to the kernel.
pub fn is_tcp(socket: &OwnedFd) -> bool {
    sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && sockopt::socket_protocol(socket) == Ok(Some(ipproto::TCP))
}

/// Returns whether `process` is a descendant of this process. This process adopts orphans of the
/// run, so all processes of the run are its descendants.
fn is_of_this_run(mut process: u32) -> bool {
    let own = std::process::id();
    for _ in 0..MAX_DEPTH {
        match parent_of(process) {
            Some(parent) if parent == own => return true,
            Some(parent) if parent > 1 => process = parent,
            _ => return false,
        }
    }
    false
}

fn parent_of(process: u32) -> Option<u32> {
    status_field(process, "PPid:")?.trim().parse().ok()
}

fn status_field(process: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_descendants_belong_to_the_run() {
        let mut child = Command::new("sh");
        child
            .args(["-c", "exec 3<&0; cat <&3 & echo $!; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(is_of_this_run(child.id()));
        let grandchild = line.trim().parse().unwrap();
        assert!(is_of_this_run(grandchild));
        assert!(has_other_child(child.id(), 0) && !has_other_child(child.id(), grandchild));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_of_this_run(1) && !is_of_this_run(0));
        assert!(!is_of_this_run(std::os::unix::process::parent_id()));
        let user = rustix::process::getuid().as_raw();
        assert!(admits(Peer { user, process: 1 }));
        assert!(!admits(Peer { user: 65_533, process: 1 }));
    }

    #[test]
    fn only_tcp_sockets_are_accepted() {
        use rustix::net::{AddressFamily, socket};
        let of = |kind, protocol| socket(AddressFamily::INET, kind, protocol).unwrap();
        assert!(is_tcp(&of(SocketType::STREAM, None)));
        assert!(!is_tcp(&of(SocketType::DGRAM, None)));
        let unix = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        assert!(!is_tcp(&unix));
    }
}
