//! A client behind a router that translates addresses and enforces TCP's windows:
//!
//! ```text
//!   client eth0 ════════ west router east ════════ eth0 server
//!      10.1.0.2     10.1.0.1   10.2.0.1     10.2.0.2
//!       fd01::2     fd01::1    fd02::1      fd02::2
//!
//!   the router   drops and counts what conntrack calls INVALID, counts resets,
//!                forwards only established connections inwards, and masquerades east
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use viaduct_lab::topology::{Journal, Node};
use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_sys::netns::Netns;
use viaduct_sys::poll::{Waker, wait};
use viaduct_trickles::{
    ClientPort, ClientSettings, Flow, PortEvent, PortStats, ServerPort, ServerSettings,
};

pub(crate) const PORT: u16 = 8080;
pub(crate) const SERVERS: [&str; 2] = ["10.2.0.2", "fd02::2"];
/// Addresses of the router, as the server sees them.
pub(crate) const ROUTER: [&str; 2] = ["10.2.0.1", "fd02::1"];

const RULES: &str = "
    table inet fw {
        counter invalid {}
        counter resets {}
        counter marked {}
        chain seen {
            type filter hook prerouting priority mangle; policy accept;
            tcp flags rst counter name resets
            tcp option @253,16,16 0x5674 counter name marked
            ct state invalid counter name invalid drop
        }
        chain forward {
            type filter hook forward priority filter; policy drop;
            ct state established,related accept
            iifname west ct state new accept
        }
        chain leaving {
            type nat hook postrouting priority srcnat;
            oifname east masquerade
        }
    }";

pub(crate) struct World {
    pub(crate) client: Node,
    pub(crate) router: Node,
    pub(crate) server: Node,
    pub(crate) run_dir: PathBuf,
}

impl World {
    /// Builds the network. Returns `None`, after a message, if this process is not root.
    pub(crate) fn new(test: &str) -> Option<World> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: raw packets need root");
            return None;
        }
        let node = |name: &str| Node::new(name, &Journal::new()).unwrap();
        let [client, router, server] = ["client", "router", "server"].map(node);
        let pid = std::process::id();
        let run_dir = std::env::temp_dir().join(format!("viaduct-trickles-{test}-{pid}"));
        std::fs::create_dir_all(&run_dir).unwrap();
        let (to_client, to_server) = (client.netns().path(), server.netns().path());
        sh(
            &router,
            &format!(
                "ip link add west type veth peer name eth0 netns {to_client}
                 ip link add east type veth peer name eth0 netns {to_server}
                 ip addr add 10.1.0.1/24 dev west; ip addr add fd01::1/64 dev west nodad
                 ip addr add 10.2.0.1/24 dev east; ip addr add fd02::1/64 dev east nodad
                 ip link set west up; ip link set east up
                 echo 1 > /proc/sys/net/ipv4/ip_forward
                 echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
                 nft '{RULES}'
                 echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal
                 echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose
                 echo 2000 > /proc/sys/net/core/netdev_max_backlog || true"
            ),
        );
        for (node, n) in [(&client, 1), (&server, 2)] {
            sh(
                node,
                &format!(
                    "ip addr add 10.{n}.0.2/24 dev eth0; ip addr add fd0{n}::2/64 dev eth0 nodad
                     ip link set eth0 up; ethtool -K eth0 gro on
                     ip route add default via 10.{n}.0.1; ip route add default via fd0{n}::1"
                ),
            );
        }
        Some(World { client, router, server, run_dir })
    }

    /// Makes both hosts merge received packets whenever possible (GRO, with a flush timeout).
    /// Packets to them are sent singly, as on a wire.
    pub(crate) fn coalesce(&self) {
        sh(&self.router, "ethtool -K west tso off; ethtool -K east tso off");
        for node in [&self.client, &self.server] {
            let wait = "echo 200000 > /sys/class/net/eth0/gro_flush_timeout";
            // A newly mounted sysfs shows the devices of the namespace that it was mounted in.
            sh(node, &format!("unshare --mount sh -ec 'mount -t sysfs sysfs /sys; {wait}'"));
        }
    }

    /// Returns a counter of the router.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let text = sh(&self.router, &format!("nft list counter inet fw {name}"));
        let packets = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        packets.unwrap().parse().unwrap()
    }

    pub(crate) fn settings(&self) -> ServerSettings {
        ServerSettings {
            listen: vec![([0; 4], PORT).into(), ([0_u16; 8], PORT).into()],
            tcp: true,
            udp: true,
            mtu: 1500,
            untracked: true,
            gso: true,
            run_dir: self.run_dir.clone(),
            share: None,
        }
    }

    pub(crate) fn serve(&self) -> Echo {
        Echo::start(self.server.netns(), self.settings())
    }

    pub(crate) fn client(&self, ways: FormatChoice, instance: &str) -> Client {
        let settings = ClientSettings {
            formats: ways,
            mtu: 1500,
            untracked: true,
            instance: instance.to_owned(),
            run_dir: self.run_dir.clone(),
        };
        let port = self.client.netns().enter(|| ClientPort::open(&settings, 7)).unwrap().unwrap();
        Client { port: Some(port), netns: self.client.netns().clone(), flows: Vec::new() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.run_dir);
    }
}

