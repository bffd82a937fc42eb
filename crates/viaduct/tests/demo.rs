//! `viaduct demo` as a person meets it: the table, the report, Ctrl-C, and what is refused.
#![allow(clippy::unwrap_used)] // a test may panic

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The demo, with its report in a fresh directory of this test's own.
fn demo(test: &str, args: &[&str]) -> (Command, PathBuf) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    command.arg("demo").args(args).arg("--out").arg(dir.join("report"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (command, dir)
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn four_programs_cross_a_bad_link_and_viaduct_wins_back_what_loss_takes() {
    let (mut command, dir) = demo("demo", &["--quick"]);
    let json = dir.join("result.json");
    let started = Instant::now();
    let output = command.arg("--json").arg(&json).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(started.elapsed() < Duration::from_secs(90), "twice what it promises: {said}");
    for program in ["iperf3 (TCP cubic)", "iperf3 (TCP bbr)", "curl, 1 MB", "50 messages/s"] {
        let row = said.lines().find(|line| line.trim_start().starts_with(program)).unwrap();
        assert!(row.contains("x ") && !row.contains("failed"), "{said}");
    }
    assert!(!said.contains('\x1b'), "no colours and no redrawing where there is no terminal");

    let result: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let figure = |name: &str| result["params"][name].as_f64().unwrap();
    let factor = figure("cubic_viaduct_mbps") / figure("cubic_plain_mbps");
    assert!(factor >= 20.0, "{factor}: {said}");
    assert!(figure("cubic_packets_rebuilt") > 0.0);
    assert!((0.375..1.0).contains(&figure("cubic_repair_bytes_per_data_byte")), "(8,3) and heads");
    assert_eq!(result["congestion_control"], serde_json::json!(["cubic", "bbr"]));
    assert_eq!(result["command"], "viaduct demo --quick");

    let path = said.lines().find_map(|line| line.strip_prefix("Report: ")).unwrap();
    let page = fs::read_to_string(path.split("  (").next().unwrap()).unwrap();
    assert!(page.contains("<svg") && page.contains("<code>viaduct demo --quick</code>"));
    let fetches = ["src=", "href=\"http", "@import", "url("];
    assert!(!fetches.iter().any(|fetch| page.contains(fetch)), "the page must stand alone");
}

#[test]
fn ctrl_c_ends_it_soon_and_shows_what_there_is() {
    let (mut command, dir) = demo("demo-ctrl-c", &["--quick"]);
    let mut demo = command.spawn().unwrap();
    let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("[1/8] plain kernel: iperf3 (TCP cubic)"), "{first}");
    let interrupt = Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let asked = Instant::now();
    let output = demo.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(asked.elapsed() < Duration::from_secs(5));
    assert!(said(&output).contains("Stopped: the table is partial."), "{}", said(&output));
    assert!(dir.join("report/demo.json").exists(), "what was found until then is kept");
}

#[test]
fn what_is_missing_or_cannot_be_is_said_in_one_line() {
    let output = demo("demo-missing", &[]).0.env("PATH", "/nowhere").output().unwrap();
    let text = said(&output);
    assert!(!output.status.success());
    assert!(text.contains("not installed: apt-get install") && text.contains("iperf3"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");

    let output = demo("demo-bad", &["--loss", "50%"]).0.output().unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("a share from 0% to 20%"), "{}", said(&output));

    let (mut command, dir) = demo("demo-out", &[]);
    fs::write(dir.join("report"), "a file").unwrap();
    let output = command.output().unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("--out: cannot make"), "{}", said(&output));
}
