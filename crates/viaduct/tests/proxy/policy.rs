//! A proxy with a config file: the effect of policies on flows, and reloads, which break no flow.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal, Scratch};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::link::LinkConfig;

use crate::common::{self, random};
use crate::rules;

const HEAD: &str = "listen = '[::]:7000'\nintercept = ['0.0.0.0/0', '::/0']\n";

struct World {
    proxy: Proxy,
    chain: Chain,
}

/// Listens at `at`. Retries for 2 s: a child that another test has just forked holds an earlier
/// listener open until its `exec`.
fn listen(at: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match TcpListener::bind(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            bound => return bound.unwrap(),
        }
    }
}

impl World {
    fn new(lines: &str) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let link: LinkConfig = "delay=1ms".parse().unwrap();
        let chain = Chain::build(&[link.clone(), link], 1, &Journal::new()).unwrap();
        let proxy = Proxy::configured(&chain.hops()[0], lines).unwrap();
        World { proxy, chain }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.chain.server().addresses().collect()
    }

    /// Opens a flow to `port`. Returns the client's end and the server's; `None` if it is refused.
    fn flow(&self, ip: IpAddr, port: u16) -> Option<(TcpStream, TcpStream)> {
        let at = SocketAddr::new(ip, port);
        let listener = self.chain.server().netns().enter(|| listen(at)).unwrap();
        let connect = || TcpStream::connect_timeout(&at, Duration::from_secs(5));
        // A reset may arrive before the handshake is complete at the client.
        let mut client = self.chain.client().netns().enter(connect).unwrap().ok()?;
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + Duration::from_millis(1_500);
        while Instant::now() < deadline {
            if let Ok((server, _)) = listener.accept() {
                server.set_nonblocking(false).unwrap();
                return Some((client, server));
            }
            thread::sleep(Duration::from_millis(2));
        }
        assert!(client.read(&mut [0; 10]).is_err(), "the flow is neither served nor refused");
        None
    }

    fn counters(&self) -> Value {
        rules::status(&self.proxy)["counters"].clone()
    }

    /// Waits until the log contains `what`.
    fn wait_for(&self, what: &str) {
        self.wait_for_times(what, 1);
    }

    /// Waits until the log contains `what` this many times.
    fn wait_for_times(&self, what: &str, times: usize) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.proxy.log().matches(what).count() < times {
            assert!(Instant::now() < deadline, "{what:?} is not in {}", self.proxy.log());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends `bytes` and an end of stream in one direction, and the same back. Returns the time taken.
fn there_and_back(flow: Option<(TcpStream, TcpStream)>, bytes: &[u8]) -> Duration {
    let began = Instant::now();
    let (client, server) = flow.unwrap();
    common::there_and_back(client, server, bytes);
    began.elapsed()
}

#[test]
fn policies_deny_limit_and_process_flows() {
    let world = World::new(&format!(
        "{HEAD}[[policy]]\nports = ['9001']\naction = 'deny'\n\
         [[policy]]\nports = ['9002']\nhandlers = ['count', 'latency:delay=50ms', 'count']\n\
         [[policy]]\nname = 'slow'\nports = ['9003']\nrate = '8M'\n\
         [[policy]]\nports = ['9004']\nhandlers = ['shape:rate=8M']\n",
    ));
    for ip in world.addresses() {
        assert!(world.flow(ip, 9001).is_none(), "denied");
        for bytes in [0, 1, 5_000_000] {
            there_and_back(world.flow(ip, 9000), &random(bytes));
            let took = there_and_back(world.flow(ip, 9002), &random(bytes));
            assert!(took >= Duration::from_millis(100), "{bytes} bytes took {took:?}");
        }
        for port in [9003, 9004] {
            // At this rate the bytes take a second in each direction, less the time saved by a
            // burst at the start.
            let took = there_and_back(world.flow(ip, port), &random(1_000_000));
            let expected = Duration::from_millis(1_400)..Duration::from_secs(4);
            assert!(expected.contains(&took), "{port}: {took:?}");
        }
    }
    common::until("all flows have finished", || world.counters()["finished"] == 16);
    let counters = world.counters();
    assert_eq!(counters["refused"]["denied"], 2, "{counters}");
    assert_eq!((&counters["opened"], &counters["finished"]), (&16.into(), &16.into()));
    assert_eq!(counters["bytes"][0], counters["bytes"][1], "not all bytes came back");
    assert_eq!(counters["bytes"][0], 2 * (2 * 5_000_001 + 2 * 1_000_000));
    let mut policies = counters["policies"].as_array().unwrap().clone();
    policies.sort_by_key(|of| of["policy"].to_string());
    let expected = [
        ("1", 0, 2, 0),
        ("2", 6, 0, 2 * 5_000_001),
        ("4", 2, 0, 2_000_000),
        ("otherwise", 6, 0, 2 * 5_000_001),
        ("slow", 2, 0, 2_000_000),
    ];
    let expected = expected.map(|(policy, opened, denied, bytes)| {
        json!({
            "policy": policy, "open": 0, "opened": opened, "denied": denied,
            "bytes": [bytes, bytes],
        })
    });
    assert_eq!(policies, expected);
}

#[test]
fn flows_that_handlers_accept_are_counted_limited_and_logged_like_all_others() {
    let scratch = Scratch::new().unwrap();
    let log = scratch.path().join("access.log");
    let world = World::new(&format!(
        "{HEAD}connect-timeout = '1s'\naccess-log = '{}'\naccess-log-format = 'json'\n\
         [[policy]]\nname = 'far'\nside = 'accept'\nhandlers = ['count']\n",
        log.display(),
    ));
    let at = SocketAddr::new(world.addresses()[0], 9000);
    let (mut client, mut server) = world.flow(at.ip(), at.port()).unwrap();
    client.write_all(&[0; 3_000]).unwrap();
    server.read_exact(&mut [0; 3_000]).unwrap();
    server.write_all(&[0; 500]).unwrap();
    client.read_exact(&mut [0; 500]).unwrap();
    drop((client, server));
    common::until("the flow has finished", || world.counters()["finished"] == 1);
    let counters = world.counters();
    let bytes = json!([3_000, 500]);
    assert_eq!(counters["bytes"], bytes, "from the client, and to it");
    let far = json!({ "policy": "far", "open": 0, "opened": 1, "denied": 0, "bytes": bytes });
    assert_eq!(counters["policies"], json!([far]));
    // The server no longer answers.
    world.chain.server().run("nft", &["add", "table", "inet", "deaf"]).unwrap();
    let deaf = "add chain inet deaf input { type filter hook input priority 0; policy drop; }";
    world.chain.server().run("nft", &[deaf]).unwrap();
    let begun = Instant::now();
    let mut client =
        world.chain.client().netns().enter(|| TcpStream::connect(at)).unwrap().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!((1.0..4.0).contains(&begun.elapsed().as_secs_f64()), "{:?}", begun.elapsed());
    assert_eq!(world.counters()["refused"]["timed_out"], 1);
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    common::until("both flows are logged", || lines().lines().count() == 2);
    let lines: Vec<Value> =
        lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, status, received, sent) in [(&lines[0], 200, 3_000, 500), (&lines[1], 504, 0, 0)] {
        assert_eq!(line["request"], format!("CONNECT {at} TCP"), "{line}");
        let found = json!([line["status"], line["received"], line["sent"]]);
        assert_eq!(found, json!([status, received, sent]), "{line}");
    }
}

