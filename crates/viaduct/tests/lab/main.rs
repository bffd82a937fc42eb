//! `viaduct lab` as a user sees it: its output, and the state that it leaves when it is killed.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../../../viaduct-lab/tests/canary/mod.rs"]
mod canary;
#[path = "../common/mod.rs"]
mod common;
mod demo;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use canary::{Canary, interfaces_here};

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");

/// Serialises the demos, whose measurements other tests would disturb.
static MACHINE: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

fn with_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a directory for this test.
fn scratch(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(VIADUCT);
    command.arg("lab").args(args).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Waits until `condition` returns a value; panics after 20 s.
fn wait_until<T>(what: &str, condition: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process IDs of the children of any thread of `pid` that run `program`.
fn children_running(pid: u32, program: &str) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let ids = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
    });
    let runs = |id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == program)
    };
    ids.filter(runs).collect()
}

/// Watches every namespace that the lab keeps open.
fn watch(lab: &Child) -> Canary {
    let mut canary = Canary::new();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    for fd in fs::read_dir(format!("/proc/{}/fd", lab.id())).unwrap().flatten() {
        let target = fs::read_link(fd.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("net:[") && target != own {
            canary.watch(fd.path());
        }
    }
    canary
}

#[test]
fn kill_9_leaves_no_namespace_no_interface_and_no_process() {
    let _others = with_others();
    let before = interfaces_here();
    let mut lab = lab(&["shell", "dumbbell", "--hosts", "2", "--", "sleep", "60"]).spawn().unwrap();
    let sleeper = wait_until("the command in a1", || children_running(lab.id(), "sleep").pop());
    let canary = watch(&lab);
    assert_eq!(canary.alive(), 6, "two gateways, four hosts");
    let files = std::env::temp_dir().join(format!("viaduct-lab-{}-0", lab.id()));
    assert!(files.exists());
    lab.kill().unwrap();
    lab.wait().unwrap();
    canary.assert_all_gone();
    assert_eq!(interfaces_here(), before);
    wait_until("the command's end", || {
        let stat = fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    // A killed lab leaves only its files; the next one removes them.
    assert!(self::lab(&["shell", "dumbbell", "--", "true"]).status().unwrap().success());
    assert!(!files.exists());
}

#[test]
fn ctrl_c_ends_a_run_keeps_its_results_and_leaves_nothing() {
    let _others = with_others();
    let dir = scratch("ctrl_c");
    let json = dir.join("out.json");
    let mut run = lab(&["run", "lab/forwarding-plain", "--json", json.to_str().unwrap(), "--dir"]);
    let mut run = run.arg(&dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_running = || (children_running(run.id(), "iperf3").len() == 2).then_some(());
    wait_until("iperf3, both ends", is_running);
    let canary = watch(&run);
    assert_eq!(canary.alive(), 4);
    let interrupt = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let asked = Instant::now();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(5));
    canary.assert_all_gone();
    let outcome: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(outcome["ended"], "stopped");
    assert_eq!(outcome["params"]["mtu"], 1500, "the parameters known so far are kept");
}

#[test]
fn a_run_leaves_json_and_a_report_can_be_made_of_it() {
    let _others = with_others();
    let dir = scratch("run");
    let (json, results) = (dir.join("out.json"), dir.join("results"));
    let (json, results) = (json.to_str().unwrap(), results.to_str().unwrap());
    let run =
        ["run", "lab/forwarding-plain", "--quick", "--seed", "7", "--json", json, "--dir", results];
    let output = lab(&run).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("holds"), "no readable table: {}", said(&output));
    let outcome: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(outcome["seed"], 7);
    assert_eq!(outcome["congestion_control"], serde_json::json!(["cubic"]));
    let out = dir.join("page");
    let output = lab(&["report", "--out", out.to_str().unwrap(), "--dir", results]).output();
    assert!(output.unwrap().status.success());
    let page = fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("lab run lab/forwarding-plain --seed 7"));
    let fetches = ["src=", "href=\"http", "@import", "url("];
    assert!(!fetches.iter().any(|fetch| page.contains(fetch)), "the page must be self-contained");
}

#[test]
fn a_shell_can_start_gateways() {
    let _others = with_others();
    let script =
        "viaduct status --name site-b | head -1; ping -c1 -W5 $B1 >/dev/null && echo there";
    let args = ["shell", "dumbbell", "--link", "delay=1ms", "--gateways", "--", "sh", "-c", script];
    let output = lab(&args).output().unwrap();
    let said = said(&output);
    assert!(output.status.success() && said.contains("there"), "{said}");
    assert!(said.contains("site-b"), "{said}");
}

#[test]
fn bad_input_gets_one_clear_line() {
    let _others = with_others();
    let dir = scratch("bad");
    let empty = dir.join("nothing");
    let cases: [(&[&str], &str); 4] = [
        (&["run", "nosuch"], "no experiment is named \"nosuch\""),
        (&["run", "all", "--repeat", "0"], "--repeat"),
        (&["shell", "dumbbell", "--hosts", "0"], "hosts is 0, but must be 1 to 250"),
        (&["report", "--dir", empty.to_str().unwrap()], "cannot read the results"),
    ];
    for (args, expected) in cases {
        let output = lab(args).output().unwrap();
        assert!(!output.status.success(), "{args:?}");
        let said = said(&output);
        assert!(said.contains(expected), "{args:?}: {said}");
        // The parser of the command line names `--help` below its message.
        let lines = said.lines().filter(|line| !line.is_empty() && !line.contains("--help"));
        assert_eq!(lines.count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn without_root_the_lab_uses_a_user_namespace_or_names_the_obstacle() {
    let _others = with_others();
    // In a directory that all users may read.
    let dir = std::env::temp_dir().join(format!("viaduct-test-rootless-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let binary = dir.join("viaduct");
    // Copied by another process, because a child of this one could inherit a descriptor open for
    // writing, and a file open for writing cannot be run.
    assert!(Command::new("cp").arg(VIADUCT).arg(&binary).status().unwrap().success());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
    command.args([
        "lab",
        "shell",
        "dumbbell",
        "--link",
        "delay=1ms",
        "--",
        "sh",
        "-c",
        "b1 ip addr && gwa true",
    ]);
    let output = command.current_dir("/").output().unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let said = said(&output);
    if output.status.success() {
        assert!(said.contains("10.2.1.2") && said.contains("fd00:2:0:1::2"), "{said}");
    } else {
        assert!(said.contains("user namespace") || said.contains("/dev/net/tun"), "{said}");
    }
}
