//! Kernel offload: if a whole chain can be offloaded, the wrapped program has the socket of the
//! real connection, and makes no additional system calls.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};

use crate::common::holders_of_other_end;

/// Connects, sends lines and reads the answers, on descriptor 3.
const PROGRAM: &str = "exec 3<>/dev/tcp/127.0.0.1/$0; echo hello >&3; read -u 3 answer; \
                       echo and more >&3; read -u 3 answer; exec 3>&-";
const LINES: usize = 2;

/// Observations of a run of the program.
struct Seen {
    /// System calls of the program in order, beginning with its connect.
    calls: Vec<String>,
    /// Programs that hold the near end of the connection to the far end.
    holders: Vec<String>,
}

/// Runs the program under `viaduct run` with these words; without words, without viaduct.
fn run(words: &[&str]) -> Seen {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let far_end: JoinHandle<Vec<String>> =
        thread::spawn(move || answer(listener.accept().unwrap().0));
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("offload-{port}"));
    let mut command = Command::new("timeout");
    command.arg("20");
    if !words.is_empty() {
        command.arg(env!("CARGO_BIN_EXE_viaduct")).arg("run").args(words).arg("--");
    }
    command.arg("strace").arg("-o").arg(&trace).args(["bash", "-c", PROGRAM, &port]);
    assert!(command.status().unwrap().success(), "{words:?}");
    let text = fs::read_to_string(&trace).unwrap();
    let calls = text.lines().skip_while(|line| !line.starts_with("connect(3"));
    let name = |line: &str| line.split('(').next().unwrap().to_owned();
    Seen { calls: calls.map(name).collect(), holders: far_end.join().unwrap() }
}

/// Answers each line. Returns the programs that held the other end meanwhile.
fn answer(stream: TcpStream) -> Vec<String> {
    let mut writer = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines();
    let mut holders = Vec::new();
    for _ in 0..LINES {
        assert!(lines.next().is_some());
        holders = holders_of_other_end(&writer);
        writer.write_all(b"hello\n").unwrap();
    }
    assert!(lines.next().is_none(), "another process holds the end");
    holders
}

#[test]
fn an_offloaded_program_holds_the_real_socket_and_makes_no_further_call() {
    let (plain, offloaded) = (run(&[]), run(&["+count"]));
    assert_eq!(plain.holders, ["bash"]);
    assert_eq!(offloaded.holders, ["bash"], "the socket is the program's own");
    assert!(plain.calls.len() > 5, "{:?}", plain.calls);
    assert_eq!(offloaded.calls, plain.calls);
}

#[test]
fn without_offload_viaduct_holds_the_far_ends_connection() {
    let (plain, passing) = (run(&[]), run(&["+count", "--no-offload"]));
    assert_eq!(passing.holders, ["viaduct"]);
    assert_eq!(passing.calls, plain.calls, "the program's own calls are the same without offload");
}