#[test]
fn a_stopping_proxy_serves_clients_that_handlers_accept() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let links = ["delay=300ms", "delay=1ms"].map(|link| link.parse::<LinkConfig>().unwrap());
    let chain = Chain::build(&links, 1, &Journal::new()).unwrap();
    let to = SocketAddr::new(chain.server().v4().into(), 9000);
    let policy = "[[policy]]\nside = 'accept'\nhandlers = ['count']\n";
    let lines = format!("listen = '10.1.0.2:7000'\nto = '{to}'\n{policy}");
    let mut proxy = Proxy::configured(&chain.hops()[0], &lines).unwrap();
    let listener = chain.server().netns().enter(|| listen(to)).unwrap();
    let connect = || thread::spawn(|| TcpStream::connect("10.1.0.2:7000").unwrap());
    let client = chain.client().netns().enter(connect).unwrap();
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    common::until("the handshake has begun", || {
        chain.hops()[0].netns().enter(sockets).unwrap().contains(" 03 ")
    });
    kill_process(Pid::from_child(proxy.process()), Signal::TERM).unwrap();
    let client = client.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    let accepted = || listener.accept().ok();
    let (server, _) = common::within_some(Duration::from_secs(10), accepted).expect("a flow");
    server.set_nonblocking(false).unwrap();
    common::there_and_back(client, server, b"served");
    assert!(proxy.process().wait().unwrap().success());
}

#[test]
fn a_config_is_reloaded_completely_or_not_at_all_and_no_flow_is_cut() {
    for loops in ["", "workers = 3\n"] {
        read_again(&format!("{HEAD}{loops}"));
    }
}

fn read_again(head: &str) {
    let world = World::new(head);
    let ip = world.addresses()[0];
    let open = world.flow(ip, 9000);
    world.proxy.reload(&format!("{head}[[policy]]\nports = ['9000']\naction = 'den'\n")).unwrap();
    world.wait_for("nothing has changed");
    assert!(world.flow(ip, 9000).is_some(), "as before");
    world.proxy.reload("listen = '[::]:7001'\nintercept = ['0.0.0.0/0', '::/0']\n").unwrap();
    world.wait_for("listen: has changed; that needs a restart");
    world.proxy.reload(&format!("{head}[[policy]]\nports = ['9000']\naction = 'deny'\n")).unwrap();
    world.wait_for("the config was read again");
    for n in 0..6 {
        assert!(world.flow(ip, 9000).is_none(), "denied now, by every loop: {n}");
    }
    there_and_back(open, &random(100_000));
}

