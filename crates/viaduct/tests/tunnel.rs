//! A real tunnel between two routers on the path between a client and a server: what programs see
//! of it.
#![allow(clippy::unwrap_used)] // a test may panic

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_lab::binary::use_binary;
use viaduct_lab::topology::{Chain, Journal};
use viaduct_lab::tunnels::{TunnelConfig, TunnelPair};
use viaduct_proto::link::LinkConfig;
use viaduct_proto::rng::Rng;

const PORT: u16 = 9000;

/// client ── near end ══ tunnel ══ far end ── server
struct World {
    pair: TunnelPair,
    chain: Chain,
}

impl World {
    /// `link` is between the tunnel's ends; `both` are options of both.
    fn new(link: &str, both: &str) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let near: LinkConfig = "delay=1ms".parse().unwrap();
        let links = [near.clone(), link.parse().unwrap(), near];
        let chain = Chain::build(&links, 1, &Journal::new()).unwrap();
        let config = TunnelConfig {
            far: "10.2.0.2".parse().unwrap(),
            near: "--listen [::]:7000 --intercept 0.0.0.0/0,::/0",
            allow_to: "10.3.0.2/32,fd00:3::2/128",
            both,
        };
        let pair = TunnelPair::start(&chain.hops()[0], &chain.hops()[1], &config).unwrap();
        World { pair, chain }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.chain.server().addresses().collect()
    }

    /// A listener in the server.
    fn listen(&self, ip: IpAddr) -> TcpListener {
        let listen = || TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
        self.chain.server().netns().enter(listen).unwrap()
    }

    /// A connection from the client.
    fn connect(&self, ip: IpAddr) -> TcpStream {
        let to = SocketAddr::new(ip, PORT);
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5));
        let stream = self.chain.client().netns().enter(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Both ends of a connection.
    fn pair(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = self.connect(listener.local_addr().unwrap().ip());
        let (server, from) = listener.accept().unwrap();
        assert!(!self.chain.client().addresses().any(|own| own == from.ip()), "it is split");
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (client, server)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("near end:\n{}\nfar end:\n{}", self.pair.near.log(), self.pair.far.log());
        }
    }
}

fn random(bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Rng::from_seed(7).fill(&mut data);
    data
}

/// Reads to the end of `stream`; what came.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    data
}

const CARRIERS: [&str; 1] = ["--carrier tcp"];

#[test]
fn every_byte_arrives_and_each_direction_ends_by_itself() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", &format!("{carrier} --links 2"));
        for ip in world.addresses() {
            for bytes in [0, 1, 100_000, 20_000_000] {
                let listener = world.listen(ip);
                let sent = random(bytes);
                let (mut client, mut server) = world.pair(&listener);
                let server = thread::spawn(move || {
                    // All of one direction, to its end, before the first byte of the other.
                    let got = rest(&mut server);
                    server.write_all(&got).unwrap();
                    got.len()
                });
                client.write_all(&sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let back = rest(&mut client);
                assert_eq!(server.join().unwrap(), bytes, "{ip} {carrier}");
                assert!(back == sent, "{ip} {carrier}: {} of {bytes} came back", back.len());
            }
        }
    }
}

#[test]
fn single_bytes_are_served() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", carrier);
        let listener = world.listen(world.addresses()[0]);
        let (mut client, mut server) = world.pair(&listener);
        client.set_nodelay(true).unwrap();
        let sent = random(300);
        for byte in &sent {
            client.write_all(&[*byte]).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        assert!(rest(&mut server) == sent);
        server.set_nodelay(true).unwrap();
        for byte in &sent {
            server.write_all(&[*byte]).unwrap();
            let mut got = [0];
            client.read_exact(&mut got).unwrap();
            assert_eq!(got[0], *byte, "one at a time");
        }
    }
}

#[test]
fn resets_and_refusals_are_resets_at_the_other_end() {
    for carrier in CARRIERS {
        let world = World::new("delay=5ms", carrier);
        let ip = world.addresses()[0];
        let ends_by_reset = |mut stream: TcpStream, what: &str| {
            let error = stream.read(&mut [0; 10]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}");
        };
        let reset = |stream: TcpStream| {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
        };
        ends_by_reset(world.connect(ip), "nobody listens");
        let outside = "10.3.0.1".parse().unwrap();
        ends_by_reset(world.connect(outside), "a server that is not allowed");
        let listener = world.listen(ip);
        let (client, server) = world.pair(&listener);
        reset(server);
        ends_by_reset(client, "the server resets");
        let (client, server) = world.pair(&listener);
        reset(client);
        ends_by_reset(server, "the client resets");
    }
}

#[test]
fn a_reader_that_has_stopped_does_not_slow_the_others() {
    for carrier in CARRIERS {
        let world = World::new("rate=50M,delay=10ms", carrier);
        let listener = world.listen(world.addresses()[0]);
        let stopped: Vec<_> = (0..3)
            .map(|_| {
                let (client, server) = world.pair(&listener);
                client.set_nonblocking(true).unwrap();
                (client, server)
            })
            .collect();
        let data = random(1 << 20);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for (client, _) in &stopped {
                // As much as there is room for, for which nobody reads.
                let _ = (&*client).write(&data);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (mut client, mut server) = world.pair(&listener);
        let sent = random(3_000_000);
        let expected = sent.clone();
        let begun = Instant::now();
        let writer = thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            client
        });
        assert!(rest(&mut server) == expected);
        let took = begun.elapsed();
        // At 50 Mb/s it takes 0.5 s.
        assert!(took < Duration::from_millis(1_500), "{took:?} {carrier}");
        writer.join().unwrap();
        for (client, server) in stopped {
            drop(client);
            drop(server);
        }
    }
}

#[test]
fn a_link_that_breaks_resets_its_sessions_and_comes_back() {
    let world = World::new("delay=5ms", "--carrier tcp");
    let listener = world.listen(world.addresses()[0]);
    let (mut client, server) = world.pair(&listener);
    let far = &world.chain.hops()[1];
    far.run("ss", &["--kill", "state", "established", "sport", "=", ":7100"]).unwrap();
    let error = client.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    drop(server);
    let (mut client, mut server) = world.pair(&listener);
    client.write_all(b"again").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server), b"again");
    assert!(world.pair.near.log().contains("is gone"), "{}", world.pair.near.log());
}

#[test]
fn only_those_with_the_right_keys_have_a_tunnel() {
    let world = World::new("delay=1ms", "");
    let near = &world.chain.hops()[0];
    let connect = || TcpStream::connect("10.2.0.2:7100").unwrap();
    let mut stranger = near.netns().enter(connect).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stranger.write_all(&[0, 96]).unwrap();
    stranger.write_all(&[7; 96]).unwrap();
    assert_eq!(stranger.read(&mut [0; 10]).unwrap_or(0), 0, "it is closed without a word");
    let listener = world.listen(world.addresses()[0]);
    let (mut client, mut server) = world.pair(&listener);
    client.write_all(b"served").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server), b"served");
}
