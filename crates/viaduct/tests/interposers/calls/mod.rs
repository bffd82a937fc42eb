//! Kinds of network calls of programs: each is captured or refused by every interposer; none leaks.
//!
//! The far end finds the owner of each connection (the program itself, or Viaduct) in the
//! descriptors of all processes. Datagrams always come from the program's own socket; the report of
//! Viaduct shows whether they have passed the handlers.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use crate::common::{UnprivilegedUser, build_go, holders_of_other_end};

/// Kinds of calls that `calls.c` makes.
const SHAPES: [&str; 15] = [
    "blocking",
    "epoll-after",
    "epoll-before",
    "syscall",
    "asm",
    "io_uring",
    "posix_spawn",
    "vfork",
    "fork",
    "bare",
    "passed",
    "names",
    "fast-open",
    "udp",
    "udp-many",
];
/// Cases that break interposers, in `traps.c`.
const TRAPS: [&str; 5] = ["closed", "anew", "put-off", "interrupted", "before-main"];
const ENOSYS: i32 = 38;
const ENETUNREACH: i32 = 101;
const CAPTURED: &str = "viaduct";
const DIRECT: &str = "direct";

/// Returns the result of each kind of call under `viaduct run` with these options; without options,
/// the results of the plain programs.
fn outcomes(options: &[&str]) -> Vec<(String, String)> {
    outcomes_of(options, None)
}

