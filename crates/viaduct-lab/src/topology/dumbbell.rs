//! Two sites and a wide-area link between them.
//!
//! ```text
//!  10.1.0.0/16, fd00:1::/48                               10.2.0.0/16, fd00:2::/48
//!
//!  a1 eth0 ────── a1 ┐                                       ┌ b1 ────── eth0 b1
//!   10.1.1.2  10.1.1.1│                                       │10.2.1.1  10.2.1.2
//!                     │ gwa  wan0 ═══════════════ wan0  gwb │
//!  a2 eth0 ────── a2 │      192.0.2.1     192.0.2.2          │ b2 ────── eth0 b2
//!   10.1.2.2  10.1.2.1┘      2001:db8::1   2001:db8::2         └10.2.2.1  10.2.2.2
//!
//!  IPv6 in the same manner: host fd00:1:0:<n>::2, its gateway fd00:1:0:<n>::1
//! ```
//!
//! Each host has a wire (veth) and a network of its own, so a gateway routes and never bridges.
//! `wan0` is either a plain veth pair, where hosts coalesce received segments (GRO) as network
//! cards do, or a TUN device in each gateway with the link emulator between them. Duplicate
//! address detection is off, and TCP keeps no metrics between connections, so that runs do not
//! influence each other.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_proto::link::LinkConfig;

use super::node::KillOnDrop;
use super::site::{Side, Site, veth};
use super::{Host, Journal, Node, TopologyError};
use crate::emulator::{Emulator, EmulatorConfig};
use crate::stop;

/// Type of `wan0`.
#[derive(Clone, Debug, PartialEq)]
pub enum Wan {
    /// Veth pair: kernel speed, no loss, no delay.
    Veth,
    /// TUN device in each gateway, with this link between them.
    Emulated(Box<EmulatorConfig>),
}

impl Wan {
    /// Creates an emulated link, the same in both directions; see [`EmulatorConfig::symmetric`].
    pub fn emulated(link: LinkConfig, seed: u64) -> Wan {
        Wan::Emulated(Box::new(EmulatorConfig::symmetric(link, seed)))
    }
}

/// Description of a dumbbell.
#[derive(Clone, Debug)]
pub struct DumbbellSpec {
    /// Hosts on each side: 1 to 250.
    pub hosts: usize,
    /// MTU between hosts and gateways, in bytes: 576 to 65535. Below IPv6's minimum of 1280, as
    /// with the paper's 1200, the hosts have IPv4 only.
    pub host_mtu: u32,
    /// MTU of `wan0`, in bytes: 1280 to 65535.
    pub wan_mtu: u32,
    /// Type of `wan0`.
    pub wan: Wan,
    /// Time limit for a1 to reach b1 before building fails.
    pub timeout: Duration,
}

impl Default for DumbbellSpec {
    /// Returns one host per side, MTUs of 1500 bytes, and a veth pair between the gateways.
    fn default() -> Self {
        let timeout = Duration::from_secs(30);
        DumbbellSpec { hosts: 1, host_mtu: 1500, wan_mtu: 1500, wan: Wan::Veth, timeout }
    }
}

/// Two sites; see the module's drawing. Dropping it removes everything.
#[derive(Debug)]
pub struct Dumbbell {
    nodes: KillOnDrop,
    a: Site,
    b: Site,
    emulator: Option<Emulator>,
}

impl Dumbbell {
    /// Builds the world and waits until a1 and b1 reach each other. This sends a few packets over
    /// the link, which appear in the link's counters and records. Fails if the description is out
    /// of range, the kernel refuses a part, or a1 does not reach b1 in time; nothing is left in
    /// that case.
    pub fn build(spec: &DumbbellSpec, journal: &Journal) -> Result<Dumbbell, TopologyError> {
        spec.validate()?;
        let a = Site::new(Side::A, spec.hosts, spec.host_mtu, journal)?;
        let b = Site::new(Side::B, spec.hosts, spec.host_mtu, journal)?;
        let emulator = match &spec.wan {
            Wan::Veth => {
                let wire = veth(spec.wan_mtu, ("wan0", 10), ("wan0", 11), &b.gateway);
                a.gateway.ip(&[wire])?;
                a.coalesce()?;
                b.coalesce()?;
                None
            }
            Wan::Emulated(config) => {
                let ends = (a.open_tun(spec.wan_mtu)?, b.open_tun(spec.wan_mtu)?);
                if is_fast(config) {
                    // Otherwise all processing of a packet, including TCP's answer, runs in the
                    // emulator's thread, and halves the emulator's throughput. The calls fail
                    // without root.
                    let _ = a.gateway.spread_receive("wan0");
                    let _ = b.gateway.spread_receive("wan0");
                }
                Some(Emulator::start(ends.0, ends.1, (**config).clone())?)
            }
        };
        a.connect_wan()?;
        b.connect_wan()?;
        let hosts = a.hosts.iter().chain(&b.hosts).map(|host| &**host);
        let nodes = [&a.gateway, &b.gateway].into_iter().chain(hosts).cloned().collect();
        let dumbbell = Dumbbell { nodes: KillOnDrop(nodes), a, b, emulator };
        dumbbell.wait_until_connected(spec.timeout)?;
        Ok(dumbbell)
    }

