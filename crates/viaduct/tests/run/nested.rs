//! Runs above each other: a flow passes the chains of both, or the inner run says why it cannot.

use super::{CHAIN, TELL, VIADUCT, far_end, output, text};

/// A program that connects under two runs, each with these options and a report.
fn above(outer: &[&str], inner: &[&str]) -> std::process::Output {
    let to = far_end("127.0.0.1:0").to_string();
    let program = ["--report", "--", "python3", "-c", TELL, &to];
    let outer = [&[CHAIN], outer, &["--report", "--", VIADUCT, "run", CHAIN], inner].concat();
    output(&[outer.as_slice(), &program].concat())
}

#[test]
fn a_run_above_a_run_by_cgroup_passes_both() {
    for via in ["cgroup", "seccomp", "preload"] {
        let output = above(&[], &["--via", via]);
        assert!(text(&output.stdout).contains("hello"), "{output:?}");
        let report = text(&output.stderr);
        for via in ["cgroup", via] {
            let passed = format!("1 passed the handlers by {via}: 6 bytes out");
            assert!(report.contains(&passed), "{passed}: {report}");
        }
        assert_eq!(report.matches("1 passed the handlers").count(), 2, "{report}");
    }
}

#[test]
fn a_run_above_one_by_seccomp_says_why_it_cannot() {
    for outer in ["seccomp", "preload"] {
        for inner in [&["--via", "auto"][..], &["--via", "cgroup"], &["--via", "seccomp"]] {
            let output = above(&["--via", outer], inner);
            assert_eq!(output.status.code(), Some(125), "{inner:?} above {outer}: {output:?}");
            let why = text(&output.stderr);
            assert!(why.contains("another"), "{why}");
        }
        let strict = above(&["--via", outer], &["--via", "preload", "--strict"]);
        assert_eq!(strict.status.code(), Some(125), "{strict:?}");
        assert!(text(&strict.stderr).contains("another"), "{strict:?}");
    }
}
