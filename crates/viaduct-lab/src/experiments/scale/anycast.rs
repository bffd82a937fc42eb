//! Anycast: replicas at different distances announce the service's address by BGP (BIRD), and BFD
//! detects the failure of one of them.
//!
//! ```text
//!                                        ┌─ RTT 2 ms ── b1 serve, bird: metric 10
//!   a1 ═══ gwa ═══ the link ═══ gwb bird ┤
//!                                        └─ RTT 30 ms ─ b2 serve, bird: metric 100
//! ```

use std::path::PathBuf;

use super::served::{Served, key_replicas};
use crate::emulator::Emulator;
use crate::experiments::prelude::*;

/// Address that both replicas announce.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 2, 200, 1);
/// Name of the file of the replicas' root secrets.
const SECRETS: &str = "replicas.toml";
/// Link between the sites, the bottleneck.
const LINK: &str = "rate=200M,delay=10ms,queue=100ms";
/// Wires of the replicas.
const WIRES: [&str; 2] = ["delay=1ms", "delay=15ms"];
const METRICS: [u32; 2] = [10, 100];
/// Number of the router's autonomous system. The replicas' system has the next number.
const AS: u32 = 64_512;
/// Time limit for the routes.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(20);

/// Two replicas, and a router that prefers the nearer replica. Dropping the value stops all
/// programs.
pub(super) struct Anycast {
    pub(super) net: Dumbbell,
    wires: Vec<Emulator>,
    pub(super) served: Served,
    _programs: Vec<Process>,
}

impl Anycast {
    /// Builds the machines, starts all programs, and waits for the route to the nearer replica.
    pub(super) fn start(run: &Run) -> Result<Anycast> {
        let net = Dumbbell::over(link(LINK), 2, run.seed(), run.journal())?;
        let wires = (1..=2).zip(WIRES).map(|(n, wire)| net.emulate_wire_b(n, link(wire)));
        let wires = wires.collect::<Result<Vec<_>, _>>()?;
        let served = Served::new(SERVICE)?;
        key_replicas(&["--out"], &served.path(SECRETS))?;
        let mut world = Anycast { net, wires, served, _programs: Vec::new() };
        let mut programs = vec![world.router()?];
        for n in 0..2 {
            programs.extend(world.replica(n)?);
        }
        world._programs = programs;
        world.wait_for_route("b1")?;
        Ok(world)
    }

    /// Kills the nearer replica: cuts its wire, then kills all its programs.
    pub(super) fn kill_near(&self) -> Result<()> {
        let near = self.net.b1();
        // The wire is cut first, so that the replica's kernel cannot close the sessions.
        for direction in [Direction::AtoB, Direction::BtoA] {
            self.wires[0].set(direction, link("loss=100%"))?;
        }
        Ok(near.netns().kill_all()?)
    }

    fn replica(&self, n: usize) -> Result<[Process; 2]> {
        let host = &self.net.hosts_b()[n];
        host.ip(&[format!("addr add {SERVICE}/32 dev lo")])?;
        let serve = self.served.serve(host, &self.served.path(SECRETS), &[])?;
        let (own, router) = (host.v4(), Ipv4Addr::from_bits(host.v4().to_bits() - 1));
        let config = format!(
            "{}protocol direct {{ ipv4; interface \"lo\"; }}\n\
             protocol bgp uplink {{\n local {own} as {};\n neighbor {router} as {AS};\n bfd on;\n \
             ipv4 {{ import none; export filter {{\n  if net != {SERVICE}/32 then reject;\n  \
             bgp_med = {};\n  accept;\n }}; }};\n}}\n",
            head(own),
            AS + 1,
            METRICS[n]
        );
        Ok([serve, self.bird(host, &config)?])
    }

    fn router(&self) -> Result<Process> {
        let mut config = head(Ipv4Addr::new(192, 0, 2, 2));
        config += "protocol kernel { ipv4 { export all; }; }\n";
        for host in self.net.hosts_b() {
            let (name, replica) = (host.name(), host.v4());
            let own = Ipv4Addr::from_bits(replica.to_bits() - 1);
            // Both replicas are in one autonomous system, so BGP compares their metrics (MED).
            let head = format!("protocol bgp {name} {{\n local {own} as {AS};\n passive on;\n");
            let session = format!(" neighbor {replica} as {};\n bfd on;\n", AS + 1);
            let routes =
                format!(" ipv4 {{ import where net = {SERVICE}/32; export none; }};\n}}\n");
            config.extend([head, session, routes]);
        }
        self.bird(self.net.gateway_b(), &config)
    }

    fn bird(&self, node: &Node, config: &str) -> Result<Process> {
        let name = node.name();
        let path = self.served.scratch.write(&format!("{name}.bird"), config)?;
        let mut command = node.command("bird");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(["-f", "-c"]).arg(path);
        command.arg("-s").arg(self.control(name));
        command.arg("-P").arg(self.served.path(&format!("{name}.bird.pid")));
        let log = self.served.path(&format!("{name}.bird.log"));
        daemon::start(node, command, &log, || Ok(self.control(name).exists()))
    }

    fn control(&self, name: &str) -> PathBuf {
        self.served.path(&format!("{name}.ctl"))
    }

    /// Waits until the router's route to the service leads through this interface, and both
    /// replicas have announced the service.
    fn wait_for_route(&self, interface: &str) -> Result<()> {
        let (router, deadline) = (self.net.gateway_b(), Instant::now() + ROUTE_TIMEOUT);
        let control = self.control(router.name()).display().to_string();
        loop {
            let routes = router.run("ip", &["route", "show", &SERVICE.to_string()])?;
            let known = router.run("/usr/sbin/birdc", &["-s", &control, "show route"])?;
            if routes.contains(interface) && known.matches("unicast [").count() == WIRES.len() {
                return Ok(());
            }
            stop::check()?;
            if Instant::now() > deadline {
                bail!("no route to {SERVICE} by {interface}: {routes}; {known}");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Returns the common part of a config. A BFD session fails after three missing packets, which are
/// sent every 50 ms.
fn head(id: Ipv4Addr) -> String {
    format!(
        "log stderr all;\nrouter id {id};\nprotocol device {{ scan time 1; }}\n\
         protocol bfd {{ interface \"*\" {{ interval 50 ms; multiplier 3; }}; }}\n"
    )
}
