//! Attempts to bypass a run: other call numbers for the same calls, addresses without a family,
//! changes by a second thread, and daemons that act for programs.

use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{VIADUCT, output, text};

/// Error number, as `escapes.c` prints it.
const ENOSYS: i32 = 38;
const VIAS: [&str; 3] = ["cgroup", "seccomp", "preload"];

/// Compiles `escapes.c` once, and returns the path of the program.
fn program() -> &'static str {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let path = PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/escapes.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("escapes");
        let made = Command::new("cc").arg("-pthread").arg("-o").arg(&out).arg(source).status();
        assert!(made.unwrap().success());
        out
    });
    path.to_str().unwrap()
}

/// Returns the output of the program under these options, as pairs of a call and its result.
fn said(options: &[&str], words: &[&str]) -> Vec<(String, String)> {
    let output = output(&[options, &["--", program()], words].concat());
    assert!(output.status.success(), "{options:?} {words:?}: {output:?}");
    let pair = |line: &str| {
        let (what, result) = line.split_once(' ').unwrap();
        (what.to_owned(), result.to_owned())
    };
    let has_abi = |(way, _): &(String, String)| {
        let lacks = missing_abis().contains(way);
        if lacks {
            eprintln!("skipped: {way}: this kernel has no such calls");
        }
        !lacks
    };
    text(&output.stdout).lines().map(pair).filter(has_abi).collect()
}

/// Returns the kinds of call numbers that this kernel does not support, tested outside of any run.
fn missing_abis() -> &'static [String] {
    static MISSING: OnceLock<Vec<String>> = OnceLock::new();
    MISSING.get_or_init(|| {
        let output = Command::new(program()).args(["machines", "1", "1", "0"]).output().unwrap();
        let lacks = |line: &str| line.strip_suffix(&format!(" {ENOSYS}")).map(str::to_owned);
        text(&output.stdout).lines().filter_map(lacks).collect()
    })
}

#[test]
fn refused_families_are_refused_under_every_call_number() {
    // Packet sockets, and those of virtual machines (vsock).
    for kind in [["17", "3", "0"], ["40", "1", "0"]] {
        for via in VIAS {
            let words = [&["machines"], &kind[..]].concat();
            for (way, result) in said(&["+count", "--via", via, "--strict"], &words) {
                assert_ne!(result, "done", "{kind:?} {way} by {via}");
            }
        }
    }
}

#[test]
fn datagram_sockets_are_refused_under_other_call_numbers() {
    for via in ["seccomp", "preload"] {
        let words = ["machines", "2", "2", "0"];
        let outcomes = said(&["+latency:delay=1ms", "--via", via], &words);
        for (way, result) in outcomes {
            assert_eq!(result == "done", way == "native", "{way} by {via}: {result}");
        }
    }
}

#[test]
fn unix_sockets_are_allowed_under_other_call_numbers() {
    // C libraries open UNIX sockets by these numbers. By cgroup, a program that uses `socketcall`
    // gets ENOSYS and falls back to `socket`.
    for via in VIAS {
        let outcomes = said(&["+count", "--via", via, "--strict"], &["machines", "1", "1", "0"]);
        for (way, result) in outcomes {
            if way == "native" || way == "i386" {
                assert_eq!(result, "done", "{way} by {via}");
            }
        }
    }
}

#[test]
fn a_datagram_without_a_family_is_refused_like_any_other() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = far.local_addr().unwrap().port().to_string();
    for via in VIAS {
        let options = ["+compress", "--via", via, "--strict", "--except", "udp:53"];
        for (call, result) in said(&options, &["unspecified", &port]) {
            assert_eq!(result, "1", "{call} by {via}");
        }
    }
    far.set_nonblocking(true).unwrap();
    assert!(far.recv(&mut [0; 99]).is_err(), "a datagram has arrived");
}

#[test]
fn excepted_datagrams_arrive_unaltered() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let port = far.local_addr().unwrap().port().to_string();
    let except = format!("udp:{port}");
    for via in VIAS {
        let options = ["+compress", "--via", via, "--strict", "--except", &except];
        let outcomes = said(&options, &["unspecified", &port]);
        assert_eq!(outcomes.len(), 5, "{via} {outcomes:?}");
        for (call, result) in outcomes {
            let expected = if call == "lengths" { "7 7" } else { "done" };
            assert_eq!(result, expected, "{call} by {via}");
        }
        for expected in ["plain", "sendto", "sendmsg", "sendmsg", "sendmsg"] {
            let mut bytes = [0; 99];
            let length = far.recv(&mut bytes).unwrap();
            assert_eq!(text(&bytes[..length]), expected, "{via}");
        }
    }
}