pub(crate) fn sh(node: &Node, script: &str) -> String {
    node.run("sh", &["-ec", script]).unwrap()
}

/// A server. The first bytes of each request are the number of answers to send (8 bits), their
/// length (16 bits), and the request's number (32 bits). Each answer has the request's number, its
/// own index, and the source of the request, followed by zeros up to that length.
pub(crate) struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<PortStats>>,
}

impl Echo {
    pub(crate) fn start(netns: &Netns, settings: ServerSettings) -> Echo {
        let stop = Arc::new(AtomicBool::new(false));
        let (netns, stopped) = (netns.clone(), stop.clone());
        let (ready_sender, ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            netns.join().unwrap();
            let mut port = ServerPort::open(&settings).unwrap();
            ready_sender.send(()).unwrap();
            let waker = Waker::new().unwrap();
            while !stopped.load(Ordering::Relaxed) {
                let done = port.turn(|message, mut to, answers| {
                    for n in 0..message[0] {
                        let length = usize::from(u16::from_be_bytes([message[1], message[2]]));
                        let mut answer = message[3..7].to_vec();
                        answer.push(n);
                        answer.extend(to.client().to_string().as_bytes());
                        answer.push(b' ');
                        answer.resize(length.min(answers.room(&to)).max(answer.len()), 0);
                        answers.send(&answer, &mut to).unwrap();
                    }
                });
                if done.unwrap() == 0 {
                    let sockets: Vec<_> = port.sockets().collect();
                    let sockets: Vec<_> =
                        sockets.iter().map(|fd| fd as &dyn std::os::fd::AsFd).collect();
                    wait(&sockets, &waker, Duration::from_millis(20));
                }
            }
            port.stats()
        });
        ready.recv().unwrap();
        Echo { stop, thread: Some(thread) }
    }

    pub(crate) fn end(mut self) -> PortStats {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client that sends requests.
pub(crate) struct Client {
    port: Option<ClientPort>,
    netns: Netns,
    flows: Vec<Flow>,
}

/// An event at a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    Answer { number: u32, which: u8, seen_as: SocketAddr, length: usize },
    Plain,
    Refused,
}

impl Client {
    pub(crate) fn port(&mut self) -> &mut ClientPort {
        self.port.as_mut().unwrap()
    }

    pub(crate) fn connect(&mut self, ip: &str) -> Flow {
        let to = SocketAddr::new(ip.parse().unwrap(), PORT);
        let (netns, port) = (self.netns.clone(), self.port());
        let flow = netns.enter(|| port.connect(to)).unwrap().unwrap();
        self.flows.push(flow);
        flow
    }

