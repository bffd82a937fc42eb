//! Trickles packets through a strict masquerading router, with plain TCP on the same port.

mod controls;
mod speed;
mod world;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_sys::process::Process;
use viaduct_trickles::{ServerPort, ServerSettings};
use world::{ClientEvent, Echo, PORT, ROUTER, SERVERS, TCP, UDP, World, seen_from, sh};

const MB: u32 = 1 << 20;

#[test]
fn strict_conntrack_and_masquerading_pass_every_packet_beyond_four_gigabytes() {
    let Some(world) = World::new("strict") else { return };
    world.coalesce();
    let server = world.serve();
    let mut client = world.client(TCP, "client");
    // With TSO, segments that are sent together pass the router as one packet. Without TSO, they
    // are cut at the sender and joined at the receiver.
    for ((ip, router), whole) in SERVERS.into_iter().zip(ROUTER).zip(["on", "off"]) {
        sh(&world.server, &format!("ethtool -K eth0 tso {whole}"));
        let flow = client.connect(ip);
        let opened = client.ask_until_answered(flow);
        assert_eq!(seen_from(&opened).to_string(), router, "masqueraded");
        // Consecutive requests, each answered by two full packets.
        client.converse(flow, 1_500, 300, (2, 1400), 2_800);
        // Each request reserves 1 MB of sequence numbers for a short answer: six gigabytes in all.
        let heard = client.converse(flow, 6_000, 300, (1, 200), MB);
        let mut numbers: Vec<u32> = heard
            .iter()
            .map(|event| match event {
                ClientEvent::Answer { number, .. } => *number,
                other => panic!("{other:?}"),
            })
            .collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..6_000));
        assert_eq!(client.port().format(flow), Some(Format::Tcp));
    }
    assert_eq!([world.count("invalid"), world.count("resets")], [0, 0]);
    assert!(world.count("marked") > 2 * (1_500 + 6_000), "too few packets in TCP's format");
    let stats = server.end();
    assert_eq!(stats.refused.total(), 0, "{stats:?}");
    assert!(stats.together > 1_000, "{stats:?}");
    let stats = client.port().stats();
    assert_eq!(stats.refused.total(), 0, "packets of different messages were merged: {stats:?}");
}

