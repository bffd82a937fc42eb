//! Configs of the members from etcd, which is stopped for a while and restarted without data.

use std::cell::Cell;

use super::Lab;
use crate::experiments::prelude::*;
use crate::racks::LETTERS;

const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEERS: &str = "http://127.0.0.1:2380";
/// Time without changes after which the configs list all members.
const SETTLED: Duration = Duration::from_secs(3);
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Processes of `viaduct fleet` for all members, and etcd. All run in the namespace of a router, on
/// its loopback interface.
pub(super) struct Fleets {
    etcd: Option<Process>,
    processes: Vec<Process>,
    scratch: Scratch,
    node: Node,
    /// Number of starts of etcd; each start begins without data.
    starts: usize,
}

impl Fleets {
    /// Starts etcd, and the processes, which then replace the configs of all members.
    pub(super) fn start(lab: &Lab) -> Result<Fleets> {
        let (scratch, node) = (Scratch::new()?, lab.world.sites[0].inner.clone());
        let mut fleets = Fleets { etcd: None, processes: Vec::new(), scratch, node, starts: 0 };
        fleets.start_etcd()?;
        for (site, members) in lab.gateways.sites.iter().enumerate() {
            for (n, gateway) in members.iter().enumerate() {
                fleets.start_process((site, n), &lab.gateways.base(site, n), gateway.config())?;
            }
        }
        let is_written = |text: &String| text.starts_with("# Written by viaduct fleet");
        // Each process rewrites its config when another member has registered.
        let settled = Cell::new((Vec::new(), None));
        wait(|| {
            let (before, since) = settled.take();
            let now = configs(lab).unwrap_or_default();
            let is_same = now == before && now.iter().all(is_written);
            let since = since.filter(|_| is_same).unwrap_or_else(Instant::now);
            settled.set((now, Some(since)));
            since.elapsed() > SETTLED
        })?;
        Ok(fleets)
    }

    /// Starts etcd without data.
    pub(super) fn start_etcd(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = self.node.command("etcd");
        let data = self.scratch.path().join(format!("etcd-{}", self.starts));
        command.arg("--data-dir").arg(data).args(["--listen-client-urls", ETCD]);
        command.args(["--advertise-client-urls", ETCD, "--listen-peer-urls", ETCD_PEERS]);
        command.args(["--initial-advertise-peer-urls", ETCD_PEERS, "--unsafe-no-fsync"]);
        command.args(["--initial-cluster", &format!("default={ETCD_PEERS}")]);
        let log = self.scratch.path().join(format!("etcd-{}.log", self.starts));
        let url = format!("{ETCD}/health");
        let is_up = || Ok(self.node.run("curl", &["-sf", "--noproxy", "*", &url]).is_ok());
        self.etcd = Some(daemon::start(&self.node, command, &log, is_up)?);
        Ok(())
    }

    /// Kills etcd.
    pub(super) fn stop_etcd(&mut self) {
        self.etcd = None;
    }

    fn start_process(&mut self, of: (usize, usize), base: &str, out: &Path) -> Result<()> {
        let (site, n) = of;
        let name = format!("{}{}", LETTERS[site], n + 1);
        let base = self.scratch.write(&format!("{name}.base.toml"), base)?;
        let mut command = self.node.command(&binary()?.to_string_lossy());
        command.arg("fleet").arg("--base").arg(base).arg("--out").arg(out);
        command.args(["--etcd", "etcd://127.0.0.1:2379/viaduct", "--member", &name]);
        command.args(["--endpoint", &format!("10.11{}.{}.2:7400", site + 1, n + 1)]);
        let log = self.scratch.path().join(format!("{name}.log"));
        let is_up = || Ok(fs::read_to_string(&log)?.contains("following"));
        self.processes.push(daemon::start(&self.node, command, &log, is_up)?);
        Ok(())
    }
}

/// Returns the configs of all members.
pub(super) fn configs(lab: &Lab) -> Result<Vec<String>> {
    let all = lab.gateways.sites.iter().flatten();
    all.map(|gateway| Ok(fs::read_to_string(gateway.config())?)).collect()
}

fn wait(is_so: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !is_so() {
        stop::check()?;
        ensure!(Instant::now() < deadline, "the configs are not written from etcd");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