    /// Sends request `number`, for this many answers of this many bytes.
    pub(crate) fn ask(&mut self, flow: Flow, number: u32, answers: u8, length: u16, expected: u32) {
        let mut message = vec![answers];
        message.extend(length.to_be_bytes());
        message.extend(number.to_be_bytes());
        message.resize(88, 1);
        self.port().send(flow, &message, expected).unwrap();
        self.port().flush([flow]);
    }

    /// Waits for events, for at most `timeout`. Returns as soon as there are any.
    pub(crate) fn listen(&mut self, timeout: Duration) -> Vec<ClientEvent> {
        let (mut events, waker) = (Vec::new(), Waker::new().unwrap());
        let until = Instant::now() + timeout;
        while events.is_empty() && Instant::now() < until {
            let (flows, port) = (self.flows.clone(), self.port());
            port.receive_tap(|_, heard| events.extend(event(heard))).unwrap();
            for &flow in &flows {
                port.receive_flow(flow, |_, heard| events.extend(event(heard))).unwrap();
            }
            if events.is_empty() {
                let udp = flows.iter().filter_map(|&flow| port.socket(flow));
                let sockets: Vec<_> = port.tap().into_iter().chain(udp).collect();
                let sockets: Vec<_> =
                    sockets.iter().map(|fd| fd as &dyn std::os::fd::AsFd).collect();
                wait(&sockets, &waker, Duration::from_millis(10));
            }
        }
        events
    }

    /// Sends requests until there is an answer. Returns it.
    pub(crate) fn ask_until_answered(&mut self, flow: Flow) -> ClientEvent {
        for number in 0..40 {
            self.ask(flow, number, 1, 100, 100);
            if let Some(event) = self.listen(Duration::from_millis(250)).pop() {
                return event;
            }
        }
        panic!("no answer: {:?}", self.port().stats());
    }

    /// Sends this many requests, with at most `outstanding` at a time, each for several answers.
    /// All answers must arrive.
    pub(crate) fn converse(
        &mut self,
        flow: Flow,
        requests: u32,
        outstanding: u32,
        (answers, length): (u8, u16),
        expected: u32,
    ) -> Vec<ClientEvent> {
        let (mut sent, mut heard) = (0, Vec::new());
        while heard.len() < requests as usize * usize::from(answers) {
            while sent < requests && sent < heard.len() as u32 / u32::from(answers) + outstanding {
                self.ask(flow, sent, answers, length, expected);
                sent += 1;
            }
            let events = self.listen(Duration::from_secs(2));
            assert!(!events.is_empty(), "{} of {sent}: {:?}", heard.len(), self.port().stats());
            heard.extend(events);
        }
        heard
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let port = self.port.take();
        // The port removes its rules, which are in the namespace.
        let _ = self.netns.enter(|| drop(port));
    }
}

/// Converts an event; `None` for a fallback to UDP and for a change of the MTU.
fn event(heard: PortEvent<'_>) -> Option<ClientEvent> {
    Some(match heard {
        PortEvent::FellBack { .. } | PortEvent::MtuDecreased => return None,
        PortEvent::PlainTcp => ClientEvent::Plain,
        PortEvent::Refused { .. } => ClientEvent::Refused,
        PortEvent::Message(message) => {
            let number = u32::from_be_bytes(message[..4].try_into().unwrap());
            let end = 5 + message[5..].iter().position(|byte| *byte == b' ').unwrap();
            let seen_as = std::str::from_utf8(&message[5..end]).unwrap().parse().unwrap();
            ClientEvent::Answer { number, which: message[4], seen_as, length: message.len() }
        }
    })
}

pub(crate) fn seen_from(event: &ClientEvent) -> IpAddr {
    match event {
        ClientEvent::Answer { seen_as, .. } => seen_as.ip(),
        other => panic!("{other:?}"),
    }
}

pub(crate) const TCP: FormatChoice = FormatChoice::Only(Format::Tcp);
pub(crate) const UDP: FormatChoice = FormatChoice::Only(Format::Udp);