#[test]
fn packets_leave_one_by_one_under_ipsec_policies() {
    let Some(world) = World::new("singly") else { return };
    let converse = |settings| {
        let server = Echo::start(world.server.netns(), settings);
        let mut client = world.client(TCP, "client");
        for ip in SERVERS {
            let flow = client.connect(ip);
            client.ask_until_answered(flow);
            // Answers that exceed the path MTU are lost, and the server learns the MTU.
            for number in 0..10 {
                client.ask(flow, number, 1, 1448, 1448);
                if !client.listen(Duration::from_millis(300)).is_empty() {
                    break;
                }
            }
            client.converse(flow, 500, 100, (2, 1448), 2_896);
        }
        server.end()
    };
    assert!(converse(world.settings()).together > 0);
    assert_eq!(converse(ServerSettings { gso: false, ..world.settings() }).together, 0);
    // An IPsec policy might apply to any packet. This one is for other addresses, so that packets
    // still pass.
    let policy = "src 192.0.2.1 dst 192.0.2.2 dir out";
    sh(&world.server, &format!("ip xfrm policy add {policy} tmpl proto esp mode transport"));
    assert_eq!(converse(world.settings()).together, 0);
    sh(&world.server, &format!("ip xfrm policy delete {policy}"));
    assert!(converse(world.settings()).together > 0);
    // The kernel must resolve a stale neighbour.
    for ip in ROUTER {
        let link = sh(&world.server, &format!("ip neigh show {ip} dev eth0"));
        let link = link.split("lladdr ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let stale = format!("ip neigh replace {ip} dev eth0 lladdr {link} nud stale");
        sh(&world.server, &stale);
    }
    assert!(converse(world.settings()).together > 0, "and then is known");
    // A route with a smaller MTU than that of its interface: the port must learn that packets are
    // too long.
    sh(&world.server, "ip route replace 10.2.0.1/32 dev eth0 mtu 1400");
    sh(&world.server, "ip route replace fd02::1/128 dev eth0 mtu 1400");
    let stats = converse(world.settings());
    assert!(stats.sent.too_long > 0 && stats.together > 0, "{stats:?}");
}

#[test]
fn strict_conntrack_passes_lost_and_repeated_openings() {
    let Some(world) = World::new("opening") else { return };
    let _server = world.serve();
    let mut client = world.client(TCP, "client");
    for ip in SERVERS {
        let flow = client.connect(ip);
        // Several SYNs at once: each is answered.
        for number in 0..5 {
            client.ask(flow, number, 2, 200 + 200 * number as u16, 400);
        }
        client.converse(flow, 500, 300, (1, 1000), 1000);
    }
    assert_eq!([world.count("invalid"), world.count("resets")], [0, 0]);
}

#[test]
fn the_same_messages_travel_over_udp() {
    let Some(world) = World::new("udp") else { return };
    let server = world.serve();
    let mut client = world.client(UDP, "client");
    for (ip, router) in SERVERS.into_iter().zip(ROUTER) {
        let flow = client.connect(ip);
        let heard = client.converse(flow, 2_000, 100, (2, 1400), 2_800);
        assert_eq!(seen_from(&heard[0]).to_string(), router);
        assert_eq!(client.port().format(flow), Some(Format::Udp));
    }
    assert_eq!(world.count("marked"), 0);
    assert_eq!(server.end().refused.total(), 0);
    assert!(!sh(&world.client, "nft list ruleset").contains("trickles"), "there is a rule for UDP");
}

#[test]
fn a_client_uses_udp_where_marked_packets_are_dropped_or_refused() {
    let Some(world) = World::new("fallback") else { return };
    let _server = world.serve();
    let drop = "tcp option @253,16,16 0x5674 drop";
    let refuse = "tcp option @253,16,16 0x5674 reject with tcp reset";
    for rule in [drop, refuse] {
        sh(&world.router, &format!("nft insert rule inet fw forward {rule}"));
        let mut client = world.client(FormatChoice::Any, "client");
        for ip in SERVERS {
            let flow = client.connect(ip);
            client.ask_until_answered(flow);
            assert_eq!(client.port().format(flow), Some(Format::Udp), "{rule}");
            client.converse(flow, 100, 10, (1, 1000), 1000);
        }
        sh(
            &world.router,
            "nft delete rule inet fw forward handle $(nft -a list chain inet fw forward | grep \
                253 | sed 's/.*handle //')",
        );
    }
    let mut client = world.client(FormatChoice::Any, "client");
    let flow = client.connect(SERVERS[0]);
    client.ask_until_answered(flow);
    assert_eq!(client.port().format(flow), Some(Format::Tcp), "TCP's format is preferred");
}

#[test]
fn plain_tcp_shares_the_port() {
    let Some(world) = World::new("plain") else { return };
    let server = world.serve();
    let mut client = world.client(TCP, "client");
    for ip in SERVERS {
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let listener = world.server.netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
        let flow = client.connect(ip);
        client.ask_until_answered(flow);
        let mut plain = world.client.netns().enter(|| TcpStream::connect(to).unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        plain.write_all(b"plain words").unwrap();
        client.converse(flow, 500, 100, (1, 1000), 1000);
        plain.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        accepted.read_to_string(&mut text).unwrap();
        assert_eq!(text, "plain words");
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "a marked packet has reached the kernel's TCP");
    }
    assert_eq!([world.count("invalid"), world.count("resets")], [0, 0]);
    assert_eq!(server.end().refused.total(), 0);
}

#[test]
fn a_plain_tcp_server_is_recognised_and_reached_by_the_kernel() {
    let Some(world) = World::new("kernel") else { return };
    for ip in SERVERS {
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let mut client = world.client(FormatChoice::Any, "client");
        let refused = client.connect(ip);
        client.ask(refused, 0, 1, 100, 100);
        // The kernel resets connections to a closed port. Then UDP is tried, which is refused at
        // once as well.
        let start = Instant::now();
        assert_eq!(client.listen(Duration::from_secs(2)), [ClientEvent::Refused]);
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        for ways in [TCP, UDP] {
            let mut only = world.client(ways, "only");
            let refused = only.connect(ip);
            only.ask(refused, 0, 1, 100, 100);
            assert_eq!(only.listen(Duration::from_secs(2)), [ClientEvent::Refused], "{ways:?}");
        }

        let listener = world.server.netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
        let flow = client.connect(ip);
        client.ask(flow, 0, 1, 100, 100);
        assert_eq!(client.listen(Duration::from_secs(2)), [ClientEvent::Plain]);
        client.port().close(flow);
        let mut plain = world.client.netns().enter(|| TcpStream::connect(to).unwrap()).unwrap();
        plain.write_all(b"x").unwrap();
        let (accepted, from) = listener.accept().unwrap();
        assert_eq!(accepted.local_addr().unwrap(), to);
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "the earlier SYN was reset, only {from} is connected");
        let half_open = sh(&world.server, "ss -Htn state syn-recv");
        assert_eq!(half_open.trim(), "");
    }
}

