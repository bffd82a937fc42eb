//! Hops of an agent: each has a process while it is used, confined to what it needs.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::Chain;

use super::hops::{EARLY, SERVER, ahead, chain, echo, say, socket};
use super::rules::status;

/// Time limit for a change of a hop's state.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE: &str = "300ms";
/// User of an agent without root; no other program runs as this user.
const AGENT_USER: u32 = 1_900_000_100;

/// Config text that defines hops with these names on the first node, at ports from 7001.
fn hops(names: &[&str], lines: &str) -> String {
    let hop = |(port, name): (u16, &&str)| {
        format!(
            "[[hop]]\nname = '{name}'\nlisten = '10.1.0.2:{port}'\nto = '10.3.0.2:{SERVER}'\n\
             idle-exit = '{IDLE}'\n{lines}\n"
        )
    };
    (7001..).zip(names).map(hop).collect()
}

struct World {
    agent: Proxy,
    chain: Chain,
}

impl World {
    fn new(text: &str) -> World {
        World::with_links("delay=25ms", text)
    }

    fn with_links(link: &str, text: &str) -> World {
        let chain = chain(link);
        World { agent: Proxy::hop_agent(&chain.hops()[0], text, &[]).unwrap(), chain }
    }

    /// Starts an agent with the user and the capabilities of a package's unit.
    fn without_root(text: &str) -> World {
        let chain = chain("delay=25ms");
        let agent = Proxy::unprivileged_hop_agent(&chain.hops()[0], text, AGENT_USER).unwrap();
        World { agent, chain }
    }

    fn exchange(&self, port: u16) -> std::io::Result<()> {
        let server: SocketAddr = format!("10.3.0.2:{SERVER}").parse().unwrap();
        let peer = echo(self.chain.server(), server.ip());
        let to = socket(&format!("10.1.0.2:{port}"));
        let said = say(self.chain.client(), to, b"to the server")?;
        assert_eq!(said, b"to the server");
        peer.join().unwrap();
        Ok(())
    }

    /// Listener of the server.
    fn listen(&self) -> TcpListener {
        let bind = || TcpListener::bind(("10.3.0.2", SERVER)).unwrap();
        self.chain.server().netns().enter(bind).unwrap()
    }

    /// Connects the client to a port of the hops.
    fn connect(&self, port: u16) -> std::io::Result<TcpStream> {
        let to = socket(&format!("10.1.0.2:{port}"));
        self.chain.client().netns().enter(|| TcpStream::connect(to)).unwrap()
    }

    /// Status of the hop with this name, if it is defined.
    fn hop(&self, name: &str) -> Option<Value> {
        let status = status(&self.agent);
        let hops = status["hops"].as_array().unwrap();
        hops.iter().find(|hop| hop["name"] == name).cloned()
    }

    fn pid(&self, name: &str) -> Option<u64> {
        self.hop(name).unwrap()["pid"].as_u64()
    }

