//! `viaduct demo` as a user sees it: the table, the report, the live page, Ctrl-C, and refusals.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use viaduct_lab::binary::copy_program;

use super::common::free_port;
use super::{alone, with_others};

/// Builds the command of the demo, with its report in a new directory of this test.
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
fn the_demo_shows_the_gain_of_four_programs() {
    let _alone = alone();
    let (mut command, dir) = demo("demo", &["--quick"]);
    let json = dir.join("result.json");
    let started = Instant::now();
    let output = command.arg("--json").arg(&json).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        started.elapsed() < Duration::from_secs(180),
        "more than twice the announced time: {said}"
    );
    for program in ["iperf3 (TCP cubic)", "iperf3 (TCP bbr)", "curl, 1 MB", "50 messages/s"] {
        let row = said.lines().find(|line| line.trim_start().starts_with(program)).unwrap();
        assert!(row.contains("x ") && !row.contains("failed"), "{said}");
    }
    assert!(!said.contains('\x1b'), "colours or redrawing without a terminal");

    let result: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let figure = |name: &str| result["params"][name].as_f64().unwrap();
    let factor = figure("cubic_viaduct_mbps") / figure("cubic_plain_mbps");
    assert!(factor >= 20.0, "{factor}: {said}");
    assert!(figure("cubic_packets_rebuilt") > 0.0);
    let repairs = figure("cubic_repair_bytes_per_data_byte");
    assert!((0.005..0.2).contains(&repairs), "the repairs do not match the losses: {repairs}");
    assert_eq!(result["congestion_control"], serde_json::json!(["cubic", "bbr"]));
    assert_eq!(result["command"], "viaduct demo --quick");

    let path = said.lines().find_map(|line| line.strip_prefix("Report: ")).unwrap();
    let page = fs::read_to_string(path.split("  (").next().unwrap()).unwrap();
    assert!(page.contains("<svg") && page.contains("<code>viaduct demo --quick</code>"));
    let fetches = ["src=", "href=\"http", "@import", "url("];
    assert!(!fetches.iter().any(|fetch| page.contains(fetch)), "the page must be self-contained");
}

/// Sends SIGINT when `step` has begun and `check` has returned. Returns the output of the demo.
fn interrupted(mut demo: Child, step: &str, check: impl FnOnce()) -> Output {
    let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines();
    let before: Vec<String> =
        lines.by_ref().map_while(Result::ok).take_while(|line| !line.contains(step)).collect();
    let errors: Vec<_> = before.iter().filter(|line| !line.starts_with("demo [")).collect();
    assert!(errors.is_empty(), "{errors:?}");
    check();
    let interrupt = Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let asked = Instant::now();
    let output = demo.wait_with_output().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(5));
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    output
}

#[test]
fn ctrl_c_ends_the_demo_and_keeps_its_results() {
    let _others = with_others();
    let (mut command, dir) = demo("demo-ctrl-c", &["--quick"]);
    let step = "[1/18] plain kernel: iperf3 (TCP cubic)";
    let output = interrupted(command.spawn().unwrap(), step, || {});
    assert!(said(&output).contains("Stopped"), "{}", said(&output));
    let result = fs::read(dir.join("report/demo.json")).unwrap();
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    assert_eq!(result["ended"], "stopped");
}

/// Reads the response of the dashboard to a request of `path`, up to the text `last`.
fn fetched(port: u16, path: &str, last: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut text, mut bytes) = (String::new(), [0; 16 << 10]);
    while !text.contains(last) {
        let length = stream.read(&mut bytes).unwrap();
        text += &String::from_utf8_lossy(&bytes[..length]);
        assert!(length > 0 && Instant::now() < deadline, "no {last} in {text}");
    }
    text
}

#[test]
fn watch_shows_live_plots_while_the_demo_runs() {
    let _others = with_others();
    let port = free_port();
    let watch = format!("--watch=127.0.0.1:{port}");
    let (mut command, _) = demo("demo-watch", &["--quick", &watch]);
    let mut demo = command.spawn().unwrap();
    let stdout = BufReader::new(demo.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("Live plots: ").map(str::to_owned));
    interrupted(demo, "[1/18] plain kernel: iperf3 (TCP cubic)", || {
        assert_eq!(address, Some(format!("http://127.0.0.1:{port}/")));
        let page = fetched(port, "/", "</html>");
        assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
        assert!(page.contains("<title>viaduct</title>"), "{page}");
        let events = fetched(port, "/events", "event: list");
        assert!(events.contains("event: layout"), "{events}");
    });
    assert!(lines.any(|line| line.contains("Stopped")));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the page ends with the demo");
}

#[test]
fn without_root_the_demo_runs_or_names_the_obstacle() {
    let _alone = alone();
    // In a directory that all users may read and write.
    let dir = std::env::temp_dir().join(format!("viaduct-test-demo-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let binary = dir.join("viaduct");
    copy_program(Path::new(env!("CARGO_BIN_EXE_viaduct")), &binary).unwrap();
    let allowed = {
        let mut unshare = unprivileged(Path::new("unshare"));
        unshare.args(["--user", "--map-root-user", "--net", "test", "-w", "/dev/net/tun"]);
        unshare.stderr(Stdio::null()).status().unwrap().success()
    };
    let port = free_port();
    let mut command = unprivileged(&binary);
    command.args(["demo", "--quick", &format!("--watch=127.0.0.1:{port}")]);
    command.current_dir(&dir).stdin(Stdio::null());
    let demo = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if allowed {
        // By step 10 the web server has served a file, and the gateways are up. Their network
        // cannot be reached from here, but the dashboard can.
        interrupted(demo, "[10/18] with Viaduct: iperf3 (TCP cubic)", || {
            for site in ["site-a", "site-b"] {
                fetched(port, "/events", &format!("\"title\":\"gateway {site}\""));
            }
        });
    } else {
        let text = said(&demo.wait_with_output().unwrap());
        assert!(text.contains("user namespace") || text.contains("/dev/net/tun"), "{text}");
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// Builds the command `program` as an unprivileged user.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command
}

#[test]
fn missing_programs_and_bad_options_give_one_line() {
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
    assert!(said(&output).contains("--out: cannot create"), "{}", said(&output));
}