#[test]
fn policies_choose_tunnels_by_name() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let link: LinkConfig = "delay=1ms".parse().unwrap();
    let mut chain = Chain::build(&[link.clone(), link.clone(), link], 1, &Journal::new()).unwrap();
    let keys = Scratch::new().unwrap();
    let key = |own: u8| {
        let file = keys.write(&format!("{own}.key"), SecretKey::from_bytes([own; 32]).to_text());
        file.unwrap().display().to_string()
    };
    let public = |own: u8| SecretKey::from_bytes([own; 32]).public().to_string();
    // One far end is a router, the other is the server itself; the address that the server sees
    // identifies the path of a flow.
    let far = |node, own| {
        let near = public(1);
        let listen = ["--tunnel-listen", "[::]:7100", "--key", &key(own), "--peer", &near];
        Proxy::start(node, &[&listen[..], &["--allow-to", "10.3.0.2/32"]].concat()).unwrap()
    };
    let _rome = far(&chain.hops()[1], 2);
    let _oslo = far(chain.server(), 3);
    for carrier in ["tcp", "quic"] {
        let head = format!("{HEAD}key = '{}'\ncarrier = '{carrier}'\n", key(1));
        let tunnel = |name: &str, to: &str, peer: u8| {
            format!("[[tunnel]]\nname = '{name}'\nto = '{to}'\npeer = '{}'\n", public(peer))
        };
        let rome = tunnel("rome", "10.2.0.2:7100", 2) + "links = 2\n";
        let both = head + &rome + &tunnel("oslo", "10.3.0.2:7100", 3);
        let policy =
            |port: u16, name: &str| format!("[[policy]]\nports = ['{port}']\ntunnel = '{name}'\n");
        let lines = format!("{both}{}{}", policy(9001, "rome"), policy(9002, "oslo"));
        let proxy = Proxy::configured(&chain.hops()[0], &lines).unwrap();
        let world = World { proxy, chain };
        let ip: IpAddr = world.chain.server().v4().into();
        let from = |port: u16| {
            let (client, server) = world.flow(ip, port).unwrap();
            let from = server.peer_addr().unwrap().ip();
            there_and_back(Some((client, server)), &random(100_000));
            from.to_string()
        };
        let ways = [9000, 9001, 9002].map(from);
        assert_eq!(ways, ["10.2.0.1", "10.3.0.1", "10.3.0.2"], "direct, rome, oslo: {carrier}");
        world.proxy.reload(&(both + &policy(9001, "oslo"))).unwrap();
        world.wait_for("the config was read again");
        assert_eq!([9001, 9002].map(from), ["10.3.0.2", "10.2.0.1"], "{carrier}");
        chain = world.chain;
    }
}

#[test]
fn on_demand_proxies_use_the_config_that_their_parent_has_checked() {
    let head = format!("{HEAD}on-demand = true\nidle-exit = '300ms'\n");
    let world = World::new(&head);
    let ip = world.addresses()[0];
    assert!(world.flow(ip, 9001).is_some());
    let denied = format!("{head}[[policy]]\nports = ['9001']\naction = 'deny'\n");
    let denies = || {
        let deadline = Instant::now() + Duration::from_secs(5);
        while world.flow(ip, 9001).is_some() {
            assert!(Instant::now() < deadline, "{}", world.proxy.log());
        }
    };
    let gone = || world.wait_for_times("idle", world.proxy.log().matches("started").count());
    gone();
    // Without a signal a changed file is not read, so it may be invalid.
    std::fs::write(world.proxy.directory().join("proxy.toml"), "[proxy]\nflows = 0\n").unwrap();
    assert!(world.flow(ip, 9001).is_some(), "the next proxy must use the config of the last one");
    for (lines, why) in [
        (format!("{head}flows = 0\n"), "a number of at least 1"),
        (head.replace("7000", "7001"), "listen: has changed"),
    ] {
        world.proxy.reload(&lines).unwrap();
        world.wait_for(why);
        assert!(world.flow(ip, 9001).is_some(), "{why}");
    }
    gone();
    world.proxy.reload(&denied).unwrap();
    world.wait_for_times("read again", 1);
    denies();
    // A running proxy reloads immediately.
    let (_client, _server) = world.flow(ip, 9002).unwrap();
    world.proxy.reload(&head).unwrap();
    world.wait_for_times("read again", 3);
    assert!(world.flow(ip, 9001).is_some());
}
