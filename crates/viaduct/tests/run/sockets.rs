//! Sockets that would bypass the handlers, which `--strict` refuses; those that cannot work with
//! handlers (MPTCP), which are always refused; and programs in another network namespace.

use super::{CHAIN, far_end, output, text};

/// Opens a socket of each kind in its arguments, `family,type,protocol`, and prints the result of
/// each.
const OPEN: &str = "
import socket, sys
for kind in sys.argv[1:]:
    try: socket.socket(*map(int, kind.split(','))).close(); print(kind, 'opened')
    except OSError as e: print(kind, e.errno)
";
const EPERM: &str = "1";
const ENETUNREACH: &str = "101";
const EPROTONOSUPPORT: &str = "93";

/// Returns the results of opening these sockets under these options.
fn opened(options: &[&str], kinds: &[&str]) -> Vec<(String, String)> {
    let program = [&[CHAIN], options, &["--", "python3", "-c", OPEN], kinds].concat();
    let output = output(&program);
    assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    let pair =
        |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    text(&output.stdout).lines().map(pair).collect()
}

fn expect(options: &[&str], expected: &[(&str, &str)]) {
    let kinds: Vec<&str> = expected.iter().map(|(kind, _)| *kind).collect();
    let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
    let expected: Vec<_> = expected.iter().map(owned).collect();
    assert_eq!(opened(options, &kinds), expected, "{options:?}");
}

#[test]
fn strict_refuses_raw_sockets_and_other_protocols() {
    for via in ["cgroup", "seccomp", "preload"] {
        let options = ["--via", via, "--strict"];
        // Raw sockets of ICMP, of any protocol, of TCP and of ICMPv6; unprivileged ping; SCTP;
        // packet sockets; UDP-Lite.
        let kinds =
            ["2,3,1", "2,3,255", "2,3,6", "10,3,58", "2,2,1", "2,1,132", "17,3,0", "2,2,136"];
        let refused = opened(&options, &kinds);
        for (kind, outcome) in refused {
            assert_ne!(outcome, "opened", "{kind} by {via}");
        }
        let plain = [("2,1,0", "opened"), ("10,1,6", "opened"), ("1,1,0", "opened")];
        expect(&options, &plain);
    }
}

#[test]
fn without_strict_raw_sockets_are_allowed() {
    for via in ["cgroup", "seccomp", "preload"] {
        expect(&["--via", via], &[("2,3,1", "opened"), ("2,2,0", "opened")]);
    }
    expect(&["--via", "cgroup", "--strict"], &[("2,3,1", EPERM)]);
}

#[test]
fn mptcp_sockets_are_refused() {
    for via in ["cgroup", "seccomp", "preload"] {
        let options = ["--via", via];
        expect(&options, &[("2,1,262", EPROTONOSUPPORT), ("10,1,262", EPROTONOSUPPORT)]);
    }
}

/// Connects from a new network namespace, in which the master does not listen, and then from the
/// original one.
const ELSEWHERE: &str = "
import ctypes, os, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
pid = os.fork()
if pid == 0:
    os.unshare(os.CLONE_NEWNET) if hasattr(os, 'unshare') else ctypes.CDLL(None).unshare(0x40000000)
    os.system('ip link set lo up')
    listener = socket.create_server(('127.0.0.1', 0))
    try:
        socket.create_connection(listener.getsockname(), 5)
        print('connected')
    except OSError as e: print(e.errno)
    try:
        socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', listener.getsockname())
        print('sent')
    except OSError as e: print(e.errno, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
socket.create_connection((host, int(port)), 5)
print('there')
";

#[test]
fn a_program_in_another_network_namespace_is_refused() {
    let at = far_end("127.0.0.1:0").to_string();
    // The preload library sends its request from the new namespace, where the master does not
    // listen.
    for (via, errno) in [("cgroup", EPERM), ("seccomp", EPERM), ("preload", ENETUNREACH)] {
        let words = [CHAIN, "--via", via, "--", "python3", "-c", ELSEWHERE, &at];
        let output = output(&words);
        let said = format!("{errno}\n{EPERM}\nthere\n");
        assert_eq!(text(&output.stdout), said, "{via} {}", text(&output.stderr));
    }
}
