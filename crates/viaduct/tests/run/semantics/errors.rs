//! Connects that the kernel itself refuses return the kernel's error.

use std::process::Command;

use super::{CHAIN, VIADUCT};

/// A network namespace whose only routes are a prohibited one, a black hole and an unreachable one.
const WORLD: &str = "
ip link set lo up
ip route add prohibit 192.0.2.1
ip route add blackhole 192.0.2.2
ip route add unreachable 192.0.2.3
ip route add prohibit 2001:db8::1
ip route add unreachable 2001:db8::3
exec \"$@\"
";

const PROGRAM: &str = "
import errno, socket
for host in '192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 2001:db8::1 2001:db8::3 2001:db8::4'.split():
    s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
    print(host, errno.errorcode.get(s.connect_ex((host, 9))))
s = socket.socket()
s.bind(('127.0.0.2', 0))
print('from 127.0.0.2', errno.errorcode.get(s.connect_ex(('192.0.2.4', 9))))
";

fn said(run: &[&str]) -> Vec<String> {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30", "unshare", "--net", "sh", "-ec", WORLD, "sh"]).args(run);
    let done = command.args(["python3", "-c", PROGRAM]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect()
}

fn as_the_kernel(via: &str, but: &[&str]) {
    let (plain, wrapped) = (said(&[]), said(&[VIADUCT, "run", CHAIN, via, "--"]));
    let differ: Vec<_> =
        plain.iter().zip(&wrapped).filter(|(plain, wrapped)| plain != wrapped).collect();
    let wrapped_lines: Vec<&str> = differ.iter().map(|(_, wrapped)| wrapped.as_str()).collect();
    assert!(plain.len() == wrapped.len() && wrapped_lines == but, "{via}: {differ:#?}");
}

#[test]
fn by_cgroup_except_for_two_errors() {
    // The interposer reports errors by ICMP, and no ICMP message of IPv4 makes the kernel return
    // the errors of these two routes.
    as_the_kernel("--via=cgroup", &["192.0.2.1 ECONNREFUSED", "192.0.2.2 EHOSTUNREACH"]);
}

#[test]
fn by_seccomp() {
    as_the_kernel("--via=seccomp", &[]);
}

#[test]
fn by_preload() {
    as_the_kernel("--via=preload", &[]);
}
