//! A TCP option and data in SYNs on the wire, and steering of programs.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use common::{host_behind, in_namespace, is_root, pair, sh};
use viaduct_sys::bpf::{Steer, Steering, SynOption, Template};
use viaduct_sys::capture::filter::SynFilter;
use viaduct_sys::capture::syn::{SNAP, SynTap};
use viaduct_sys::socket::tcp::{self, SynContent, TcpOptions};

const OPTION: [u8; 16] = *b"\xfd\x10Vhsrc.dst.SPDP";
/// Offsets of the addresses in the option.
const TEMPLATE: Template = Template {
    bytes: *b"\xfd\x10Vh\0\0\0\0\0\0\0\0\0\0\0\0",
    source: 4,
    destination: 8,
    source_port: 12,
    destination_port: 14,
};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Opens a tap for SYNs to `ports`.
fn tap(ports: &[u16]) -> SynTap {
    SynTap::open(SynFilter { sources: &[], destinations: &[], ports, share: None }).unwrap()
}

/// Waits for the next SYN at a tap.
fn next_syn(tap: &SynTap) -> Vec<u8> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut packet = [0; SNAP];
    while Instant::now() < deadline {
        if let Some(packet) = tap.recv(&mut packet).unwrap() {
            return packet.to_vec();
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no SYN within five seconds");
}

fn has(packet: &[u8], option: &[u8]) -> bool {
    packet.windows(option.len()).any(|window| window == option)
}

/// Connects with the option, and waits until the connect succeeds or fails.
fn connect(program: &SynOption, to: SocketAddr) -> TcpStream {
    let options = TcpOptions::default();
    let content = SynContent::Option(program, &OPTION);
    let (stream, _) = tcp::connect_with(to, None, options, content).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn the_option_passes_a_router_and_a_server_that_does_not_know_it_ignores_it() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let host = host_behind(&left, &right);
    let (tap, listener) = right.run(|| {
        let tap = tap(&[80]);
        let options = TcpOptions { save_syn: true, ..TcpOptions::default() };
        (tap, tcp::listen(socket("10.9.0.2:80"), 8, options).unwrap())
    });
    listener.set_nonblocking(false).unwrap();
    let (mut with_option, mut plain) = host.run(|| {
        let program = SynOption::attach().unwrap();
        let with_option = connect(&program, socket("10.9.0.2:80"));
        (with_option, TcpStream::connect("10.9.0.2:80").unwrap())
    });
    let mut accepted = [0, 1].map(|_| listener.accept().unwrap().0);
    assert!(has(&next_syn(&tap), &OPTION), "the first SYN lacks the option");
    assert!(!has(&next_syn(&tap), &OPTION), "the other socket's SYN has the option");
    assert!(has(&tcp::saved_syn(&accepted[0]).unwrap(), &OPTION));
    assert!(tcp::saved_syn(&accepted[0]).unwrap().is_empty(), "the SYN is returned twice");
    assert!(!has(&tcp::saved_syn(&accepted[1]).unwrap(), &OPTION));
    for (client, server) in [&mut with_option, &mut plain].into_iter().zip(&mut accepted) {
        client.write_all(b"through").unwrap();
        let mut got = [0; 7];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"through");
    }
}

#[test]
fn retransmitted_syns_have_the_option_until_it_is_cleared() {
    if !is_root() {
        return;
    }
    in_namespace(|| {
        sh("nft 'add table inet t; add chain inet t in { type filter hook input priority 0; }; \
            add rule inet t in tcp dport 80 drop'");
        let tap = tap(&[80, 81]);
        let program = SynOption::attach().unwrap();
        let content = SynContent::Option(&program, &OPTION);
        let options = TcpOptions::default();
        let begin = |to| tcp::connect_with(socket(to), None, options, content).unwrap().0;
        let waits = begin("127.0.0.1:80");
        assert!(has(&next_syn(&tap), &OPTION));
        assert!(has(&next_syn(&tap), &OPTION), "not in the first retransmission");
        program.clear(waits.as_fd());
        assert!(!has(&next_syn(&tap), &OPTION), "still in the second retransmission");
        // If the connect is refused, the entry does no harm, and stays until the caller removes it.
        let refused = begin("127.0.0.1:81");
        assert!(has(&next_syn(&tap), &OPTION));
        drop(refused);
    });
}

