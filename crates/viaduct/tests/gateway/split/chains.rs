//! Chains of handlers that open connections of their own, in both gateways.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::GatewaySpec;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{DumbbellSpec, Journal, Wan};
use viaduct_lab::world::World;

use super::{PORT, common};

/// Chains that open connections of their own; each applies to one server port.
const CHAINS: [&str; 5] = [
    "'migrate'",
    "'stripe:paths=3'",
    "'mux'",
    "'mux', 'migrate'",
    "'migrate', 'route:node=192.0.2.9:1080'",
];

/// Starts gateways, with two hosts at each site. Flows to [`PORT`] go through the first of
/// `chains`, flows to the next port through the second, and so on. Policies in `first` take
/// precedence.
fn chained(chains: &[&str], first: &str) -> World {
    chained_over(Wan::Veth, chains, first)
}

/// Starts gateways as [`chained`] does, connected by the given link.
fn chained_over(wan: Wan, chains: &[&str], first: &str) -> World {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let spec = DumbbellSpec { hosts: 2, wan, ..DumbbellSpec::default() };
    let mut world = World::build(&spec, &Journal::new()).unwrap();
    let mut spec = GatewaySpec::default().split();
    first.clone_into(&mut spec.tables);
    for (port, chain) in (PORT..).zip(chains) {
        for (way, side) in [("from", "connect"), ("to", "accept")] {
            let own = "['10.{own}.0.0/16', 'fd00:{own}::/48']";
            let handlers = format!("ports = ['{port}']\nhandlers = [{chain}]");
            writeln!(spec.tables, "[[policy]]\n{way} = {own}\nside = '{side}'\n{handlers}")
                .unwrap();
        }
    }
    world.protect(&spec).unwrap();
    world
}

#[test]
fn the_rate_of_a_policy_applies_at_the_accepting_gateway() {
    let own = "['10.{own}.0.0/16', 'fd00:{own}::/48']";
    let handlers = format!("ports = ['{PORT}']\nhandlers = ['compress']");
    let first = format!(
        "[[policy]]\nto = {own}\nside = 'accept'\nrate = '8M'\n{handlers}\n\
         [[policy]]\nfrom = {own}\n{handlers}\n"
    );
    let world = chained(&[], &first);
    let to = SocketAddr::new(world.b1().addresses().next().unwrap(), PORT);
    let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
    let data = common::random(1_000_000);
    let mut client = world.a1().netns().enter(|| TcpStream::connect(to)).unwrap().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(b"x").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    // A socket that is closed with unread data resets its connection.
    server.read_exact(&mut [0]).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            server.write_all(&data).unwrap();
            drop(server);
        });
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == data, "{} bytes", got.len());
    });
    // A megabyte a second, minus an initial burst.
    let time = begun.elapsed();
    assert!((0.6..5.0).contains(&time.as_secs_f64()), "{time:?}");
}

