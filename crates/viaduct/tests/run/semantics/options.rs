//! Socket options of programs apply to the connections that the master opens for them.

use std::path::Path;
use std::process::Command;

use super::VIADUCT;

/// Runs a script in a network namespace in which one address is reachable only by marked
/// connections.
const WORLD: &str = "
ip link set lo up
echo 1 > /proc/sys/net/ipv4/tcp_fwmark_accept
ip address add 198.51.100.1 dev lo
ip rule add pref 10 lookup local
ip rule del pref 0
ip rule add pref 4 fwmark 99 lookup local
ip rule add pref 5 to 198.51.100.1 unreachable
exec python3 \"$@\"
";

fn reach_the_network(via: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/semantics/options.py");
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60", "unshare", "--net", "sh", "-ec", WORLD, "sh"]);
    let done = command.arg(script).args([VIADUCT, via]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.is_empty(), "{said}{done:?}");
}

#[test]
fn by_cgroup() {
    reach_the_network("--via=cgroup");
}

#[test]
fn by_seccomp() {
    reach_the_network("--via=seccomp");
}

#[test]
fn by_preload() {
    reach_the_network("--via=preload");
}
