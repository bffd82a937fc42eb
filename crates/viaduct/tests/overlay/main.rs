//! `viaduct overlay` and the handler `route`: three nodes on this machine, two of which cannot
//! reach each other directly.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::free_port;

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
/// Address of the far end, which node b serves.
const BEHIND_B: &str = "127.0.7.2";

/// Nodes a, b and c. At first, a and b are configured with wrong addresses of each other.
struct Overlay {
    dir: PathBuf,
    /// Port for probes at each node, and a port that no node uses.
    ports: Vec<u16>,
    keys: Vec<String>,
    socks: u16,
    /// Metrics port of node a.
    metrics: u16,
    nodes: Vec<Option<Child>>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Overlay {
    fn start(name: &str) -> Overlay {
        let dir =
            std::env::temp_dir().join(format!("viaduct-overlay-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
        let (socks, metrics) = (free_port(), free_port());
        let key = |name: &&str| {
            let file = dir.join(format!("{name}.key"));
            let made = Command::new(VIADUCT).args(["key", "new", "--out"]).arg(&file).output();
            text(&made.unwrap().stdout).trim().to_owned()
        };
        let keys = NAMES.iter().map(key).collect();
        let mut overlay = Overlay { dir, ports, keys, socks, metrics, nodes: Vec::new() };
        for n in 0..3 {
            overlay.configure(n, false);
            let node = overlay.spawn(n);
            overlay.nodes.push(Some(node));
        }
        overlay
    }

    /// Writes the config of node `n`. If `right`, nodes a and b have the right address of each
    /// other.
    fn configure(&self, n: usize, right: bool) {
        let Overlay { ports, keys, socks, .. } = self;
        let (name, run_dir) = (NAMES[n], self.dir.display());
        let mut config = format!(
            "[overlay]\nname = \"{name}\"\nkey = \"{name}.key\"\nlisten = \"127.0.0.1:{}\"\n\
             serves = []\nrun_dir = \"{run_dir}\"\ninterval = \"200ms\"\ntimeout = \"150ms\"\n",
            ports[n]
        );
        if name == "a" {
            writeln!(config, "metrics = \"127.0.0.1:{}\"", self.metrics).unwrap();
        }
        if name == "c" {
            let allow = "allow-from = [\"127.0.0.0/8\"]\nallow-to = [\"127.0.7.0/24\"]";
            writeln!(config, "[socks]\nlisten = \"127.0.0.1:{socks}\"\n{allow}").unwrap();
        }
        for m in (0..3).filter(|&m| m != n) {
            let port = if n + m == 1 && !right { ports[3] } else { ports[m] };
            let serves = if NAMES[m] == "b" { format!("\"{BEHIND_B}/32\"") } else { String::new() };
            let (peer, key) = (NAMES[m], &keys[m]);
            write!(
                config,
                "[[peer]]\nname = \"{peer}\"\nkey = \"{key}\"\nendpoint = \"127.0.0.1:{port}\"\n\
                 serves = [{serves}]\n"
            )
            .unwrap();
            if peer == "c" {
                writeln!(config, "socks = \"127.0.0.1:{socks}\"").unwrap();
            }
        }
        fs::write(self.dir.join(format!("{name}.toml")), config).unwrap();
    }

    fn spawn(&self, n: usize) -> Child {
        let log = fs::File::create(self.dir.join(format!("{}.log", NAMES[n]))).unwrap();
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "60", VIADUCT, "overlay", "--config"]);
        command.arg(self.dir.join(format!("{}.toml", NAMES[n])));
        command.stderr(log).spawn().unwrap()
    }

    /// Returns the process ID of node `n`, the child of its `timeout`.
    fn pid(&self, n: usize) -> String {
        let parent = self.nodes[n].as_ref().unwrap().id().to_string();
        let children = Command::new("pgrep").args(["-P", &parent]).output().unwrap();
        text(&children.stdout).trim().to_owned()
    }

    fn signal(&self, n: usize, signal: &str) {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.pid(n)]).status();
        assert!(sent.unwrap().success());
    }

    fn status(&self, n: usize) -> String {
        let mut command = Command::new(VIADUCT);
        command.args(["status", "--name", &format!("overlay-{}", NAMES[n]), "--run-dir"]);
        text(&command.arg(&self.dir).output().unwrap().stdout)
    }

    fn wait_for(&self, n: usize, words: &str) -> Duration {
        let began = Instant::now();
        while !self.status(n).contains(words) {
            let log = || fs::read_to_string(self.dir.join("a.log")).unwrap();
            assert!(began.elapsed() < Duration::from_secs(20), "{}{}", self.status(n), log());
            thread::sleep(Duration::from_millis(50));
        }
        began.elapsed()
    }

    /// Returns node a's answer to an HTTP request for `path`.
    fn http(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("overlay-a.sock")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        for n in 0..3 {
            if self.nodes[n].is_some() {
                self.signal(n, "KILL");
                let _ = self.nodes[n].take().unwrap().wait();
            }
        }
        fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// Starts a server that answers a line with the same line and the port of the sender.
fn far_end() -> SocketAddr {
    let listener = TcpListener::bind((BEHIND_B, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let peer = stream.peer_addr().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let _ = stream.write_all(format!("{} {}\n", line.trim(), peer.port()).as_bytes());
        }
    });
    address
}

/// Program that prints its own port, and the port that the far end sees: they are equal if the flow
/// goes directly.
const TELL: &str = "
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_connection((host.strip('[]'), int(port)))
s.sendall(b'hello\\n')
print(s.getsockname()[1], s.makefile().read())
";

fn tell(route: &str, to: SocketAddr) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30", VIADUCT, "run", route, "--", "python3", "-c", TELL]);
    command.arg(to.to_string()).stdin(Stdio::null()).output().unwrap()
}