#[test]
fn data_before_a_reset_arrives_through_every_chain() {
    let others = ["'count'", "'shape:rate=20M'", "'latency:delay=5ms'", "'compress'"];
    let chains = [&CHAINS[..], &others].concat();
    let world = chained(&chains, "");
    let mut wrong = Vec::new();
    for (port, chain) in (PORT..).zip(chains) {
        let to = SocketAddr::new(world.b1().addresses().next().unwrap(), port);
        let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
        let mut client = world.a1().netns().enter(|| TcpStream::connect(to)).unwrap().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(&[0; 50_000]).unwrap();
        // The server closes with unread data, so the kernel sends a reset.
        let (mut server, _) = listener.accept().unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        server.write_all(&[0; 20_000]).unwrap();
        thread::sleep(Duration::from_millis(50));
        drop(server);
        let (mut got, mut data) = (0, [0; 3_000]);
        let end = loop {
            match client.read(&mut data) {
                Ok(0) => break None,
                Ok(count) => got += count,
                Err(error) => break Some(error.kind()),
            }
            thread::sleep(Duration::from_millis(1));
        };
        if (got, end) != (20_000, Some(ErrorKind::ConnectionReset)) {
            wrong.push((chain, got, end));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn connections_opened_by_handlers_keep_the_hosts_address() {
    let world = chained(&CHAINS, "");
    let data = vec![7; 3_000_000];
    for (port, chain) in (PORT..).zip(CHAINS) {
        for ip in world.b1().addresses() {
            let to = SocketAddr::new(ip, port);
            let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
            // Two flows of each host. Only flows of the same host may share a connection.
            let mut flows = Vec::new();
            for host in world.dumbbell.hosts_a().iter().chain(world.dumbbell.hosts_a()) {
                let client = host.netns().enter(|| TcpStream::connect(to)).unwrap().unwrap();
                client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                let ours = client.local_addr().unwrap().ip();
                let (server, peer) = listener.accept().unwrap();
                assert_eq!(peer.ip(), ours, "{chain}");
                flows.push((client, server));
            }
            if chain.contains("migrate") {
                // Closes the connections between the gateways. At gateway A they have the host's
                // address as source, and `to` as destination.
                let words = ["-K", "dst", &to.to_string()];
                let killed = world.dumbbell.gateway_a().run("ss", &words).unwrap();
                assert!(killed.contains("ESTAB"), "{chain}: {killed}");
            }
            for (client, server) in flows {
                common::there_and_back(client, server, &data);
            }
        }
    }
}

/// Addresses of a node that relays flows of site A's first host. The node is the second host of
/// site A.
const NODES: [&str; 2] = ["10.1.2.2:1080", "[fd00:1:0:2::2]:1080"];

/// Chains that use the node: `route` if the direct path fails, `socks` always.
const BY_NODES: [&str; 8] = [
    "'route:node={}'",
    "'migrate', 'route:node={}'",
    "'stripe:paths=2', 'route:node={}'",
    "'mux', 'route:node={}'",
    "'socks:via={}'",
    "'migrate', 'socks:via={}'",
    "'stripe:paths=2', 'socks:via={}'",
    "'mux', 'socks:via={}'",
];

/// Makes the second gateway drop the packets of the first host of the first site.
fn cut(world: &World) {
    let cut = "add table inet cut; \
               add chain inet cut gap { type filter hook prerouting priority raw; }; \
               add rule inet cut gap ip saddr 10.1.1.2 drop; \
               add rule inet cut gap ip6 saddr fd00:1:0:1::2 drop";
    world.dumbbell.gateway_b().run("nft", &[cut]).unwrap();
}

fn mend(world: &World) {
    world.dumbbell.gateway_b().run("nft", &["delete", "table", "inet", "cut"]).unwrap();
}

/// Opens a flow of the first host. Returns both ends, and the peer address at the server; `None` if
/// the flow does not arrive in time.
fn opened(
    world: &World,
    listener: &TcpListener,
    to: SocketAddr,
) -> Option<(TcpStream, TcpStream, IpAddr)> {
    let client = world.a1().netns().enter(|| TcpStream::connect(to)).unwrap().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (server, peer) = common::within_some(Duration::from_secs(5), || listener.accept().ok())?;
    server.set_nonblocking(false).unwrap();
    Some((client, server, peer.ip()))
}

#[test]
fn flows_take_a_node_where_the_direct_path_fails() {
    let ways = NODES.map(|node| BY_NODES.map(|chain| chain.replace("{}", node)));
    let chains: Vec<&str> = ways.as_flattened().iter().map(String::as_str).collect();
    // With this policy, flows that the node itself opens go through no chain.
    let world = chained(&chains, "[[policy]]\nfrom = ['10.{own}.2.2/32', 'fd00:{own}:0:2::/64']\n");
    let node = &world.dumbbell.hosts_a()[1];
    let _nodes = NODES.map(|at| {
        // The node's client is the gateway, not a host.
        let allowed = ["--allow-from", "10.1.2.1/32,fd00:1:0:2::1/128"];
        let to = ["--allow-to", "10.2.1.2/32,fd00:2:0:1::2/128"];
        let expect = ["--listen", at, "--expect", "socks"];
        Proxy::start(node, &[expect.as_slice(), &allowed, &to].concat()).unwrap()
    });
    let data = vec![7; 3_000_000];
    let mut wrong = Vec::new();
    for (port, chain) in (PORT..).zip(&chains) {
        for ip in world.b1().addresses() {
            let to = SocketAddr::new(ip, port);
            let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
            cut(&world);
            match opened(&world, &listener, to) {
                Some((client, server, peer)) if node.addresses().any(|own| own == peer) => {
                    common::there_and_back(client, server, &data);
                }
                other => wrong.push((chain, to, other.map(|other| other.2))),
            }
            mend(&world);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_flow_takes_a_slow_direct_path_if_a_node_refuses_it() {
    let chain = "'route:node=10.1.2.2:1080,wait=20ms'";
    let wan = Wan::emulated("delay=100ms".parse().unwrap(), 1);
    let world = chained_over(wan, &[chain], "");
    let other = ["--allow-from", "192.0.2.9/32"];
    let expect = ["--listen", NODES[0], "--expect", "socks", "--allow-to", "10.2.0.0/16"];
    let node = &world.dumbbell.hosts_a()[1];
    let _node = Proxy::start(node, &[&expect[..], &other].concat()).unwrap();
    let to = SocketAddr::new(world.b1().addresses().next().unwrap(), PORT);
    let listener = world.b1().netns().enter(|| TcpListener::bind(to)).unwrap().unwrap();
    let (client, server, peer) =
        opened(&world, &listener, to).expect("the flow does not take the direct path");
    assert_eq!(peer, client.local_addr().unwrap().ip());
    common::there_and_back(client, server, b"there and back");
}