    fn wait_until(&self, what: &str, is: impl Fn(&World) -> bool) {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        while !is(self) {
            assert!(Instant::now() < deadline, "{what}: {}", status(&self.agent));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_hop_has_a_process_while_it_is_used_and_forwards_the_first_syn_early() {
    // While other tests run, a process takes tens of milliseconds to start.
    let text = hops(&["a", "b", "c"], "").replace(IDLE, "1s");
    let world = World::with_links("delay=100ms", &text);
    assert_eq!(world.pid("b"), None);
    let seen = ahead(&[&world.chain.hops()[0]], || world.exchange(7002).unwrap());
    let [(_, ahead)] = seen[..] else { panic!("one hop") };
    assert!(ahead > EARLY, "the onward SYN of a cold hop left {ahead:?} before the client's ACK");
    world.exchange(7002).unwrap();
    let starts = |name: &str| world.hop(name).unwrap()["starts"].as_u64();
    assert_eq!([starts("a"), starts("b"), starts("c")], [Some(0), Some(1), Some(0)]);
    world.wait_until("the process ends when it is idle", |world| world.pid("b").is_none());
    world.exchange(7002).unwrap();
    assert_eq!(starts("b"), Some(2));
}

#[test]
fn the_process_of_a_hop_is_confined_and_has_a_user_of_its_own() {
    let world = World::new(&hops(&["a", "b"], "").replace(IDLE, "1m"));
    let [a, b] = check_confined(&world);
    assert_ne!(field(a, "Uid:"), field(b, "Uid:"));
    assert_ne!(field(a, "Uid:"), "0");
}

#[test]
fn the_processes_of_an_agent_without_root_are_confined() {
    let mut world = World::without_root(&hops(&["a", "b"], "").replace(IDLE, "1m"));
    for pid in check_confined(&world) {
        assert_eq!(field(pid, "Uid:"), AGENT_USER.to_string());
        // The parent directories, which contain the sockets of the agent and of the other hops, are
        // empty for this process.
        for directory in ["..", "../.."] {
            let path = format!("/proc/{pid}/cwd/{directory}");
            assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "{path}");
        }
    }
    let agent = Pid::from_raw(world.agent.process().id().cast_signed()).unwrap();
    kill_process(agent, Signal::TERM).unwrap();
    let ended = world.agent.process().wait_for(CHANGE_TIMEOUT, || false).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// Field of a process's status.
fn field(pid: u64, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}

/// Starts the hops a and b, and checks that their processes are confined. Returns the processes.
fn check_confined(world: &World) -> [u64; 2] {
    world.exchange(7001).unwrap();
    world.exchange(7002).unwrap();
    let pids = ["a", "b"].map(|name| world.pid(name).unwrap());
    let read = |pid: u64, what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
    for pid in pids {
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(field(pid, set), "0000000000000000", "{set}");
        }
        assert_eq!(field(pid, "NoNewPrivs:"), "1");
        let limits = read(pid, "limits");
        let data = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
        assert!(data.contains(&(64 << 20).to_string()), "{data}");
        for namespace in ["pid", "mnt", "ipc", "uts"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap();
            assert_ne!(of(&pid.to_string()), of("self"), "{namespace}");
        }
    }
    // Its only files are in its own directory.
    let own = world.agent.directory().join("hops.d/a");
    let names: Vec<_> = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names, [own.join("a.sock")]);
    pids
}

#[test]
fn hops_are_added_and_removed_by_a_reload_and_a_killed_process_is_replaced() {
    let world = World::new(&hops(&["a", "b"], "").replace(IDLE, "1m"));
    world.exchange(7001).unwrap();
    let killed = world.pid("a").unwrap();
    let pid = Pid::from_raw(i32::try_from(killed).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    world.wait_until("the failure is counted", |world| world.hop("a").unwrap()["failures"] == 1);
    world.exchange(7001).unwrap();
    assert_ne!(world.pid("a"), Some(killed));

    world.agent.reload_hops(&hops(&["a", "c", "d"], "").replace(IDLE, "1m")).unwrap();
    // The hop c has the address that b had.
    world.wait_until("c replaces b", |world| world.hop("b").is_none() && world.hop("d").is_some());
    world.exchange(7001).unwrap();
    world.exchange(7003).unwrap();
    world.agent.reload_hops("nonsense").unwrap();
    world.wait_until("the mistake is reported", |world| world.agent.log().contains("not reloaded"));
    world.exchange(7001).unwrap();
}

#[test]
fn a_hop_gets_the_address_and_the_name_of_a_removed_hop_that_still_has_flows() {
    let world = World::new(&hops(&["a"], "").replace(IDLE, "1m"));
    let server = world.listen();
    let flow = || (world.connect(7001).unwrap(), server.accept().unwrap());
    let first = flow();
    let is_open = |name: &str| world.hop(name).is_some_and(|hop| hop["fault"].is_null());
    world.agent.reload_hops(&hops(&["c"], "").replace(IDLE, "1m")).unwrap();
    world.wait_until("c has the address of a", |_| is_open("c"));
    let second = flow();
    assert!(world.pid("a").is_some(), "the first flow continues");

    world.agent.reload_hops(&hops(&["a"], "").replace(IDLE, "1m")).unwrap();
    world.wait_until("a is defined again", |world| {
        let status = status(&world.agent).to_string();
        status.contains("the removed hop of this name has not ended")
    });
    drop((first, second));
    let count = |world: &World| status(&world.agent)["hops"].as_array().unwrap().len();
    world.wait_until("only the new a is left", |world| count(world) == 1 && is_open("a"));
    flow();
}

#[test]
fn a_reload_during_a_drain_opens_no_listener() {
    let mut world = World::new(&hops(&["a", "b"], "").replace(IDLE, "1m"));
    let server = world.listen();
    let flow = (world.connect(7001).unwrap(), server.accept().unwrap());
    let agent = Pid::from_raw(world.agent.process().id().cast_signed()).unwrap();
    kill_process(agent, Signal::TERM).unwrap();
    world.wait_until("the listener is closed", |world| world.connect(7002).is_err());
    kill_process(agent, Signal::HUP).unwrap();
    thread::sleep(Duration::from_millis(200));
    world.connect(7002).unwrap_err();
    drop((flow, server));
    let ended = world.agent.process().wait_for(CHANGE_TIMEOUT, || false).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn the_process_dies_with_the_agent() {
    check_death(World::new(&hops(&["a"], "").replace(IDLE, "1m")));
    check_death(World::without_root(&hops(&["a"], "").replace(IDLE, "1m")));
}

/// Checks that the process of hop a dies when the agent is killed.
fn check_death(mut world: World) {
    world.exchange(7001).unwrap();
    let process = format!("/proc/{}/fd", world.pid("a").unwrap());
    let agent = Pid::from_raw(world.agent.process().id().cast_signed()).unwrap();
    kill_process(agent, Signal::KILL).unwrap();
    world.agent.process().wait().unwrap();
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    while Path::new(&process).exists() && fs::read_dir(&process).is_ok() {
        assert!(Instant::now() < deadline, "the process of a hop has outlived its agent");
        thread::sleep(Duration::from_millis(20));
    }
}
