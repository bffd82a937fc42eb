//! Far ends that vanish silently.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use viaduct_lab::topology::{Chain, Journal, Scratch};

use super::{CHAIN, VIADUCT};
use crate::common::VANISH;

const DEAD_AFTER: Duration = Duration::from_secs(3);

/// Opens three connections: an idle one, one with unacknowledged data, and one whose far end reads
/// nothing. Fills the third immediately, and again after a line on standard input, and prints how
/// many bytes were sent each time. After another line, prints how each connection has ended.
const PROGRAM: &str = "
import errno, select, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
idle, data, shut = [socket.create_connection((host, int(port))) for _ in range(3)]
def fill():
    shut.setblocking(False)
    sent = 0
    while select.select([], [shut], [], 0.3)[1]: sent += shut.send(bytes(65536))
    print(sent, flush=True)
fill()
sys.stdin.readline()
fill()
sys.stdin.readline()
data.sendall(b'lost')
for s in idle, data, shut:
    s.settimeout(20)
    try: print('read', s.recv(1))
    except OSError as e: print(errno.errorcode.get(e.errno, e), flush=True)
";

#[test]
fn a_vanished_far_end_is_detected_and_a_live_one_with_a_zero_window_is_kept() {
    for via in ["cgroup", "seccomp", "preload"] {
        let chain = Chain::build(&["delay=1ms".parse().unwrap()], 1, &Journal::new()).unwrap();
        let at = SocketAddr::new(chain.server().v4().into(), 9000);
        let listen = || TcpListener::bind(at).unwrap();
        let listener = chain.server().netns().enter(listen).unwrap();
        let scratch = Scratch::new().unwrap();
        let mut command = chain.client().command("timeout");
        command.args(["--signal=KILL", "60", VIADUCT, "run", CHAIN, "--via", via]);
        command.args(["--dead-after", "3s", "--run-dir"]).arg(scratch.path());
        command.args(["--", "python3", "-c", PROGRAM, &at.to_string()]);
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut next = || lines.next().unwrap().unwrap();
        let mut step = program.stdin.take().unwrap();
        let mut far: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();

        let sent: usize = next().parse().unwrap();
        // With `TCP_USER_TIMEOUT` alone, the kernel would end the connection whose window is zero.
        thread::sleep(2 * DEAD_AFTER);
        far[2].read_exact(&mut vec![0; sent]).unwrap();
        step.write_all(b"\n").unwrap();
        assert!(next().parse::<usize>().unwrap() > 0, "{via}: the window is open again");

        chain.server().run("nft", &[VANISH]).unwrap();
        let vanished = Instant::now();
        step.write_all(b"\n").unwrap();
        for what in ["idle", "data", "shut"] {
            assert_eq!(next(), "ECONNRESET", "{via}: {what} after {:?}", vanished.elapsed());
            assert!(vanished.elapsed() < 6 * DEAD_AFTER, "{via}: {what} {:?}", vanished.elapsed());
        }
        program.wait().unwrap();
    }
}
