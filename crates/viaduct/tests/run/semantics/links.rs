//! Connects to link-local addresses of IPv6.

use std::process::Command;

use super::{CHAIN, VIADUCT};

/// A network namespace with one link, and a listener on it.
const WORLD: &str = "
ip link set lo up
ip link add link0 type veth peer name link1
ip address add fe80::1/64 dev link0 nodad
ip link set link0 up
python3 -c '
import socket
s = socket.create_server((\"::\", 4000), family=socket.AF_INET6)
while True: s.accept()[0].sendall(b\"there\")
' &
listens=$!
trap 'kill $listens' EXIT
until ss -tln | grep -q :4000; do sleep 0.05; done
\"$@\"
";

const PROGRAM: &str = "
import socket
s = socket.socket(socket.AF_INET6)
s.connect(('fe80::1', 4000, 0, socket.if_nametoindex('link0')))
print(s.recv(5).decode(), s.getpeername()[0].split('%')[0])
";

fn is_reached(via: &str) {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "20", "unshare", "--net", "sh", "-ec", WORLD, "sh"]);
    command.args([VIADUCT, "run", CHAIN, via, "--", "python3", "-c", PROGRAM]);
    let done = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "there fe80::1\n", "{via} {done:?}");
}

#[test]
fn by_cgroup_on_the_only_link() {
    is_reached("--via=cgroup");
}

#[test]
fn by_seccomp() {
    is_reached("--via=seccomp");
}

#[test]
fn by_preload() {
    is_reached("--via=preload");
}
