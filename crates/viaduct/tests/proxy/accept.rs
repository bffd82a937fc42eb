//! Proxies that accept clients only after the server has answered (`--accept after-connect`), and
//! proxies that run only while there are clients (`--on-demand`, socket activation).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal, Node, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;
use viaduct_sys::capture::ring::{Ring, RingConfig};

use crate::common::{until, when_seen, within_some};

const PORT: u16 = 9000;
/// Address of an explicit proxy.
const AT: &str = "10.1.0.2:7000";
const AFTER: [&str; 2] = ["--accept", "after-connect"];

/// A client, a router for the proxy, a server.
struct World {
    chain: Chain,
}

impl World {
    fn new(link: &str) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let link: LinkConfig = link.parse().unwrap();
        World { chain: Chain::build(&[link.clone(), link], 1, &Journal::new()).unwrap() }
    }

    fn hop(&self) -> &Node {
        &self.chain.hops()[0]
    }

    /// Starts a transparent proxy with more arguments.
    fn on_path(&self, more: &[&str]) -> Proxy {
        let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0"];
        Proxy::start(self.hop(), &[&path, more].concat()).unwrap()
    }

    /// Starts an explicit proxy for `to` with more arguments.
    fn explicit(&self, to: SocketAddr, more: &[&str]) -> Proxy {
        let to = to.to_string();
        Proxy::start(self.hop(), &[&["--listen", AT, "--to", &to], more].concat()).unwrap()
    }

    fn server(&self) -> SocketAddr {
        SocketAddr::new(self.chain.server().v4().into(), PORT)
    }

    /// Opens a listener on the server.
    fn listen(&self, ip: IpAddr) -> TcpListener {
        let listen = || TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
        self.chain.server().netns().enter(listen).unwrap()
    }

    /// Connects from the client.
    fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(8));
        let stream = self.chain.client().netns().enter(connect).unwrap()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Ok(stream)
    }

    fn error(&self, to: SocketAddr) -> ErrorKind {
        self.connect(to).expect_err("a connection that must fail").kind()
    }

    fn rules(&self) -> String {
        self.hop().run("nft", &["list", "tables"]).unwrap()
    }
}

fn signal(proxy: &mut Proxy, signal: Signal) {
    kill_process(Pid::from_raw(proxy.process().id().cast_signed()).unwrap(), signal).unwrap();
}

/// Accepts the client's connection and sends one byte in each direction. Returns the client's
/// address, as seen by the server.
fn echo(client: &mut TcpStream, listener: &TcpListener) -> IpAddr {
    try_echo(client, listener).unwrap()
}

/// Does the same, or fails if the connection breaks or does not arrive.
fn try_echo(client: &mut TcpStream, listener: &TcpListener) -> io::Result<IpAddr> {
    const LIMIT: Duration = Duration::from_secs(8);
    listener.set_nonblocking(true)?;
    let accepted = within_some(LIMIT, || listener.accept().ok());
    let (mut server, peer) = accepted.ok_or(ErrorKind::TimedOut)?;
    server.set_nonblocking(false)?;
    server.set_read_timeout(Some(LIMIT))?;
    client.set_read_timeout(Some(LIMIT))?;
    client.write_all(b"?")?;
    server.read_exact(&mut [0])?;
    server.write_all(b"!")?;
    client.read_exact(&mut [0])?;
    Ok(peer.ip())
}

#[test]
fn transparent_accept_after_connect_refuses_what_the_server_refuses() {
    let world = World::new("delay=5ms");
    let mut proxy = world.on_path(&AFTER);
    for ip in world.chain.server().addresses().collect::<Vec<_>>() {
        let to = SocketAddr::new(ip, PORT);
        assert_eq!(world.error(to), ErrorKind::ConnectionRefused, "{ip}");
        let listener = world.listen(ip);
        let begun = Instant::now();
        let mut client = world.connect(to).unwrap();
        assert!(begun.elapsed() > Duration::from_millis(20), "accepted before the server's answer");
        let from = echo(&mut client, &listener);
        assert_ne!(Some(from), client.local_addr().ok().map(|at| at.ip()), "through the proxy");
    }
    signal(&mut proxy, Signal::TERM);
    proxy.process().wait().unwrap();
    assert_eq!(world.rules(), "", "put back");
}

