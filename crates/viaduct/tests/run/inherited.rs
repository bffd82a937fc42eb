//! Attributes that a program inherits from its parent, and its signals, terminal, daemons and
//! orphans, work under `viaduct run` as without it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::common::within;
use super::{CHAIN, VIADUCT, output, text};

#[test]
fn ignored_signals_and_closed_descriptors_are_inherited() {
    let program = ["sh", "-c", "grep SigIgn /proc/self/status; [ -e /proc/$$/fd/0 ] || exit 3"];
    let run = |wrapper: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "exec env --ignore-signal=PIPE,CHLD,USR1 \"$@\" <&-", "sh"]);
        let output = command.args(wrapper).args(program).output().unwrap();
        let said = text(&output.stdout);
        let ignored = said.trim().strip_prefix("SigIgn:").map(str::trim).unwrap_or_default();
        // Real-time signals (32 and above) are not compared: the C library uses some of them
        // itself.
        let ignored = u64::from_str_radix(ignored, 16).map(|all| all & 0x7fff_ffff);
        (output.status.code(), ignored, text(&output.stderr))
    };
    let plain = run(&[]);
    // The parent of the tests may ignore other signals as well.
    assert_eq!((plain.0, plain.1.clone().map(|all| all & 0x1200)), (Some(3), Ok(0x1200)));
    assert_eq!(run(&[VIADUCT, "run", CHAIN, "--"]), plain);
}

#[test]
fn no_process_of_a_run_keeps_open_what_the_program_closes() {
    let line = "exec \"$0\" run \"$1\" -- sh -c 'exec 5>&- >&-; read line' 5>&1";
    let mut command = Command::new("sh");
    command.args(["-c", line, VIADUCT, CHAIN]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (tell, ended) = mpsc::channel();
    thread::spawn(move || tell.send(stdout.read(&mut [0; 1]).unwrap()));
    let heard = ended.recv_timeout(Duration::from_secs(10));
    let runs = child.try_wait().unwrap().is_none();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!((heard, runs), (Ok(0), true));
}

#[test]
fn activated_sockets_are_passed_to_the_program() {
    let line = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3</dev/null";
    let program = ["sh", "-c", "[ $LISTEN_PID = $$ ] && [ -e /proc/$$/fd/3 ] && exit 5", "x"];
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh", VIADUCT, "run", CHAIN, "--"]).args(program);
    assert_eq!(command.status().unwrap().code(), Some(5));
}

#[test]
fn killing_the_wrapper_kills_the_program() {
    let mut command = Command::new(VIADUCT);
    command.args(["run", CHAIN, "--", "sh", "-c", "echo $$; exec sleep 30"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let program = Path::new("/proc").join(line.trim());
    assert!(program.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(within(Duration::from_secs(10), || !program.exists()));
}

/// Starts a command (the second and following arguments) in a terminal of its own, sends the first
/// argument as input once the command has printed "ready", and closes the terminal: immediately if
/// the first argument is empty, otherwise when the command has ended. Prints the wait status of the
/// command, and whether its output contains "trapped".
const TERMINAL: &str = "
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0: os.execvp(sys.argv[2], sys.argv[2:])
said = b''
def read():
    global said
    try: said += os.read(terminal, 999)
    except OSError: return False
    return True
while b'ready' not in said and read(): pass
os.write(terminal, sys.argv[1].encode())
if sys.argv[1]:
    while read(): pass
os.close(terminal)
print(os.waitpid(pid, 0)[1], b'trapped' in said)
";

#[test]
fn signals_and_hangup_of_the_terminal_reach_the_program() {
    let at = std::env::temp_dir().join(format!("viaduct-hangup-{}", std::process::id()));
    let hangup = format!(
        "trap 'echo > {}; exit 7' HUP; echo ready; while :; do sleep 0.1; done",
        at.display()
    );
    let interrupt = "trap 'echo trapped; exit 9' INT; echo ready; sleep 9 & wait";
    let outcome = |keys: &str, program: &str| {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "20", "python3", "-c", TERMINAL, keys]);
        let output = command.args([VIADUCT, "run", CHAIN, "--", "sh", "-c", program]).output();
        text(&output.unwrap().stdout)
    };
    assert_eq!(outcome("\u{3}", interrupt), format!("{} True\n", 9 << 8));
    assert_eq!(outcome("\u{1c}", "echo ready; exec sleep 9"), "3 False\n");
    assert_eq!(outcome("", &hangup), format!("{} False\n", 7 << 8));
    std::fs::remove_file(at).expect("the program has handled SIGHUP");
}

/// Starts the command of its arguments in the background of a new terminal, as a shell does, and
/// puts it into the foreground when it has stopped. Prints each signal that has stopped the
/// command, and then the command's exit status, negated.
const JOB: &str = "
import os, pty, signal, sys
out = os.dup(1)
leader, terminal = pty.fork()
if leader == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    def wait():
        status = os.waitpid(job, os.WUNTRACED)[1]
        return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else -os.WEXITSTATUS(status)
    said = [wait()]
    os.tcsetpgrp(0, job)
    for then in ['stops', 'reads']:
        os.killpg(job, signal.SIGCONT)
        print(then, flush=True)
        said.append(wait())
    os.write(out, b'%r' % said)
    os._exit(0)
said = b''
for then, keys in [(b'stops', b'\\x1a'), (b'reads', b'hello\\n')]:
    while then not in said: said += os.read(terminal, 999)
    os.write(terminal, keys)
os.waitpid(leader, 0)
";

#[test]
fn a_signal_of_its_program_stops_a_background_job() {
    // Several times: the program may read before or after the master has detached from the terminal
    // (setsid).
    for _ in 0..5 {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "20", "python3", "-c", JOB, VIADUCT, "run", CHAIN, "--"]);
        let output = command.args(["sh", "-c", "read line"]).output().unwrap();
        assert_eq!(text(&output.stdout), "[21, 20, 0]", "{output:?}");
    }
}

