//! SYNs held by the kernel until a verdict: at a local listener, and on the forwarding path.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::Host;
use viaduct_sys::nft::intercept::{Intercept, Selector};
use viaduct_sys::nft::nfqueue::{NfQueue, SNAP, Verdict};
use viaduct_sys::nft::syn_hold::{REFUSED, SynHold, SynPath, UNREACHABLE};
use viaduct_sys::nft::table::Table as _;
use viaduct_sys::poll::{Waker, wait};
use viaduct_sys::socket::tcp::{self, TcpOptions};

const PORT: u16 = 7000;
const QUEUE: u16 = 7000;
/// Time limit of a connect, and of the arrival of its SYN.
const LIMIT: Duration = Duration::from_secs(10);
/// Rules of a host that sends each SYN only once.
const NO_RETRANSMISSIONS: &str = "nft 'table ip once {
    set sent { type inet_service; size 99; flags dynamic; }
    chain out {
        type filter hook output priority 0;
        tcp flags syn tcp sport @sent drop
        tcp flags syn add @sent { tcp sport }
    }
}'";

/// A host, a machine (`left`) that holds the host's SYNs, and a machine behind `left`; the queue
/// and the listener.
struct World {
    host: Host,
    left: Host,
    _right: Host,
    queue: Option<NfQueue>,
    listener: TcpListener,
}

impl World {
    fn new(whose: SynPath) -> World {
        let (left, right) = common::pair();
        let host = common::host_behind(&left, &right);
        let prefix = |text: &str| (text.parse().unwrap(), 0);
        let destinations = vec![prefix("0.0.0.0"), prefix("::")];
        let (ports, instance) = (vec![PORT], "test".to_owned());
        let ways = vec![Selector { from: Vec::new(), to: destinations }];
        let hold = SynHold { instance, queue: QUEUE, whose, ways: ways.clone(), ports };
        let (queue, listener) = left.run(move || {
            let options = TcpOptions { transparent: true, ..TcpOptions::default() };
            let listener = tcp::listen("[::]:7000".parse().unwrap(), 10, options).unwrap();
            if whose == SynPath::Forwarded {
                let (instance, ports) = ("way".to_owned(), Vec::new());
                Intercept { instance, to_port: PORT, ways, ports, passed_by: false }
                    .apply()
                    .unwrap();
            }
            hold.apply().unwrap();
            (Some(NfQueue::open(QUEUE, 4).unwrap()), listener)
        });
        World { host, left, _right: right, queue, listener }
    }

    fn connect(&self, ip: IpAddr) -> thread::JoinHandle<std::io::Result<TcpStream>> {
        let to = SocketAddr::new(ip, PORT);
        let (tell, told) = std::sync::mpsc::channel();
        self.host.run(move || {
            // A thread inherits its creator's namespace.
            let work = move || TcpStream::connect_timeout(&to, LIMIT);
            tell.send(thread::spawn(work)).unwrap();
        });
        told.recv().unwrap()
    }

    /// Waits for the next SYN, which stays held. Returns its packet ID and the SYN.
    fn held(&self) -> (u32, Vec<u8>) {
        let (queue, mut buffer) = (self.queue.as_ref().unwrap(), [0; SNAP]);
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(held) = queue.recv(&mut buffer).unwrap() {
                return (held.id, held.packet.to_vec());
            }
            assert!(Instant::now() < deadline, "no SYN was held");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Gives `verdict` on the next SYN.
    fn give_verdict(&self, verdict: Verdict) -> Vec<u8> {
        let (id, syn) = self.held();
        self.queue.as_ref().unwrap().verdict(id, verdict).unwrap();
        syn
    }

    /// Connects to `ip`, gives `verdict` on the SYN, and returns the outcome.
    fn outcome(&self, ip: IpAddr, verdict: Verdict) -> Result<SocketAddr, ErrorKind> {
        let connection = self.connect(ip);
        let syn = self.give_verdict(verdict);
        assert_eq!(usize::from(syn[0] >> 4), if ip.is_ipv4() { 4 } else { 6 });
        connection.join().unwrap().map(|c| c.peer_addr().unwrap()).map_err(|e| e.kind())
    }

    fn check(&mut self, ips: [&str; 2]) {
        for ip in ips.map(|ip| ip.parse::<IpAddr>().unwrap()) {
            let to = SocketAddr::new(ip, PORT);
            assert_eq!(self.outcome(ip, Verdict::Mark(REFUSED)), Err(ErrorKind::ConnectionRefused));
            let unreachable = self.outcome(ip, Verdict::Mark(UNREACHABLE));
            assert_eq!(unreachable, Err(ErrorKind::HostUnreachable), "{ip}");
            // Held until the verdict.
            let connection = self.connect(ip);
            let (id, _) = self.held();
            thread::sleep(Duration::from_millis(300));
            assert!(!connection.is_finished(), "{ip}: not held");
            self.queue.as_ref().unwrap().verdict(id, Verdict::Pass).unwrap();
            assert_eq!(connection.join().unwrap().unwrap().peer_addr().unwrap(), to);
            assert!(self.listener.accept().is_ok());
            // A reset of the queue drops held SYNs.
            let connection = self.connect(ip);
            let queue = self.queue.as_ref().unwrap();
            wait(&[queue], &Waker::new().unwrap(), LIMIT);
            queue.reset().unwrap();
            assert!(queue.recv(&mut [0; SNAP]).unwrap().is_none());
            self.give_verdict(Verdict::Pass); // retransmitted after a second
            connection.join().unwrap().unwrap();
        }
        self.queue = None;
        for ip in ips.map(|ip| ip.parse().unwrap()) {
            self.connect(ip).join().unwrap().expect("a queue without a reader passes all packets");
        }
    }
}

#[test]
fn syns_to_a_local_listener_wait_for_their_verdict() {
    if common::is_root() {
        World::new(SynPath::Local).check(["10.8.0.1", "fd08::1"]);
    }
}

#[test]
fn forwarded_syns_wait_for_their_verdict() {
    if common::is_root() {
        World::new(SynPath::Forwarded).check(["10.9.0.2", "fd09::2"]);
    }
}

#[test]
fn a_full_queue_lets_syns_pass() {
    if !common::is_root() {
        return;
    }
    let world = World::new(SynPath::Local);
    // A retransmission would take a place in the queue, or pass the full queue.
    world.host.sh(NO_RETRANSMISSIONS);
    let ip = "10.8.0.1".parse().unwrap();
    let held: Vec<_> = (0..4).map(|_| world.connect(ip)).collect();
    for _ in 0..4 {
        world.held();
    }
    world.connect(ip).join().unwrap().expect("the fifth SYN passes");
    assert!(held.iter().all(|connection| !connection.is_finished()));
    world.left.sh("nft delete table inet viaduct_test");
}