#[test]
fn explicit_accept_after_connect_refuses_what_the_server_refuses() {
    let world = World::new("delay=5ms");
    let _proxy = world.explicit(world.server(), &AFTER);
    let at: SocketAddr = AT.parse().unwrap();
    assert_eq!(world.error(at), ErrorKind::ConnectionRefused);
    let listener = world.listen(world.server().ip());
    echo(&mut world.connect(at).unwrap(), &listener);
}

#[test]
fn accept_after_connect_keeps_unreachable_errors_and_timeouts() {
    let world = World::new("delay=1ms");
    world.hop().ip(&["route add unreachable 10.77.0.0/16".into()]).unwrap();
    let far = |text: &str| SocketAddr::new(text.parse().unwrap(), PORT);
    let direct = world.error(far("10.77.0.1"));
    world.chain.server().run("nft", &["add", "table", "inet", "deaf"]).unwrap();
    let deaf = "add chain inet deaf input { type filter hook input priority 0; policy drop; }";
    world.chain.server().run("nft", &[deaf]).unwrap();
    let _proxy = world.on_path(&["--accept", "after-connect", "--connect-timeout", "2s"]);
    assert_eq!(world.error(far("10.77.0.1")), direct);
    assert_eq!(direct, ErrorKind::HostUnreachable);
    assert_eq!(world.error(world.server()), ErrorKind::TimedOut);
}

#[test]
fn connections_bypass_a_killed_proxy_and_its_next_start_holds_syns_again() {
    let world = World::new("delay=1ms");
    let mut proxy = world.on_path(&AFTER);
    signal(&mut proxy, Signal::KILL);
    proxy.process().wait().unwrap();
    assert!(world.rules().contains("viaduct_hold_7000"), "{}", world.rules());
    assert_eq!(world.error(world.server()), ErrorKind::ConnectionRefused, "another error");
    let listener = world.listen(world.server().ip());
    let mut client = world.connect(world.server()).unwrap();
    assert_eq!(echo(&mut client, &listener), client.local_addr().unwrap().ip());
    let directory = proxy.directory().to_owned();
    let mut again =
        world.on_path(&["--accept", "after-connect", "--run-dir", directory.to_str().unwrap()]);
    let mut client = world.connect(world.server()).unwrap();
    assert_ne!(echo(&mut client, &listener), client.local_addr().unwrap().ip());
    signal(&mut again, Signal::TERM);
    drop(client);
    again.process().wait().unwrap();
    assert_eq!(world.rules(), "");
}

/// Returns the process IDs of the proxies that a parent has started.
fn children(parent: &mut Proxy) -> Vec<Pid> {
    let tasks = format!("/proc/{}/task", parent.process().id());
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    let all = std::fs::read_dir(tasks).unwrap().flatten().filter_map(|task| of(task).ok());
    let words = all.collect::<Vec<_>>().join(" ");
    words.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

#[test]
fn on_demand_the_first_syn_is_forwarded_early_and_the_proxy_exits_when_idle() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let world = World::new("delay=50ms");
    let listener = world.listen(world.server().ip());
    let mut parent = world.on_path(&["--on-demand", "--idle-exit", "300ms"]);
    assert!(children(&mut parent).is_empty());
    let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
    let open =
        |name: &str| world.hop().netns().enter(|| Ring::open(name, config).unwrap()).unwrap();
    let (mut west, mut east) = (open("west"), open("east"));
    let (onward, acknowledged) = thread::scope(|scope| {
        let onward = scope.spawn(move || when_seen(&mut east, |flags| flags == SYN));
        let done = scope.spawn(move || when_seen(&mut west, |flags| flags == ACK));
        let mut client = world.connect(world.server()).unwrap();
        echo(&mut client, &listener);
        (onward.join().unwrap(), done.join().unwrap())
    });
    let ahead = acknowledged.saturating_duration_since(onward);
    assert!(ahead > Duration::from_millis(50), "the SYN left only {ahead:?} before the ACK");
    until("the idle proxy has ended", || children(&mut parent).is_empty());
    assert!(matches!(parent.process().try_wait(), Ok(None)), "the parent has ended");
    echo(&mut world.connect(world.server()).unwrap(), &listener);
    signal(&mut parent, Signal::TERM);
    parent.process().wait().unwrap();
    assert_eq!(world.rules(), "", "the parent has left rules");
}

