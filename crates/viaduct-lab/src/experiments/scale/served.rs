//! Files that all replicas of `viaduct serve` serve, and downloads from the replicas.

use std::path::PathBuf;
use std::process::Command;

use crate::experiments::prelude::*;
use crate::load::{Downloaded, Downloads, Trickles};
use crate::topology::programs::is_listening;

/// Port of the service.
pub(super) const PORT: u16 = 80;

/// Downloads that have ended.
pub(super) struct Transfer {
    pub(super) done: Vec<Downloaded>,
    /// Points: seconds since the beginning, and the total bytes of all downloads until then.
    pub(super) trace: Vec<(f64, u64)>,
}

/// Site that all replicas serve at one address, in a directory with their secrets and logs.
pub(super) struct Served {
    address: SocketAddr,
    pub(super) scratch: Scratch,
}

impl Served {
    /// Creates an empty site.
    pub(super) fn new(address: Ipv4Addr) -> Result<Served> {
        let scratch = Scratch::new()?;
        fs::create_dir(scratch.path().join("site"))?;
        Ok(Served { address: SocketAddr::new(address.into(), PORT), scratch })
    }

    /// Returns the path of a file in the directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Creates a file of random bytes in the site; returns the bytes.
    pub(super) fn file(&self, name: &str, bytes: usize, seed: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; bytes];
        Rng::from_seed(seed).fill(&mut content);
        self.scratch.write(&format!("site/{name}"), &content)?;
        Ok(content)
    }

    /// Starts a replica with these root secrets in `host`.
    pub(super) fn serve(&self, host: &Host, secrets: &Path, options: &[&str]) -> Result<Process> {
        let mut command = host.command(&binary()?.display().to_string());
        command.arg("serve").arg(self.path("site")).args(options);
        command.args(["--listen", &format!("[::]:{PORT}"), "--replicas"]).arg(secrets);
        command.arg("--run-dir").arg(self.path(&format!("run-{}", host.name())));
        let log = self.path(&format!("{}.log", host.name()));
        daemon::start(host, command, &log, || Ok(is_listening(host, PORT)?))
    }

    /// Runs downloads from the clients' site of `net`, and `events` concurrently in another thread.
    pub(super) fn download<R: Send>(
        &self,
        net: &Dumbbell,
        downloads: &Downloads<'_>,
        seed: u64,
        events: impl FnOnce(Instant) -> Result<R> + Send,
    ) -> Result<(Transfer, R)> {
        let mut clients = Trickles::open(net, self.address, seed)?;
        let begun = Instant::now();
        let mut trace = vec![(0.0, 0)];
        let (done, said) = thread::scope(|scope| -> Result<_> {
            let events = scope.spawn(move || events(begun));
            let done = downloads.run(&mut clients, |at, bytes| {
                if trace.last().is_some_and(|(before, _)| at - before >= 0.05) {
                    trace.push((at, bytes));
                }
            })?;
            Ok((done, join(events)?))
        })?;
        Ok((Transfer { done, trace }, said))
    }
}

/// Runs `viaduct key replicas` with these options; `file` is the value of the last option.
pub(super) fn key_replicas(options: &[&str], file: &Path) -> Result<()> {
    let mut key = Command::new(binary()?);
    let made = key.args(["key", "replicas"]).args(options).arg(file).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}