/// Starts a command that cannot use seccomp: `seccomp(2)` fails with `EINVAL`.
const WITHOUT_SECCOMP: &str = "
import ctypes, os, platform, struct, sys
number = {'x86_64': 317, 'aarch64': 277}[platform.machine()]
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50016), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in lines))
prctl = ctypes.CDLL(None).prctl
filtered = prctl(22, 2, struct.pack('HP', len(lines), ctypes.addressof(code)))
if filtered != 0: sys.exit('cannot filter calls')
os.execvp(sys.argv[1], sys.argv[1:])
";

#[test]
fn the_master_lasts_as_long_as_a_daemon_of_its_program() {
    // The daemon listens and connects some time after the program has ended: a master that does not
    // wait for the daemon has ended by then.
    const PROGRAM: &str = "
import os, socket, sys, time
if os.fork(): os._exit(0)
os.setsid()
os.closerange(0, 3)
time.sleep(4)
l = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(l.getsockname())
a = l.accept()[0]
a.sendall(b'whole')
open(sys.argv[1], 'wb').write(c.recv(9))
";
    let of = |(via, before): (&'static str, &'static [&'static str])| {
        thread::spawn(move || {
            let name = format!("viaduct-daemon-{}-{via}-{}", std::process::id(), before.len());
            let at = std::env::temp_dir().join(name);
            let mut command = Command::new("timeout");
            command.args(["--signal=KILL", "20"]).args(before).args([VIADUCT, "run", CHAIN, via]);
            let said = command.args(["--", "python3", "-c", PROGRAM]).arg(&at).output().unwrap();
            assert!(said.status.success(), "{via} {said:?}");
            let is_without = text(&said.stderr).contains("can bypass the library");
            assert_eq!(is_without, !before.is_empty(), "{said:?}");
            let heard = || std::fs::read(&at).is_ok_and(|heard| heard == b"whole");
            assert!(within(Duration::from_secs(10), heard), "{via}");
            std::fs::remove_file(&at).unwrap();
        })
    };
    const NONE: &[&str] = &[];
    for of in [
        ("--via=cgroup", NONE),
        ("--via=seccomp", NONE),
        ("--via=preload", NONE),
        ("--via=preload", &["python3", "-c", WITHOUT_SECCOMP]),
    ]
    .map(of)
    {
        of.join().unwrap();
    }
}

#[test]
fn orphans_that_end_before_the_program_are_reaped() {
    let program = "
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setpgid(0, 0)
    orphan = os.fork()
    if orphan: os.write(w, b'%d' % orphan)
    else: time.sleep(0.2)
    os._exit(0)
os.wait()
orphan = '/proc/%d' % int(os.read(r, 9))
for _ in range(100):
    if not os.path.exists(orphan): break
    time.sleep(0.05)
print(os.path.exists(orphan))
";
    for via in ["--via=cgroup", "--via=seccomp", "--via=preload"] {
        let said = output(&[via, "--", "python3", "-c", program]);
        assert_eq!(text(&said.stdout), "False\n", "{via} {said:?}");
    }
}