#[test]
fn on_demand_a_crashed_proxy_is_started_again() {
    let world = World::new("delay=1ms");
    let listener = world.listen(world.server().ip());
    for more in [&["--on-demand"][..], &["--on-demand", "--accept", "after-connect"]] {
        let mut parent = world.on_path(more);
        for _ in 0..2 {
            echo(&mut world.connect(world.server()).unwrap(), &listener);
            let [child] = children(&mut parent)[..] else { panic!("not one child") };
            kill_process(child, Signal::KILL).unwrap();
            until("the child is reaped", || !children(&mut parent).contains(&child));
        }
        let mut client = world.connect(world.server()).unwrap();
        assert_ne!(echo(&mut client, &listener), client.local_addr().unwrap().ip());
        // The proxy ends with its parent; new connections then bypass both.
        signal(&mut parent, Signal::KILL);
        parent.process().wait().unwrap();
        until("connections bypass both", || {
            // The proxy may accept a last connection.
            let Ok(mut client) = world.connect(world.server()) else { return false };
            let own = client.local_addr().unwrap().ip();
            try_echo(&mut client, &listener).is_ok_and(|from| from == own)
        });
    }
}

#[test]
fn on_demand_start_errors_are_reported_by_the_parent() {
    let world = World::new("delay=1ms");
    let start = |more: &[&str]| {
        let options = ["--listen", AT, "--to", "10.2.0.2:9000", "--on-demand"];
        Proxy::start(world.hop(), &[&options, more].concat())
    };
    // The address is not one of this machine.
    let error = start(&["--metrics", "192.0.2.1:9747"]).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1:9747") && error.contains("cannot start"), "{error}");
    let key = SecretKey::from_bytes([1; 32]).to_text();
    let keys = Scratch::new().unwrap();
    let key = keys.write("key", key).unwrap().display().to_string();
    let peer = SecretKey::from_bytes([2; 32]).public().to_string();
    let tunnel = ["--tunnel-listen", "[::]:7100", "--allow-to", "::/0", "--key", &key];
    let error = start(&[&tunnel[..], &["--peer", &peer]].concat()).unwrap_err().to_string();
    assert!(error.contains("tunnel-listen is served all the time"), "{error}");
}

#[test]
fn on_demand_the_access_log_is_reopened() {
    let world = World::new("delay=1ms");
    let listener = world.listen(world.server().ip());
    let scratch = Scratch::new().unwrap();
    let log = scratch.path().join("access.log");
    let mut parent = world.on_path(&["--on-demand", "--access-log", log.to_str().unwrap()]);
    echo(&mut world.connect(world.server()).unwrap(), &listener);
    let before = children(&mut parent);
    for again in [Signal::USR1, Signal::HUP] {
        until("logged", || std::fs::read_to_string(&log).is_ok_and(|text| !text.is_empty()));
        std::fs::rename(&log, scratch.path().join("old")).unwrap();
        signal(&mut parent, again);
        until("the log is reopened", || log.exists());
        echo(&mut world.connect(world.server()).unwrap(), &listener);
    }
    until("logged", || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(" 200 1")));
    assert_eq!(children(&mut parent), before, "the same proxy");
}

#[test]
fn on_demand_sigterm_lets_flows_end() {
    let world = World::new("delay=1ms");
    let listener = world.listen(world.server().ip());
    let mut parent = world.explicit(world.server(), &["--on-demand"]);
    let at: SocketAddr = AT.parse().unwrap();
    let mut client = world.connect(at).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    signal(&mut parent, Signal::TERM);
    until("the listener is closed", || world.connect(at).is_err());
    server.write_all(b"still here").unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
    assert!(matches!(parent.process().try_wait(), Ok(None)), "a flow is open");
    drop((client, server));
    parent.process().wait().unwrap();
}