    /// Builds sites of `hosts` hosts each, with the emulated `link` between them;
    /// see [`Dumbbell::build`].
    pub fn over(
        link: LinkConfig,
        hosts: usize,
        seed: u64,
        journal: &Journal,
    ) -> Result<Dumbbell, TopologyError> {
        let wan = Wan::emulated(link, seed);
        Dumbbell::build(&DumbbellSpec { hosts, wan, ..DumbbellSpec::default() }, journal)
    }

    /// Returns the gateway of side A.
    pub fn gateway_a(&self) -> &Node {
        &self.a.gateway
    }

    /// Returns the gateway of side B.
    pub fn gateway_b(&self) -> &Node {
        &self.b.gateway
    }

    /// Returns the hosts of side A: a1, a2, …
    pub fn hosts_a(&self) -> &[Host] {
        &self.a.hosts
    }

    /// Returns the hosts of side B: b1, b2, …
    pub fn hosts_b(&self) -> &[Host] {
        &self.b.hosts
    }

    /// Returns the first host of side A.
    pub fn a1(&self) -> &Host {
        &self.a.hosts[0]
    }

    /// Returns the first host of side B.
    pub fn b1(&self) -> &Host {
        &self.b.hosts[0]
    }

    /// Returns the hosts of both sides.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.a.hosts.iter().chain(&self.b.hosts)
    }

    /// Returns every machine: the gateways, then the hosts.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes.0
    }

    /// Sets the default congestion control of every host; see [`Host::set_congestion_control`].
    pub fn set_congestion_control(&self, name: &str) -> Result<(), TopologyError> {
        self.hosts().try_for_each(|host| host.set_congestion_control(name))
    }

    /// Returns the link between the gateways, to change it and to read its counters and drops;
    /// `None` if `wan0` is a veth pair.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.emulator.as_ref()
    }

    /// Adds a second WAN until the emulator is dropped: an interface `wan1` in each gateway, with
    /// this link between them. No route uses this link.
    ///
    /// # Errors
    /// If the kernel refuses the devices.
    pub fn add_wan(&self, link: LinkConfig, seed: u64) -> Result<Emulator, TopologyError> {
        let ends = (self.a.open_second_tun()?, self.b.open_second_tun()?);
        let emulator = Emulator::start(ends.0, ends.1, EmulatorConfig::symmetric(link, seed))?;
        self.a.connect_second_wan()?;
        self.b.connect_second_wan()?;
        Ok(emulator)
    }

    /// Replaces the wire of side B's host `n` with an emulated link, until the emulator is dropped.
    ///
    /// # Errors
    /// If the kernel refuses the devices.
    ///
    /// # Panics
    /// If there is no such host; hosts count from 1.
    pub fn emulate_wire_b(&self, n: u8, link: LinkConfig) -> Result<Emulator, TopologyError> {
        self.b.emulate_wire(n, EmulatorConfig::symmetric(link, n.into()))
    }

    /// Waits until a1 reaches b1 at each of b1's addresses. Fails if this takes longer than
    /// `limit`, or a stop was requested.
    pub fn wait_until_connected(&self, limit: Duration) -> Result<(), TopologyError> {
        let (from, to) = (self.a1(), self.b1());
        to.addresses().try_for_each(|ip| {
            from.netns()
                .enter(|| wait_until_reached(from, SocketAddr::new(ip, PROBE_PORT), limit))?
        })
    }
}

/// Port without a listener: a reset from this port proves that both directions work.
const PROBE_PORT: u16 = 9;

fn wait_until_reached(from: &Host, to: SocketAddr, limit: Duration) -> Result<(), TopologyError> {
    let deadline = Instant::now() + limit;
    // TCP retransmits a lost SYN only after a second; retry sooner, with a growing time limit.
    let mut timeout = Duration::from_millis(20);
    loop {
        stop::check()?;
        match TcpStream::connect_timeout(&to, timeout) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
            Err(_) if Instant::now() < deadline => {
                // Avoids a busy loop on immediate errors, such as a missing route.
                thread::sleep(Duration::from_millis(5));
                timeout = (timeout * 2).min(Duration::from_secs(2));
            }
            Err(_) => {
                let what = format!("reaching {} (does the link let packets through?)", to.ip());
                let node = from.name().into();
                return Err(TopologyError::TimedOut { node, what, after: limit });
            }
        }
    }
}

