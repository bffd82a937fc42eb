//! Addresses that programs connect to and from, as the kernel and the far end see them.

use super::common::free_port;
use super::{CHAIN, far_end, output, text};

const VIAS: [&str; 3] = ["--via=cgroup", "--via=seccomp", "--via=preload"];

/// Connects to the address and port in its second and third arguments. The first argument is the
/// address or the port to connect from, or empty. Prints the program's own address, and the one
/// that the far end has seen.
const CONNECT: &str = "
import socket, sys
own, to, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET)
if own.isdigit(): s.bind(('', int(own)))
elif own: s.bind((own, 0))
s.connect((to, port))
s.sendall(b'hello\\n')
s.shutdown(socket.SHUT_WR)
at = s.getsockname()
print(f'{at[0]}:{at[1]}', s.makefile().read().split()[1])
";

fn connect(options: &[&str], own: &str, to: &str, port: u16) -> (String, String) {
    let port = port.to_string();
    let program = ["--report", "--", "python3", "-c", CONNECT, own, to, &port];
    let words: Vec<&str> = [CHAIN].iter().chain(options).chain(&program).copied().collect();
    let output = output(&words);
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_unspecified_address_is_this_host() {
    let v4 = far_end("127.0.0.1:0").port();
    let v6 = far_end("[::1]:0").port();
    for via in VIAS {
        for (to, port) in [("0.0.0.0", v4), ("::ffff:0.0.0.0", v4), ("::", v6)] {
            let (said, report) = connect(&[via], "", to, port);
            assert!(report.contains("1 passed the handlers"), "{via} {to} {said} {report}");
            let (_, report) =
                connect(&[via, "--refuse", "127.0.0.0/8", "--refuse", "[::1]"], "", to, port);
            assert!(report.contains("1 were refused"), "{via} {to} {report}");
        }
    }
}

#[test]
fn the_far_end_sees_the_address_that_a_program_has_bound() {
    let port = far_end("127.0.0.1:0").port();
    for via in VIAS {
        let (said, report) = connect(&[via], "127.0.0.9", "127.0.0.1", port);
        let (own, seen) = said.trim().split_once(' ').unwrap_or_else(|| panic!("{via} {report}"));
        assert!(own == seen && own.starts_with("127.0.0.9:"), "{via} {said}");
    }
}

/// Returns whether both the far end and the socket report the port that a program has bound.
fn is_kept(said: &str, port: u16) -> bool {
    said.split_whitespace().filter(|at| at.ends_with(&format!(":{port}"))).count() == 2
}

#[test]
fn the_far_end_sees_the_port_that_a_program_has_bound() {
    let user = super::common::UnprivilegedUser::new("ports");
    for (to, at) in [("127.0.0.1", "127.0.0.1:0"), ("::1", "[::1]:0")] {
        let far_end = far_end(at).port();
        for via in VIAS {
            let port = free_port();
            let (said, report) = connect(&[via], &port.to_string(), to, far_end);
            assert!(is_kept(&said, port), "{via} {to} {port}: {said} {report}");
        }
        for via in &VIAS[1..] {
            let port = free_port();
            let mut command = user.command(user.viaduct());
            command.args(["run", CHAIN, via, "--", "python3", "-c", CONNECT]);
            command.args([&port.to_string(), to, &far_end.to_string()]);
            let said = command.output().unwrap();
            assert!(
                is_kept(&text(&said.stdout), port),
                "unprivileged, {via} {to} {port}: {said:?}"
            );
        }
    }
}

#[test]
fn a_bound_port_keeps_so_reuseaddr_and_can_be_bound_again() {
    let program = "
import socket, sys
to = ('127.0.0.1', int(sys.argv[1]))
def connect(port, shares):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shares)
    s.bind(('', port))
    s.connect(to)
    s.sendall(b'hello\\n')
    s.shutdown(socket.SHUT_WR)
    said = s.makefile().read().split()
    print(said[0], s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == shares)
connect(0, 0)
for _ in range(2): connect(int(sys.argv[2]), 1)
";
    let far_end = far_end("127.0.0.1:0").port().to_string();
    for via in VIAS {
        let port = free_port().to_string();
        let said = output(&[CHAIN, via, "--", "python3", "-c", program, &far_end, &port]);
        assert_eq!(text(&said.stdout), "hello True\n".repeat(3), "{via} {said:?}");
    }
}

#[test]
fn an_address_that_is_too_long_is_invalid() {
    let port = far_end("127.0.0.1:0").port();
    let program = format!(
        "
import ctypes, socket, struct
c = ctypes.CDLL(None, use_errno=True)
s = socket.socket()
at = struct.pack('=HHI', 2, socket.htons({port}), 0x0100007f) + bytes(200)
print([(c.connect(s.fileno(), at, n), ctypes.get_errno()) for n in (129, 15)])
"
    );
    for via in VIAS {
        let said = output(&[CHAIN, via, "--", "python3", "-c", &program]);
        assert_eq!(text(&said.stdout).trim(), "[(-1, 22), (-1, 22)]", "{via} {said:?}");
    }
}