/// Returns the results of calls, which are made by `user` if given.
fn outcomes_of(options: &[&str], user: Option<&UnprivilegedUser>) -> Vec<(String, String)> {
    let port = far_end();
    let programs = Programs::get();
    let viaduct = user.map_or(env!("CARGO_BIN_EXE_viaduct").into(), UnprivilegedUser::viaduct);
    let theirs = |program: &Path| match user {
        Some(user) => user.has(program),
        None => program.to_owned(),
    };
    let programs = Programs {
        dynamic: theirs(&programs.dynamic),
        traps: theirs(&programs.traps),
        static_c: theirs(&programs.static_c),
        go: programs.go.as_deref().map(theirs),
        musl: programs.musl.as_deref().map(theirs),
    };
    let once = |program: &Path, shape: &str| {
        let mut command =
            user.map_or_else(|| Command::new("timeout"), |user| user.command("timeout"));
        command.arg("10");
        if !options.is_empty() {
            command.arg(&viaduct).args(["run", "+latency:delay=1ms"]);
            command.args(options).args(["--report", "--"]);
        }
        let output = command.arg(program).args([shape, &port.to_string()]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let report = String::from_utf8_lossy(&output.stderr);
        if said.starts_with("refused") {
            eprintln!("{shape} with {options:?}: {said}: {report}");
        }
        match said.is_empty() {
            true => format!("{}: {report}", output.status),
            false if said == DIRECT && have_passed(&report, port) => CAPTURED.to_owned(),
            false => said,
        }
    };
    // A datagram may be lost when another run in this namespace ends.
    let run = |program: &Path, shape: &str| {
        let mut outcomes = (0..3).map(|_| once(program, shape));
        let first = outcomes.find(|said| said != "no answer");
        first.unwrap_or_else(|| "no answer".to_owned())
    };
    let mut outcomes: Vec<_> =
        SHAPES.iter().map(|shape| ((*shape).to_owned(), run(&programs.dynamic, shape))).collect();
    outcomes.extend(TRAPS.map(|trap| (trap.to_owned(), run(&programs.traps, trap))));
    outcomes.push(("static".to_owned(), run(&programs.static_c, "blocking")));
    match &programs.go {
        Some(go) => outcomes.push(("go".to_owned(), run(go, "blocking"))),
        None => eprintln!("skipped: no Go compiler for the static program"),
    }
    match &programs.musl {
        Some(musl) => outcomes.push(("musl".to_owned(), run(musl, "blocking"))),
        None => eprintln!("skipped: no musl-gcc for the musl program"),
    }
    outcomes
}

/// Returns whether the report lists datagrams to the far end, and no other flow, as passed.
fn have_passed(report: &str, port: u16) -> bool {
    let passed = |via| format!("viaduct: 1 passed the handlers by {via}: 6 bytes out, 6 in");
    ["cgroup", "seccomp", "preload"].iter().any(|via| report.contains(&passed(via)))
        && report.contains(&format!(" 1  udp 127.0.0.1:{port}"))
        && !report.contains("went direct")
}

/// Asserts that all calls are captured, except for those in `refused`, which fail with the given
/// errors.
fn none_leaks(options: &[&str], refused: &[(&str, i32)], user: Option<&UnprivilegedUser>) {
    let outcomes = outcomes_of(options, user);
    for (shape, outcome) in &outcomes {
        let number = refused.iter().find(|(of, _)| of == shape).map(|(_, number)| number);
        let expected = number.map_or(CAPTURED.to_owned(), |number| format!("refused {number}"));
        assert_eq!(*outcome, expected, "{shape} with {options:?}: {outcomes:#?}");
    }
}

#[test]
fn the_plain_programs_reach_the_far_end_themselves() {
    for (shape, outcome) in outcomes(&[]) {
        assert_eq!(outcome, DIRECT, "{shape}");
    }
}

#[test]
fn cgroup_captures_all_with_io_uring_and_datagrams() {
    none_leaks(&["--via", "cgroup", "--strict"], &[], None);
}

#[test]
fn seccomp_captures_all_and_refuses_io_uring() {
    none_leaks(&["--via", "seccomp", "--strict"], &[("io_uring", ENOSYS)], None);
}

#[test]
fn preload_captures_all_and_refuses_io_uring() {
    none_leaks(&["--via", "preload", "--strict"], &[("io_uring", ENOSYS)], None);
}

/// With the preload library, a program's connect fails if `VIADUCT_WRAP` names a master that does
/// not exist. Without this variable, the library changes nothing.
#[test]
fn glibc_and_musl_load_the_same_library() {
    let port = far_end().to_string();
    let library = Path::new(env!("CARGO_BIN_EXE_viaduct")).with_file_name("libviaduct_preload.so");
    let programs = Programs::get();
    for program in [Some(&programs.dynamic), programs.musl.as_ref()].into_iter().flatten() {
        let run = |set: &[(&str, &OsStr)]| {
            let mut command = Command::new(program);
            let output = command.args(["blocking", &port]).envs(set.iter().copied()).output();
            let output = output.unwrap();
            assert!(output.stderr.is_empty(), "the loader has complained: {output:?}");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        let preload = ("LD_PRELOAD", library.as_os_str());
        assert_eq!(run(&[]), DIRECT, "{}", program.display());
        assert_eq!(run(&[preload]), DIRECT, "an interposer is active");
        let asks = run(&[preload, ("VIADUCT_WRAP", OsStr::new("@viaduct-absent;1"))]);
        assert_eq!(asks, format!("refused {ENETUNREACH}"), "{}", program.display());
    }
}

#[test]
fn unprivileged_runs_capture_all_and_refuse_io_uring() {
    let user = UnprivilegedUser::new("shapes");
    // The user's datagrams are captured too, although `/dev/net/tun` may be accessible to root
    // only.
    for via in ["auto", "preload"] {
        none_leaks(&["--via", via, "--strict"], &[("io_uring", ENOSYS)], Some(&user));
    }
}

#[test]
fn datagrams_that_handlers_cannot_carry_are_refused_or_go_direct() {
    let port = far_end();
    for via in ["seccomp", "preload"] {
        for (strict, expected) in [("--strict", "refused 1"), ("--no-strict", DIRECT)] {
            for shape in ["udp", "udp-many"] {
                let program = &Programs::get().dynamic;
                let options = ["10", env!("CARGO_BIN_EXE_viaduct"), "run", "+compress"];
                let mut command = Command::new("timeout");
                command.args(options).args([strict, "--via", via, "--"]).arg(program);
                let output = command.args([shape, &port.to_string()]).output().unwrap();
                assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{output:?}");
                // The library reports its refusals without waiting for an answer, so the report may
                // be lost.
                let said = String::from_utf8_lossy(&output.stderr);
                let tells = said.contains("compress works only on streams");
                assert!(tells || via == "preload", "{said}");
            }
        }
    }
}

/// The test programs, compiled.
struct Programs {
    dynamic: PathBuf,
    traps: PathBuf,
    static_c: PathBuf,
    go: Option<PathBuf>,
    /// Dynamically linked with musl.
    musl: Option<PathBuf>,
}

impl Programs {
    /// Compiles the programs once, for all tests.
    fn get() -> &'static Programs {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        PROGRAMS.get_or_init(Programs::build)
    }

    fn build() -> Programs {
        let library =
            Path::new(env!("CARGO_BIN_EXE_viaduct")).with_file_name("libviaduct_preload.so");
        assert!(library.exists(), "run first: cargo build -p viaduct-preload, in this profile");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interposers/calls");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls");
        fs::create_dir_all(&out).unwrap();
        let names = ["calls", "traps", "static", "go", "musl"];
        let [dynamic, traps, static_c, go, musl] = names.map(|name| out.join(name));
        let compile = |compiler: &str, arguments: &[&OsStr]| {
            let mut command = Command::new(compiler);
            command.args(arguments).env("CGO_ENABLED", "0").env("GOFLAGS", "-trimpath");
            command.status().is_ok_and(|status| status.success())
        };
        let c = source.join("calls.c");
        let [o, c] = [OsStr::new("-o"), c.as_os_str()];
        assert!(compile("cc", &[o, dynamic.as_os_str(), c]));
        assert!(compile("cc", &[o, traps.as_os_str(), source.join("traps.c").as_os_str()]));
        assert!(compile("cc", &[OsStr::new("-static"), o, static_c.as_os_str(), c]));
        let of_musl = source.join("musl.c");
        let compiled = compile("musl-gcc", &[o, musl.as_os_str(), of_musl.as_os_str()]);
        let musl = compiled.then_some(musl);
        let source = source.join("calls.go");
        let go = build_go(&go, &source).then_some(go);
        Programs { dynamic, traps, static_c, go, musl }
    }
}

/// Starts a far end on one port of TCP and UDP. It answers a TCP client with the owner of the
/// connection, and each datagram with [`DIRECT`]. Returns the port.
fn far_end() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let datagrams = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        while let Ok((_, from)) = datagrams.recv_from(&mut [0; 64]) {
            datagrams.send_to(DIRECT.as_bytes(), from).unwrap();
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(|| answer(stream.unwrap()));
        }
    });
    port
}

fn answer(mut stream: TcpStream) {
    let mut asked = [0; 64];
    let length = stream.read(&mut asked).unwrap_or(0);
    let peer = stream.peer_addr().unwrap().port();
    let holders = holders_of_other_end(&stream);
    let viaducts = !holders.is_empty() && holders.iter().all(|name| name == "viaduct");
    let owner = if viaducts { CAPTURED } else { DIRECT };
    let line = match &asked[..length] {
        b"port\n" => format!("{owner} {peer}\n"),
        _ => format!("{owner}\n"),
    };
    // The write fails if the client has ended.
    let _ = stream.write_all(line.as_bytes());
}
