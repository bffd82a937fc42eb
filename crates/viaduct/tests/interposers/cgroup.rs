//! Redirection by cgroup: which listeners it concerns, and which of a socket's connects completes.

use std::process::{Command, Output};

/// Listens at addresses that are similar to those of [`OTHERS`], until its input ends.
const WRAPPED: &str = "
import socket, sys
kept = []
for family, at in (socket.AF_INET6, ('::1', 8080)), (socket.AF_INET, ('0.0.0.0', 8090)):
    s = socket.socket(family)
    s.bind(at)
    s.listen()
    kept.append(s)
print('ready', flush=True)
sys.stdin.read()
";
/// Starts [`WRAPPED`] under viaduct. Then prints the client's address at the other listeners for a
/// client at `2001:db8::1`.
const OTHERS: &str = "
import socket, subprocess, sys
wrapped = [sys.argv[1], 'run', '+latency:delay=1ms', '--via', 'cgroup', '--']
wrapped += ['python3', '-c', sys.argv[2]]
with subprocess.Popen(wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as wrapped:
    assert wrapped.stdout.readline() == b'ready\\n'
    for host, port in ('2001:db8::1', 8080), ('::', 8090):
        s = socket.socket(socket.AF_INET6)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.bind((host, port))
        s.listen()
        s.settimeout(9)
        with socket.create_connection(('2001:db8::1', port), timeout=9):
            print(s.accept()[1][0], flush=True)
    wrapped.stdin.close()
";

/// From one bound port, connects to a host that does not answer, disconnects, and connects to an
/// echo server. Prints its answer.
const AGAIN: &str = "
import ctypes, select, socket, threading
libc = ctypes.CDLL(None)
listener = socket.create_server(('127.0.0.1', 0))
def serve():
    with listener.accept()[0] as c:
        c.sendall(c.recv(9))
threading.Thread(target=serve, daemon=True).start()
s = socket.socket()
s.bind(('', 7777))
s.setblocking(False)
s.connect_ex(('203.0.113.9', 80))
assert not select.select([], [s], [], 0.5)[1]
assert libc.connect(s.fileno(), bytes(16), 16) == 0
s.connect_ex(listener.getsockname())
assert select.select([], [s], [], 9)[1]
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
s.setblocking(True)
s.sendall(b'hello')
print(s.recv(9).decode())
";

/// Runs a command in a network namespace with the address `2001:db8::1`, where
/// `203.0.113.9` does not answer.
fn isolated(words: &[&str]) -> Output {
    let network = "ip link set lo up; ip -6 addr add 2001:db8::1/128 dev lo nodad; \
                   ip link add d0 type veth peer name d1; ip link set d0 up; \
                   ip link set d1 up; \
                   ip addr add 203.0.113.1/24 dev d0; \
                   ip neigh add 203.0.113.9 lladdr 02:00:00:00:00:09 dev d0; \"$@\"";
    let mut command = Command::new("timeout");
    command.args(["40", "unshare", "-n", "sh", "-c", network, "sh"]).args(words);
    command.output().unwrap()
}

#[test]
fn listeners_outside_of_the_run_with_a_similar_address_keep_their_clients() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let viaduct = env!("CARGO_BIN_EXE_viaduct");
    let said = isolated(&["python3", "-c", OTHERS, viaduct, WRAPPED]);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "2001:db8::1\n2001:db8::1\n", "{said:?}");
}

#[test]
fn a_connect_after_one_that_was_given_up_reaches_its_own_destination() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let run = [env!("CARGO_BIN_EXE_viaduct"), "run", "+latency:delay=1ms", "--via", "cgroup"];
    let said = isolated(&[&run[..], &["--", "python3", "-c", AGAIN]].concat());
    assert_eq!(String::from_utf8_lossy(&said.stdout), "hello\n", "{said:?}");
}
