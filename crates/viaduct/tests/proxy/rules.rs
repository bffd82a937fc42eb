//! Changes that a proxy makes to its machine: their ownership and removal, and interference by
//! other programs.

use viaduct_sys::process::Process;

use super::*;

#[test]
fn connections_bypass_a_killed_proxy_until_its_next_start() {
    let mut world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    let peer = |world: &World| {
        let _client = world.connect(ip).unwrap();
        listener.accept().unwrap().1.ip()
    };
    let client: IpAddr = world.chain.client().v4().into();
    assert_ne!(peer(&world), client, "the proxy connects with its own address");
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    world.proxy.process().wait().unwrap();
    assert_eq!(peer(&world), client, "connections bypass the killed proxy");
    let before = world.hop().run("nft", &["list", "ruleset"]).unwrap();
    assert!(before.contains("tproxy"), "{before}");
    let mut again = Proxy::on_path(world.hop()).unwrap();
    assert_ne!(peer(&world), client);
    let pid = Pid::from_raw(again.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    again.process().wait().unwrap();
    let after = world.hop().run("nft", &["list", "ruleset"]).unwrap();
    assert!(!after.contains("tproxy"), "rules are left: {after}");
    assert_eq!(peer(&world), client);
}

#[test]
fn a_port_and_its_rules_belong_to_one_proxy() {
    let mut world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let client: IpAddr = world.chain.client().v4().into();
    let listener = world.listen(ip);
    let is_split = |world: &World| {
        let _client = world.connect(ip).unwrap();
        listener.accept().unwrap().1.ip() != client
    };
    let rules = |world: &World| world.hop().run("nft", &["list", "ruleset"]).unwrap();
    let another = |world: &World| Proxy::on_path(world.hop()).map_err(|error| error.to_string());
    for ports in [["[::]:7000", "[::]:7000"], ["[::]:7001", "[::]:7001"]] {
        let twice = ["--listen", ports[0], "--listen", ports[1], "--to", "10.2.0.2:1"];
        let refused = Proxy::start(world.hop(), &twice).unwrap_err().to_string();
        assert!(refused.contains("Address already in use"), "{refused}");
    }
    let refused = another(&world).unwrap_err();
    assert!(refused.contains("viaduct_proxy_7000 belongs to another process"), "{refused}");
    assert!(rules(&world).contains("tproxy") && is_split(&world), "the first proxy is disturbed");

    // A draining proxy does not divert new connections, but still owns the rules.
    let mut flow = world.connect(ip).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    eventually("the proxy is draining", || world.proxy.log().contains("stopping"));
    let refused = another(&world).unwrap_err();
    assert!(refused.contains("waits for its last flows"), "{refused}");
    echo(&mut flow, &mut server);
    assert!(!is_split(&world));
    drop((flow, server));
    world.proxy.process().wait().unwrap();
    let _second = another(&world).unwrap();
    assert!(is_split(&world) && rules(&world).contains("tproxy"));
}

/// Connects from `port` of the client to the server, even if the address is in use.
fn connect_from(chain: &Chain, port: u16, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let from: IpAddr = match to {
        SocketAddr::V4(_) => chain.client().v4().into(),
        SocketAddr::V6(_) => chain.client().addresses().find(IpAddr::is_ipv6).unwrap(),
    };
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let connect = || {
        let socket = socket(family, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddr::new(from, port)).unwrap();
        connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    };
    let stream = chain.client().netns().enter(connect).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

#[test]
fn existing_connections_bypass_a_new_proxy_even_if_their_port_is_reused() {
    let chain = chain("delay=1ms");
    for ip in chain.server().addresses().collect::<Vec<_>>() {
        let listen = |port| TcpListener::bind(SocketAddr::new(ip, port)).unwrap();
        let listen = |port| chain.server().netns().enter(|| listen(port)).unwrap();
        let (one, other) = (listen(PORT), listen(PORT + 1));
        let mut before = connect_from(&chain, 45_000, SocketAddr::new(ip, PORT));
        let (mut server, _) = one.accept().unwrap();
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _proxy = Proxy::on_path(&chain.hops()[0]).unwrap();
        let _after = connect_from(&chain, 45_000, SocketAddr::new(ip, PORT + 1));
        let _ = other.accept().unwrap();
        echo(&mut before, &mut server);
    }
}

#[test]
fn the_name_of_a_service_is_unique_in_its_directory() {
    let world = World::new("delay=1ms");
    let directory = world.proxy.directory().display().to_string();
    let another = ["--listen", "[::]:7001", "--to", "10.2.0.2:1", "--run-dir", &directory];
    let start = |name| Proxy::start(world.hop(), &[&another[..], &["--name", name]].concat());
    let refused = start("proxy-7000").unwrap_err().to_string();
    assert!(refused.contains("a service of this name runs"), "{refused}");
    assert!(world.proxy.directory().join("proxy-7000.sock").exists());
    start("proxy-7001").unwrap();
}

#[test]
fn connections_to_the_listener_itself_are_refused_immediately() {
    let chain = chain("delay=1ms");
    let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0", "--keep-client"];
    let world = World { proxy: Proxy::start(&chain.hops()[0], &path).unwrap(), chain };
    let to: SocketAddr = "10.1.0.2:7000".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
    for n in 1..=3 {
        let client = world.chain.client().netns().enter(connect).unwrap();
        let ended = client.and_then(|mut client| {
            client.set_read_timeout(Some(Duration::from_secs(5)))?;
            client.read(&mut [0])
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let counters = &status(&world.proxy)["counters"];
        assert_eq!((&counters["refused"]["denied"], &counters["open"]), (&n.into(), &0.into()));
    }
}

#[test]
fn connections_to_the_listeners_port_at_other_hosts_are_selected_like_others() {
    for (prefixes, by_proxy) in [("192.0.2.0/24,2001:db8::/32", false), ("0.0.0.0/0,::/0", true)] {
        let chain = chain("delay=1ms");
        let path = ["--listen", "[::]:7000", "--intercept", prefixes];
        let world = World { proxy: Proxy::start(&chain.hops()[0], &path).unwrap(), chain };
        for ip in world.addresses() {
            let to = SocketAddr::new(ip, 7000);
            let listen = || TcpListener::bind(to).unwrap();
            let listener = world.chain.server().netns().enter(listen).unwrap();
            let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
            let mut client = world.chain.client().netns().enter(connect).unwrap();
            let (mut server, peer) = listener.accept().unwrap();
            echo(&mut client, &mut server);
            let own = client.local_addr().unwrap().ip();
            assert_eq!(peer.ip() != own, by_proxy, "{ip}, {prefixes}");
        }
    }
}

/// Returns the status of a proxy, the only service of its directory, as JSON.
pub(super) fn status(proxy: &Proxy) -> Value {
    let mut status = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    status.args(["status", "--json", "--run-dir"]).arg(proxy.directory());
    let output = status.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = all.as_object().unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.values().next().unwrap().clone()
}

#[test]
fn changes_of_a_killed_proxy_are_reverted_by_the_next_of_its_name() {
    let mut world = World::new("delay=1ms");
    let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    world.proxy.process().wait().unwrap();
    let rules = || {
        let tables = world.hop().run("nft", &["list", "tables"]).unwrap();
        tables + &world.hop().run("ip", &["rule", "list", "priority", "118"]).unwrap()
    };
    let journal = world.proxy.directory().join("proxy-7000.changes.json");
    assert!(journal.exists() && rules().contains("viaduct_proxy_7000"));
    let directory = world.proxy.directory().display().to_string();
    let to = ["--listen", "[::]:7000", "--to", "10.2.0.2:9000", "--run-dir", &directory];
    let _next = Proxy::start(world.hop(), &to).unwrap();
    assert_eq!((rules().as_str(), journal.exists()), ("", false));
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn removed_rules_are_restored() {
    let world = World::new("delay=1ms");
    for (n, taken) in
        ["nft flush ruleset", "ip rule del priority 118", "ip -6 rule del priority 118"]
            .iter()
            .enumerate()
    {
        let words: Vec<_> = taken.split(' ').collect();
        world.hop().run(words[0], &words[1..]).unwrap();
        let restored = || status(&world.proxy)["restored"] == n + 1;
        eventually(taken, restored);
        for ip in world.addresses() {
            let listener = world.listen(ip);
            let client = world.connect(ip).unwrap();
            let peer = listener.accept().unwrap().1.ip();
            assert_ne!(peer, client.local_addr().unwrap().ip(), "split again after {taken}");
        }
    }
    assert_eq!(world.proxy.log().matches("have been restored").count(), 3, "{}", world.proxy.log());
}

#[test]
fn no_syn_is_forwarded_early_while_rules_are_missing() {
    let world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    // A table with an owner cannot be changed by another process, such as the proxy.
    let intruder = || {
        let mut command = Command::new("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut intruder = world.hop().netns().enter(intruder).unwrap();
    let mut commands = intruder.stdin.take().unwrap();
    writeln!(commands, "flush ruleset; add table inet viaduct_proxy_7000 {{ flags owner; }}")
        .unwrap();
    eventually("the rules are missing", || status(&world.proxy)["missing"] == true);
    let client = world.connect(ip).unwrap();
    assert_eq!(
        listener.accept().unwrap().1,
        client.local_addr().unwrap(),
        "the connection does not bypass the proxy"
    );
    listener.set_nonblocking(true).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(listener.accept().is_err(), "its SYN was forwarded twice");
    drop(commands);
    intruder.wait().unwrap();
    eventually("the rules are restored", || status(&world.proxy)["restored"] == 1);
    listener.set_nonblocking(false).unwrap();
    let client = world.connect(ip).unwrap();
    assert_ne!(listener.accept().unwrap().1, client.local_addr().unwrap());
    assert_eq!(status(&world.proxy)["missing"], false);
}

/// Starts a proxy on the path with this run directory, without waiting until it is up.
fn begin(chain: &Chain, run_dir: &str, more: &[&str]) -> Process {
    let mut command = chain.hops()[0].command(env!("CARGO_BIN_EXE_viaduct"));
    let path = ["proxy", "--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0", "--run-dir"];
    command.args(path).arg(run_dir).args(more);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    chain.hops()[0].spawn(command).unwrap()
}

fn pid(process: &Process) -> Pid {
    Pid::from_child(process)
}

/// Returns the tables, rules and files that a proxy has left behind.
fn left(chain: &Chain, run_dir: &Scratch) -> String {
    let tables = chain.hops()[0].run("nft", &["list", "tables"]).unwrap();
    let rules = chain.hops()[0].run("ip", &["rule", "list", "priority", "118"]).unwrap();
    let files = std::fs::read_dir(run_dir.path()).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    // The lock file of the directory remains, because another process may be waiting for it.
    let files: Vec<_> = files.filter(|name| !name.starts_with(".lock-")).collect();
    if files.is_empty() { tables + &rules } else { format!("{tables}{rules}{files:?}") }
}

#[test]
fn a_signal_during_startup_ends_a_proxy_and_leaves_nothing() {
    let chain = chain("delay=1ms");
    let run_dir = Scratch::new().unwrap();
    let directory = run_dir.path().display().to_string();
    for more in [&[][..], &["--on-demand"]] {
        for millis in [8, 15, 25, 40, 60, 100] {
            let mut process = begin(&chain, &directory, more);
            thread::sleep(Duration::from_millis(millis));
            kill_process(pid(&process), Signal::TERM).unwrap();
            process.wait().unwrap();
            assert_eq!(left(&chain, &run_dir), "", "after {millis} ms, {more:?}");
        }
    }
}

#[test]
fn a_start_reverts_the_changes_of_a_start_that_was_killed() {
    let chain = chain("delay=1ms");
    let run_dir = Scratch::new().unwrap();
    let directory = run_dir.path().display().to_string();
    for millis in (6..36).step_by(3) {
        let killed = begin(&chain, &directory, &[]);
        thread::sleep(Duration::from_millis(millis));
        kill_process(pid(&killed), Signal::KILL).unwrap();
        let options = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0", "--run-dir"];
        let mut next = Proxy::start(&chain.hops()[0], &[&options[..], &[&directory]].concat())
            .unwrap_or_else(|error| panic!("after {millis} ms: {error}"));
        // The second signal ends the proxy immediately.
        let process = Pid::from_child(next.process());
        kill_process(process, Signal::TERM).unwrap();
        kill_process(process, Signal::TERM).unwrap();
        next.process().wait().unwrap();
        drop(killed);
        assert_eq!(left(&chain, &run_dir), "", "after {millis} ms");
    }
}

#[test]
fn new_connections_bypass_a_stopping_proxy() {
    for more in [&[][..], &["--on-demand"], &["--accept", "after-connect"]] {
        let chain = chain("delay=5ms");
        let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0"];
        let proxy = Proxy::start(&chain.hops()[0], &[&path[..], more].concat()).unwrap();
        let mut world = World { proxy, chain };
        let ip = world.addresses()[0];
        let listener = world.listen(ip);
        let mut flow = world.connect(ip).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        kill_process(Pid::from_child(world.proxy.process()), Signal::TERM).unwrap();
        let asked = Instant::now();
        // New connections go through the proxy or bypass it; none of their SYNs is lost.
        let client = flow.local_addr().unwrap().ip();
        let mut by = 0;
        while asked.elapsed() < Duration::from_millis(900) {
            let begun = Instant::now();
            let _client = world.connect(ip).unwrap();
            assert!(begun.elapsed() < Duration::from_millis(500), "{more:?} {:?}", begun.elapsed());
            by += usize::from(listener.accept().unwrap().1.ip() == client);
            thread::sleep(Duration::from_millis(10));
        }
        assert!(by > 10, "{more:?}: only {by} have bypassed the proxy");
        echo(&mut flow, &mut server);
        drop((flow, server));
        world.proxy.process().wait().unwrap();
    }
}

#[test]
fn an_unanswered_held_syn_does_not_delay_the_end() {
    let chain = chain("delay=1ms");
    let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0", "--accept", "after-connect"];
    let mut proxy = Proxy::start(&chain.hops()[0], &path).unwrap();
    let deaf = "add table inet deaf; \
                add chain inet deaf input { type filter hook input priority 0; }; \
                add rule inet deaf input tcp dport 9000 drop";
    chain.server().run("nft", &[deaf]).unwrap();
    let to = SocketAddr::new(chain.server().v4().into(), PORT);
    let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(300));
    assert!(chain.client().netns().enter(connect).unwrap().is_err());
    assert_eq!(status(&proxy)["counters"]["waiting"], 1);
    let asked = Instant::now();
    kill_process(Pid::from_child(proxy.process()), Signal::TERM).unwrap();
    proxy.process().wait().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
}