#[test]
fn data_in_a_syn_is_on_the_wire_and_is_sent_again_if_the_server_does_not_acknowledge_it() {
    if !is_root() {
        return;
    }
    in_namespace(|| {
        for at in ["127.0.0.1:80", "[::1]:80"] {
            let tap = tap(&[80]);
            let listener = TcpListener::bind(at).unwrap();
            let content = SynContent::Data(b"before all else, ");
            let (stream, said) =
                tcp::connect_with(socket(at), None, TcpOptions::default(), content).unwrap();
            assert_eq!(said, 17);
            assert!(next_syn(&tap).ends_with(b"before all else, "));
            let (mut accepted, _) = listener.accept().unwrap();
            stream.set_nonblocking(false).unwrap();
            (&stream).write_all(b"and this").unwrap();
            drop(stream);
            let mut got = String::new();
            accepted.read_to_string(&mut got).unwrap();
            assert_eq!(got, "before all else, and this");
        }
        sh("echo 0 > /proc/sys/net/ipv4/tcp_fastopen");
        let listener = TcpListener::bind("127.0.0.1:82").unwrap();
        let content = SynContent::Data(b"later");
        let options = TcpOptions::default();
        let to = socket("127.0.0.1:82");
        let (_stream, said) = tcp::connect_with(to, None, options, content).unwrap();
        assert_eq!(said, 0, "data in the SYN although Fast Open is off");
        listener.accept().unwrap();
    });
}

fn steering(ports: &[u16]) -> Steering {
    Steering {
        hop: "127.0.0.1:7000".parse().unwrap(),
        destinations: vec![("192.0.2.0".parse::<IpAddr>().unwrap(), 24)],
        ports: ports.to_vec(),
        template: TEMPLATE,
    }
}

/// Builds the option that is expected in a program's SYN to 192.0.2.7.
fn meant(client: &TcpStream, port: u16) -> Vec<u8> {
    let from = client.local_addr().unwrap().port().to_be_bytes();
    let to = port.to_be_bytes();
    [&b"\xfd\x10Vh"[..], &[127, 0, 0, 1], &[192, 0, 2, 7], &from, &to].concat()
}

#[test]
fn programs_are_steered_and_see_the_intended_peer() {
    if !is_root() {
        return;
    }
    in_namespace(|| {
        sh("ip route add 192.0.2.0/24 dev lo");
        let tap = tap(&[7000]);
        let _hop = TcpListener::bind("127.0.0.1:7000").unwrap();
        let steer = Steer::attach(&steering(&[443, 80]), None).unwrap();
        for to in ["192.0.2.7:443", "[::ffff:192.0.2.7]:80"] {
            let client = TcpStream::connect(to).unwrap();
            let option = meant(&client, socket(to).port());
            assert!(has(&next_syn(&tap), &option), "{to}");
            assert_eq!(client.peer_addr().unwrap(), socket(to), "the program sees another peer");
        }
        let refused = |to| TcpStream::connect_timeout(&socket(to), Duration::from_millis(300));
        assert!(refused("192.0.2.7:81").is_err(), "a connect to another port was steered");
        TcpStream::connect("127.0.0.1:7000").unwrap();
        assert!(!has(&next_syn(&tap), b"\xfd\x10Vh"), "a connect to the hop itself has the option");
        drop(steer);
        assert!(refused("192.0.2.7:443").is_err(), "still steered after the drop");
    });
}

#[test]
fn other_network_namespaces_are_not_steered() {
    if !is_root() {
        return;
    }
    in_namespace(|| {
        let _steer = Steer::attach(&steering(&[]), None).unwrap();
        in_namespace(|| {
            sh("ip addr add 192.0.2.7/24 dev lo");
            let _there = TcpListener::bind("192.0.2.7:443").unwrap();
            TcpStream::connect("192.0.2.7:443").unwrap();
        });
    });
}

/// A cgroup for this test, if the machine has cgroup version 2.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Cgroup> {
        let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new).into_iter();
        let root = roots.find(|root| root.join("cgroup.procs").exists())?;
        let path = root.join(format!("viaduct-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok().map(|()| Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn only_programs_of_the_given_cgroup_are_steered() {
    let Some(cgroup) = Cgroup::new().filter(|_| is_root()) else {
        eprintln!("skipped: creating a cgroup needs root and cgroup version 2");
        return;
    };
    let path = cgroup.0.clone();
    in_namespace(move || {
        sh("ip addr add 192.0.2.7/32 dev lo");
        let wrong = Steer::attach(&steering(&[]), Some(Path::new("/tmp"))).unwrap_err();
        assert!(wrong.to_string().contains("cgroup version 2 is expected"), "{wrong}");
        let _steer = Steer::attach(&steering(&[]), Some(&path)).unwrap();
        let there = TcpListener::bind("192.0.2.7:443").unwrap();
        let hop = TcpListener::bind("127.0.0.1:7000").unwrap();
        TcpStream::connect("192.0.2.7:443").unwrap();
        there.accept().unwrap();
        let procs = path.join("cgroup.procs");
        let inside = "exec 3<>/dev/tcp/192.0.2.7/443";
        sh(&format!("exec bash -c 'echo $$ > {}; {inside}'", procs.display()));
        hop.accept().unwrap();
        there.set_nonblocking(true).unwrap();
        assert!(there.accept().is_err(), "the second connection was not steered");
    });
}