#[test]
fn on_demand_a_proxy_that_cannot_be_started_is_started_later() {
    let world = World::new("delay=1ms");
    let listener = world.listen(world.server().ip());
    let mut parent = world.explicit(world.server(), &["--on-demand"]);
    let pid = Pid::from_raw(parent.process().id().cast_signed());
    let limit = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    let mut client = world.connect(AT.parse().unwrap()).unwrap();
    until("a warning is logged", || parent.log().contains("cannot start a proxy"));
    prlimit(pid, Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    echo(&mut client, &listener);
}

#[test]
fn a_socket_activated_proxy_serves_and_exits_when_idle() {
    let world = World::new("delay=1ms");
    let listener = world.listen(world.server().ip());
    let at: SocketAddr = AT.parse().unwrap();
    let socket = world.hop().netns().enter(|| TcpListener::bind(at).unwrap()).unwrap();
    // The socket exists before the proxy does.
    let mut client = world.connect(at).unwrap();
    let scratch = std::env::temp_dir().join(format!("viaduct-activated-{}", std::process::id()));
    let mut command = world.hop().command("sh");
    // Descriptor 3 is the first inherited socket in systemd's protocol.
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_viaduct"), "proxy", "--listen", AT, "--to"]);
    command.arg(world.server().to_string()).args(["--idle-exit", "300ms", "--run-dir"]);
    command.arg(&scratch).stdin(std::os::fd::OwnedFd::from(socket));
    let mut proxy = world.hop().spawn(command).unwrap();
    echo(&mut client, &listener);
    echo(&mut world.connect(at).unwrap(), &listener);
    drop(client);
    let ended = proxy.wait_for(Duration::from_secs(10), || false).unwrap();
    assert!(ended.expect("the idle proxy has not ended").success());
    let _ = std::fs::remove_dir_all(scratch);
}

#[test]
fn systemd_accepts_the_unit_files() {
    let directory = std::env::temp_dir().join(format!("viaduct-units-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut units = Vec::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist")).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_type().unwrap().is_file() {
            continue; // a directory of other packaged files
        }
        let name = entry.file_name().to_string_lossy().replace('@', "@rome");
        let text = std::fs::read_to_string(entry.path()).unwrap();
        assert!(text.contains("viaduct"), "{name}");
        let unit = directory.join(name);
        let text = text.replace("/usr/bin/viaduct", env!("CARGO_BIN_EXE_viaduct"));
        std::fs::write(&unit, text).unwrap();
        units.push(unit);
    }
    assert!(units.len() >= 6);
    let verified =
        std::process::Command::new("systemd-analyze").arg("verify").args(&units).output();
    let _ = std::fs::remove_dir_all(directory);
    match verified {
        Err(error) => eprintln!("skipped: systemd-analyze does not run: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("viaduct-"), "{said}");
        }
    }
}

#[test]
fn on_demand_the_parent_restores_removed_rules() {
    let world = World::new("delay=2ms");
    let mut proxy = world.on_path(&["--on-demand", "--accept", "after-connect"]);
    let listener = world.listen(world.server().ip());
    let tables = world.rules();
    assert!(tables.contains("viaduct_hold_7000") && tables.contains("viaduct_proxy_7000"));
    world.hop().run("nft", &["flush", "ruleset"]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while world.rules().lines().count() != 2 {
        assert!(Instant::now() < deadline, "rules are left: {}", proxy.log());
        thread::sleep(Duration::from_millis(20));
    }
    let mut client = world.connect(world.server()).unwrap();
    let from = echo(&mut client, &listener);
    assert_ne!(Some(from), client.local_addr().ok().map(|at| at.ip()), "through the proxy");
    drop(client);
    signal(&mut proxy, Signal::TERM);
    proxy.process().wait().unwrap();
    assert_eq!(world.rules(), "", "put back");
}