/// Returns whether the kernel can keep a program from connecting (`landlock(7)`, version 4 and
/// later).
fn can_confine() -> bool {
    let ask = "import ctypes; raise SystemExit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 4)";
    Command::new("python3").args(["-c", ask]).status().unwrap().success()
}

#[test]
fn a_second_thread_cannot_change_a_checked_address() {
    if !can_confine() {
        eprintln!("skipped: this kernel cannot restrict connects (landlock)");
        return;
    }
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    far.set_nonblocking(true).unwrap();
    let port = far.local_addr().unwrap().port().to_string();
    for via in ["seccomp", "preload"] {
        // The proxy does not exist: a connection that arrives has bypassed it.
        let options = ["+socks:via=127.0.0.1:1", "--via", via, "--strict"];
        let output = output(&[&options[..], &["--", program(), "race", &port, "4000"]].concat());
        assert_eq!(text(&output.stdout), "raced\n", "{output:?}");
        assert!(far.accept().is_err(), "by {via} a connection has bypassed the chain");
    }
}

#[test]
fn an_excepted_connect_goes_direct_in_strict_mode() {
    let far = super::far_end("127.0.0.1:0").to_string();
    let except = format!("tcp:{far}");
    for via in ["seccomp", "preload"] {
        let options = [super::CHAIN, "--via", via, "--strict", "--report", "--except", &except];
        let output = output(&[&options[..], &["--", "python3", "-c", super::TELL, &far]].concat());
        assert!(text(&output.stdout).contains("hello 127.0.0.1"), "{output:?}");
        assert!(text(&output.stderr).contains("1 went direct"), "{output:?}");
    }
}

#[test]
fn sockets_of_daemons_that_act_for_programs_are_refused() {
    // Runs in a mount namespace with a /run of its own.
    let script = r#"
import os, socket, subprocess, sys
viaduct, program = sys.argv[1:]
paths = ['/run/docker.sock', '/run/dbus/system_bus_socket', '/run/avahi-daemon/socket', '/run/mine']
os.makedirs('/run/dbus'); os.makedirs('/run/avahi-daemon')
listeners = [socket.socket(socket.AF_UNIX) for _ in paths]
for listener, path in zip(listeners, paths): listener.bind(path); listener.listen()
os.symlink('/run/docker.sock', '/run/alias')
os.chdir('/run/dbus')
tried = paths + ['/run/alias', '/run/../run//docker.sock', 'system_bus_socket']
for via in 'seccomp', 'preload':
    for chain in ['+compress'], ['+socks:via=127.0.0.1:1'], ['+compress', '--no-strict']:
        print(via, *chain, flush=True)
        strict = ['--strict'] if chain == ['+compress'] else []
        run = [viaduct, 'run', '--via', via, *chain, *strict, '--', program, 'paths', *tried]
        subprocess.run(run)
"#;
    let inside = "mount -t tmpfs none /run && exec timeout 20 python3 -c \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", inside, script]);
    let output = command.args([VIADUCT, program()]).output().unwrap();
    let all = |[docker, bus, avahi]: [&str; 3]| {
        [
            ("/run/docker.sock", docker),
            ("/run/dbus/system_bus_socket", bus),
            ("/run/avahi-daemon/socket", avahi),
            ("/run/mine", "done"),
            ("/run/alias", docker),
            ("/run/../run//docker.sock", docker),
            ("system_bus_socket", bus),
        ]
        .map(|(path, result)| format!("{path} {result}\n"))
        .concat()
    };
    let mut expected = String::new();
    for via in ["seccomp", "preload"] {
        expected += &format!("{via} +compress\n{}", all(["111", "111", "done"]));
        expected += &format!("{via} +socks:via=127.0.0.1:1\n{}", all(["111", "111", "111"]));
        expected += &format!("{via} +compress --no-strict\n{}", all(["done", "done", "done"]));
    }
    assert_eq!(text(&output.stdout), expected, "{output:?}");
    assert!(text(&output.stderr).contains("connect to /run/docker.sock"), "{output:?}");
}