/// Returns whether a flow went directly.
fn goes_directly(said: &Output) -> bool {
    let words = text(&said.stdout);
    let words: Vec<&str> = words.split_whitespace().collect();
    let [own, "hello", seen] = words[..] else { panic!("{said:?}") };
    own == seen
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn flows_take_another_node_only_while_the_direct_path_is_down() {
    let mut overlay = Overlay::start("ways");
    let to = far_end();
    let route = format!("+route:overlay={}", overlay.socket().display());
    overlay.wait_for(0, "by c; down");
    assert!(!goes_directly(&tell(&route, to)), "{}", overlay.status(0));
    // Nodes a and b now get the right addresses of each other.
    for n in [0, 1] {
        overlay.configure(n, true);
        overlay.signal(n, "HUP");
    }
    overlay.wait_for(0, "  b         directly; ");
    assert!(goes_directly(&tell(&route, to)), "{}", overlay.status(0));
    // Without c there is one path fewer. Without b no path is up, so only the direct path is tried.
    overlay.signal(2, "KILL");
    overlay.nodes[2].take().unwrap().wait().unwrap();
    let took = overlay.wait_for(0, "no path is up");
    assert!(took < Duration::from_secs(8), "{took:?}");
    overlay.signal(1, "TERM");
    assert!(overlay.nodes[1].take().unwrap().wait().unwrap().success());
    assert!(!overlay.dir.join("overlay-b.sock").exists());
    assert!(goes_directly(&tell(&route, to)));
    // A flow goes directly if the node of its handler does not exist.
    assert!(goes_directly(&tell("+route:overlay=/nowhere.sock", to)));
}

#[test]
fn states_follow_the_probes() {
    let mut overlay = Overlay::start("states");
    // Nodes a and b have wrong addresses of each other, so their probes do not arrive.
    overlay.wait_for(0, "degraded: the direct path is down, no answer yet; flows go through c");
    let health = overlay.http("/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("peer b: degraded"), "{health}");
    let metrics = overlay.http("/metrics");
    for line in ["viaduct_trouble 1", "{peer=\"b\"} 1", "viaduct_peer_trouble{peer=\"c\"} 0"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    // Now b's probes arrive at a, while a's probes are still sent to the wrong address.
    overlay.signal(2, "KILL");
    overlay.nodes[2].take().unwrap().wait().unwrap();
    overlay.configure(1, true);
    overlay.signal(1, "HUP");
    overlay.wait_for(0, "down: its probes arrive, and it does not answer ours");
    overlay.wait_for(0, "down: it does not answer any more, last answer ");
    overlay.configure(0, true);
    overlay.signal(0, "HUP");
    overlay.wait_for(0, "  b         directly; ");
    let health = overlay.http("/healthz");
    assert!(!health.contains("peer b") && health.contains("peer c: down: it does not"), "{health}");
}

#[test]
fn without_an_overlay_configured_nodes_are_tried_after_the_direct_path() {
    let overlay = Overlay::start("nodes");
    overlay.wait_for(2, "  b         directly; ");
    let node = format!("+route:node=127.0.0.1:1+127.0.0.1:{},wait=100ms", overlay.socks);
    assert!(goes_directly(&tell(&node, far_end())));
    // After a refusal by the destination, no node is tried.
    let closed = SocketAddr::new(BEHIND_B.parse().unwrap(), free_port());
    let refused = tell(&node, closed);
    assert!(text(&refused.stderr).contains("ConnectionRefusedError"), "{refused:?}");
    // The flow fails if the node refuses the destination.
    let elsewhere = tell(&node, "[100::1]:9".parse().unwrap());
    assert!(!elsewhere.status.success(), "{elsewhere:?}");
}

#[test]
fn a_wrong_config_is_refused_in_one_line() {
    let dir = std::env::temp_dir().join(format!("viaduct-overlay-config-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let made = Command::new(VIADUCT).args(["key", "new", "--out"]).arg(dir.join("k")).output();
    let key = text(&made.unwrap().stdout).trim().to_owned();
    let check = |config: &str| {
        let file: &Path = &dir.join("o.toml");
        fs::write(file, config).unwrap();
        let output =
            Command::new(VIADUCT).args(["overlay", "--check", "--config"]).arg(file).output();
        let output = output.unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let node = "[overlay]\nname = \"a\"\nkey = \"k\"\nlisten = \"127.0.0.1:7420\"\n";
    let (fine, said) = check(node);
    assert!(fine && said.contains("known within 1.55 s"), "{said}");
    for (rest, words) in [
        ("lots = 3\n", "unknown key `lots`"),
        ("interval = \"5\"\n", "interval: \"5\": a time such as "),
        (
            "[socks]\nlisten = \"127.0.0.1:0\"\nallow-to = [\"10.0.0.0/8\"]\n",
            "allow-from is missing",
        ),
        ("[socks]\nexpect = [\"connect\"]\n", "remove it"),
        ("[[peer]]\nname = \"b\"\nkey = \"12\"\nendpoint = \"127.0.0.1:1\"\n", "64 hexadecimal"),
        ("[[peer]]\nname = \"b\"\nkey = \"KEY\"\nendpoint = \"[::1]:1\"\n", "family differs"),
        ("[[peer]]\nname = \"b\"\nkey = \"KEY\"\nendpoint = \"127.0.0.1:1\"\n", "name or the key"),
    ] {
        let (fine, said) = check(&(node.to_owned() + &rest.replace("KEY", &key)));
        assert!(!fine && said.contains(words) && said.trim().lines().count() == 1, "{said}");
    }
    fs::remove_dir_all(&dir).unwrap();
}
