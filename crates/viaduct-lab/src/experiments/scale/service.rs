//! Service of several machines: replicas of `viaduct serve`, two boxes with `viaduct spray`, and
//! keepalived, which moves the service's address between them.
//!
//! ```text
//!                                       ┌─ s1 spray, keepalived: owns 10.2.200.80
//!   a1 ═══ gwa ═══ the link ═══ gwb ────┼─ s2 spray, keepalived: takes it over
//!     clients                           └─ b1, b2, b3 serve --replicas, answer directly
//! ```

use std::net::SocketAddrV4;
use std::path::PathBuf;

use super::served::{PORT, Served, key_replicas};
use crate::experiments::prelude::*;
use crate::sprays::{Spray, named};
use crate::topology::Rack;

/// Number of boxes in front.
const FRONTS: u8 = 2;
/// Number of replicas.
const REPLICAS: u8 = 3;
/// Interval of keepalived's advertisements in seconds; after three of them are missing, the other
/// box takes over.
const ADVERTISEMENT: &str = "0.1";
/// Time limit for keepalived to put the address on a box.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// The service and its clients' site. Dropping the value stops all programs.
pub(super) struct Service {
    pub(super) net: Dumbbell,
    pub(super) rack: Rack,
    /// Spray of each box in front.
    pub(super) sprays: Vec<Spray>,
    pub(super) served: Served,
    programs: Vec<Process>,
}

impl Service {
    /// Builds the machines, with `link` between the sites, and starts all programs. The secrets of
    /// the replicas rotate every `period`.
    pub(super) fn start(link: LinkConfig, period: &str, run: &Run) -> Result<Service> {
        let net = Dumbbell::over(link, 1, run.seed(), run.journal())?;
        let rack = Rack::build(net.gateway_b(), FRONTS, REPLICAS, run.journal())?;
        let served = Served::new(rack.service())?;
        let mut service = Service { net, rack, sprays: Vec::new(), served, programs: Vec::new() };
        service.make_secrets(period)?;
        for (n, host) in service.rack.replicas().iter().enumerate() {
            let process = service.served.serve(host, &service.secrets(n), &["--balanced"])?;
            service.programs.push(process);
        }
        for n in 0..service.rack.fronts().len() {
            let (host, replicas) = (&service.rack.fronts()[n], named(service.rack.replicas()));
            let to = SocketAddrV4::new(service.rack.service(), PORT);
            service.sprays.push(Spray::start(host, "eth0", to, &replicas)?);
            let keepalived = service.keepalived(n)?;
            service.programs.push(keepalived);
        }
        service.wait_for_address()?;
        Ok(service)
    }

    /// Returns the path of the file of a replica's root secrets.
    pub(super) fn secrets(&self, replica: usize) -> PathBuf {
        self.served.path(&format!("b{}.toml", replica + 1))
    }

    /// Returns the log of a machine's program.
    pub(super) fn log(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(self.served.path(&format!("{name}.log")))?)
    }

    fn make_secrets(&self, period: &str) -> Result<()> {
        key_replicas(&["--period", period, "--out"], &self.secrets(0))?;
        (1..REPLICAS.into()).try_for_each(|n| self.copy_secrets(n))
    }

    /// Copies the first replica's root secrets to another one, as a management system does.
    pub(super) fn copy_secrets(&self, replica: usize) -> Result<()> {
        let name = format!("b{}.toml.new", replica + 1);
        let new = self.served.scratch.write_secret(&name, fs::read(self.secrets(0))?)?;
        Ok(fs::rename(new, self.secrets(replica))?)
    }

    /// Starts keepalived; the first box has the highest priority.
    fn keepalived(&self, front: usize) -> Result<Process> {
        let host = &self.rack.fronts()[front];
        let (name, priority) = (host.name(), 200 - 50 * front);
        let config = format!(
            "global_defs {{\n router_id {name}\n vrrp_version 3\n}}\n\
             vrrp_instance www {{\n state BACKUP\n interface eth0\n virtual_router_id 80\n \
             priority {priority}\n advert_int {ADVERTISEMENT}\n \
             virtual_ipaddress {{\n  {}/32 dev eth0\n }}\n}}\n",
            self.rack.service()
        );
        let path = self.served.scratch.write(&format!("{name}.keepalived"), config)?;
        let mut command = host.command("keepalived");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(["--dont-fork", "--log-console", "--vrrp", "--use-file"]).arg(path);
        for (option, file) in [("--pid", "pid"), ("--vrrp_pid", "vrrp.pid")] {
            command.arg(option).arg(self.served.path(&format!("{name}.{file}")));
        }
        let log = self.served.path(&format!("{name}.keepalived.log"));
        daemon::start(host, command, &log, || Ok(true))
    }

    /// Waits until the first box has the service's address.
    fn wait_for_address(&self) -> Result<()> {
        let deadline = Instant::now() + ADDRESS_TIMEOUT;
        let address = self.rack.service().to_string();
        let owner = &self.rack.fronts()[0];
        while !owner.run("ip", &["-4", "addr", "show", "dev", "eth0"])?.contains(&address) {
            stop::check()?;
            if Instant::now() > deadline {
                bail!("keepalived does not set {address}: {}", self.log("s1.keepalived")?);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
