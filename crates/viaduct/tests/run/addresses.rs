//! Addresses that programs connect to and from, as the kernel and the far end see them.

use super::{CHAIN, far_end, output, text};

const VIAS: [&str; 3] = ["--via=cgroup", "--via=seccomp", "--via=preload"];

/// Connects from the first argument, unless it is empty, to the second: what the far end has seen, beside the
/// program's own name.
const CONNECT: &str = "
import socket, sys
own, to, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET)
if own: s.bind((own, 0))
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
fn no_address_in_particular_is_this_host() {
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

#[test]
fn an_address_that_is_too_long_is_none() {
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