impl DumbbellSpec {
    fn validate(&self) -> Result<(), TopologyError> {
        let check = |what, value: u64, least: u64, most: u64, range| {
            let fits = (least..=most).contains(&value);
            if fits { Ok(()) } else { Err(TopologyError::Spec { what, value, range }) }
        };
        check("hosts", self.hosts as u64, 1, 250, "1 to 250 on each side")?;
        check("host_mtu", self.host_mtu.into(), 576, 65535, "576 to 65535 bytes")?;
        check("wan_mtu", self.wan_mtu.into(), 1280, 65535, "1280 to 65535 bytes")
    }
}

/// True if the link is so fast that waking another core (0.1 ms) costs less than processing
/// everything on the same core.
pub(super) fn is_fast(config: &EmulatorConfig) -> bool {
    let limits = [config.a_to_b.rate, config.b_to_a.rate];
    limits.into_iter().flatten().any(|rate| rate >= 300_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::Direction;

    fn build(spec: &DumbbellSpec) -> Dumbbell {
        Dumbbell::build(spec, &Journal::new()).unwrap()
    }

    #[test]
    fn every_host_reaches_every_host_of_the_other_side_by_both_families() {
        let world = build(&DumbbellSpec { hosts: 3, ..DumbbellSpec::default() });
        let pairs =
            world.hosts_a().iter().flat_map(|a| world.hosts_b().iter().map(move |b| (a, b)));
        for (a, b) in pairs {
            for ip in b.addresses() {
                let to = SocketAddr::new(ip, PROBE_PORT);
                let reach = || wait_until_reached(a, to, Duration::from_secs(2));
                a.netns().enter(reach).unwrap().unwrap();
            }
        }
        assert_eq!(world.nodes().len(), 2 + 6);
    }

    #[test]
    fn mtus_are_as_described_and_1200_leaves_the_hosts_without_ipv6() {
        let world = build(&DumbbellSpec { host_mtu: 1200, ..DumbbellSpec::default() });
        assert_eq!(world.b1().v6(), None);
        let mtu = |node: &Node, dev| {
            let shown = node.run("ip", &["-o", "link", "show", dev]).unwrap();
            let mut words = shown.split(' ').skip_while(|word| *word != "mtu").skip(1);
            words.next().unwrap().parse::<u32>().unwrap()
        };
        assert_eq!(mtu(world.a1(), "eth0"), 1200);
        assert_eq!(mtu(world.gateway_a(), "a1"), 1200);
        assert_eq!(mtu(world.gateway_b(), "wan0"), 1500);
        let jumbo = DumbbellSpec { host_mtu: 9000, wan_mtu: 9000, ..DumbbellSpec::default() };
        assert_eq!(mtu(build(&jumbo).gateway_a(), "wan0"), 9000);
    }

    #[test]
    fn an_emulated_wan_delays_and_can_be_changed_while_it_runs() {
        use crate::topology::programs::Ping;
        let link = |text: &str| text.parse().unwrap();
        let wan = Wan::emulated(link("delay=20ms"), 1);
        let world = build(&DumbbellSpec { wan, ..DumbbellSpec::default() });
        let ping = Ping { count: 3, interval: Duration::from_millis(10), size: 100 };
        for ip in world.b1().addresses() {
            let report = ping.run(world.a1(), ip).unwrap();
            assert_eq!(report.round_trips_ms.len(), 3);
            assert!(report.round_trips_ms.iter().all(|(_, ms)| *ms >= 40.0), "{report:?}");
        }
        let emulator = world.emulator().unwrap();
        emulator.set(Direction::AtoB, link("loss=100%")).unwrap();
        let report = Ping { count: 1, ..ping }.run(world.a1(), world.b1().v4().into()).unwrap();
        assert_eq!(report.round_trips_ms.len(), 0);
    }

    #[test]
    fn tcp_keeps_no_metrics_between_connections() {
        let world = build(&DumbbellSpec::default());
        assert_eq!(world.a1().netns().sysctl("net/ipv4/tcp_no_metrics_save").unwrap(), "1");
    }

    #[test]
    fn invalid_specs_are_rejected_by_name() {
        let refuse =
            |spec: DumbbellSpec| Dumbbell::build(&spec, &Journal::new()).unwrap_err().to_string();
        let none = refuse(DumbbellSpec { hosts: 0, ..DumbbellSpec::default() });
        assert_eq!(none, "hosts is 0, but must be 1 to 250 on each side");
        let tiny = refuse(DumbbellSpec { wan_mtu: 100, ..DumbbellSpec::default() });
        assert!(tiny.starts_with("wan_mtu is 100"), "{tiny}");
    }
}