#[test]
fn packets_fit_the_path_mtu() {
    let Some(world) = World::new("mtu") else { return };
    let server = world.serve();
    sh(&world.router, "ip link set west mtu 1300");
    sh(&world.client, "ip link set eth0 mtu 1300");
    for ways in [TCP, UDP] {
        let mut client = world.client(ways, "client");
        for (ip, header) in SERVERS.into_iter().zip([20, 40]) {
            let flow = client.connect(ip);
            client.ask_until_answered(flow);
            // The first answer is lost on the path, and a router reports the MTU.
            let mut events = Vec::new();
            for number in 0..10 {
                client.ask(flow, number, 1, 1448, 1448);
                events = client.listen(Duration::from_millis(300));
                if !events.is_empty() {
                    break;
                }
            }
            let Some(ClientEvent::Answer { length, .. }) = events.last() else {
                panic!("{ways:?} {ip}")
            };
            let own = if ways == TCP { 32 } else { 12 };
            assert_eq!(*length, 1300 - header - own, "{ways:?} {ip}");
        }
    }
    assert!(server.end().too_big >= 2);
    assert_eq!(world.count("invalid"), 0);
}

#[test]
fn servers_at_different_addresses_share_a_port_with_plain_tcp() {
    let Some(world) = World::new("apart") else { return };
    let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), PORT);
    let only = |ip| ServerSettings { listen: vec![at(ip)], ..world.settings() };
    let first = Echo::start(world.server.netns(), only(SERVERS[0]));
    let mut client = world.client(TCP, "client");
    let plain = world.server.netns().enter(|| TcpListener::bind(at(SERVERS[1])).unwrap()).unwrap();
    let flow = client.connect(SERVERS[1]);
    client.ask(flow, 0, 1, 100, 100);
    assert_eq!(client.listen(Duration::from_secs(2)), [ClientEvent::Plain], "no rule applies here");
    client.port().close(flow);
    drop(plain);

    let second = Echo::start(world.server.netns(), only(SERVERS[1]));
    for ip in SERVERS {
        let flow = client.connect(ip);
        client.ask_until_answered(flow);
    }
    first.end();
    let flow = client.connect(SERVERS[1]);
    client.ask_until_answered(flow);
    second.end();
    assert_eq!(sh(&world.server, "nft list ruleset").trim(), "");
}

#[test]
#[ignore = "not a test by itself: the process that the next test kills"]
fn the_killed_server() {
    let Some(run_dir) = std::env::var_os("VIADUCT_TEST_RUN_DIR") else { return };
    let settings = ServerSettings {
        listen: vec![([0; 4], PORT).into()],
        tcp: true,
        udp: false,
        mtu: 1500,
        untracked: true,
        gso: true,
        run_dir: run_dir.into(),
        share: None,
    };
    let _port = ServerPort::open(&settings).unwrap();
    println!("\nready");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn rules_of_a_killed_server_do_not_affect_plain_tcp_and_are_removed_by_the_next() {
    let Some(world) = World::new("killed") else { return };
    let mut command: Command =
        world.server.command(std::env::current_exe().unwrap().to_str().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "strict_router::the_killed_server"]);
    command.env("VIADUCT_TEST_RUN_DIR", &world.run_dir).stdout(Stdio::piped());
    let mut killed = Process::spawn(command).unwrap();
    let lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    killed.kill().unwrap();
    let rules = || sh(&world.server, "nft list ruleset");
    assert!(rules().contains("viaduct_trickles_8080"), "the killed program has left no rule");
    let to = SocketAddr::new(SERVERS[0].parse().unwrap(), PORT);
    let listener = world.server.netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
    world.client.netns().enter(|| TcpStream::connect(to).unwrap()).unwrap();
    drop(listener);

    let server = world.serve();
    let mut client = world.client(TCP, "client");
    let flow = client.connect(SERVERS[0]);
    client.ask_until_answered(flow);
    assert_eq!(rules().matches("chain arriving").count(), 1);
    server.end();
    assert_eq!(rules().trim(), "", "a server that ends in order leaves no rule");
    assert!(sh(&world.client, "nft list ruleset").contains("viaduct_client"));
    drop(client);
    assert_eq!(sh(&world.client, "nft list ruleset").trim(), "");
    assert_eq!(std::fs::read_dir(&world.run_dir).unwrap().count(), 0, "a journal is left");
}
