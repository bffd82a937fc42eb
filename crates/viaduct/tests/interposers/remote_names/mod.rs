//! Names that are resolved at the far end: real programs reach a host that only the proxy knows,
//! and send no query.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
const WORLD: &str = include_str!("world.sh");

/// A static Go program, built once.
fn get() -> PathBuf {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("get");
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interposers/remote_names/get.go");
    assert!(common::build_go(&at, &source), "go build");
    at
}

fn world(via: &str, get: &Path) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("names-{via}"));
    // Removes files of an earlier run.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let output = Command::new("timeout")
        .args(["120", "unshare", "--net", "--mount", "sh", "-c", WORLD])
        .env("VIADUCT", VIADUCT)
        .env("VIA", via)
        .env("GET", get)
        .current_dir(&directory)
        .output()
        .unwrap();
    let page = "page of mars.test:8080";
    let reported = "tcp mars.test:8080";
    let want = [
        page,
        page,
        page,
        "page of python",
        "mars.test",
        page,
        "not reached",
        reported,
        "queries: 0",
    ];
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..lines.len().min(want.len())], want, "{via}: {output:?}");
    assert_eq!(lines.last(), Some(&"queries of a plain program: seen"), "{via}: {output:?}");
}

#[test]
fn no_dns_query_leaves_under_any_interposer() {
    let get = &get();
    std::thread::scope(|scope| {
        for via in ["cgroup", "seccomp", "preload"] {
            scope.spawn(move || world(via, get));
        }
    });
}

#[test]
fn remote_names_need_a_handler_that_takes_them() {
    let run = |words: &[&str]| Command::new(VIADUCT).arg("run").args(words).output().unwrap();
    let output = run(&["--names", "remote", "+count", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("needs a handler"), "{said}");
    let output = run(&["--names-pool", "10.0.0.0/30", "+count", "--", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("198.18.0.0/15"), "{output:?}");
}
