//! Programs with a low limit of descriptors: the limit applies to them and not to their master, and
//! failures are reported.

use std::process::Command;

use super::{CHAIN, VIADUCT, far_end, text};
use crate::common::UnprivilegedUser;

/// Opens 45 connections to the address of its first argument, and keeps them open. Prints the
/// number of open connections, its own limit of descriptors, and the errors of failed connections.
const OPENS: &str = "
import errno, resource, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
kept, why = [], set()
for _ in range(45):
    try: kept.append(socket.create_connection((host, int(port)), 10))
    except OSError as e: why.add(errno.errorcode[e.errno])
print(len(kept), resource.getrlimit(resource.RLIMIT_NOFILE), *sorted(why))
";

#[test]
fn a_programs_limit_of_descriptors_does_not_limit_its_flows() {
    // In a container root may lack CAP_SYS_RESOURCE.
    let raise = Command::new("sh").args(["-c", "ulimit -n 64; ulimit -n 128"]).status().unwrap();
    if !raise.success() {
        return eprintln!("skipped: limits cannot be raised here");
    }
    let far = far_end("127.0.0.1:0").to_string();
    for via in ["cgroup", "seccomp", "preload"] {
        let line = "ulimit -n 64; exec \"$@\"";
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "60", "sh", "-c", line, "sh", VIADUCT, "run"]);
        command.args(["--via", via, CHAIN, "--", "python3", "-c", OPENS, &far]);
        let said = command.output().unwrap();
        assert_eq!(text(&said.stdout), "45 (64, 64)\n", "{via}: {said:?}");
    }
}

#[test]
fn a_run_without_descriptors_reports_that_to_program_and_user() {
    let (user, far) = (UnprivilegedUser::new("few"), far_end("127.0.0.1:0").to_string());
    for via in ["seccomp", "preload"] {
        let mut command = user.command("timeout");
        command.args(["--signal=KILL", "60", "sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"]);
        command.arg(user.viaduct()).args(["run", "--via", via, CHAIN, "--"]);
        let said = command.args(["python3", "-c", OPENS, &far]).output().unwrap();
        let words = text(&said.stdout);
        assert!(words.ends_with(" (64, 64) EMFILE\n"), "{via}: {said:?}");
        assert!(text(&said.stderr).contains("raise ulimit -n"), "{via}: {said:?}");
    }
}
