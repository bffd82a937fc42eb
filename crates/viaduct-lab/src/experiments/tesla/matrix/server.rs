//! Server of a row while its client runs.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};

use crate::experiments::prelude::*;

/// Time limits of a server: to listen, and to exit on its own.
const TIMEOUTS: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(3)];

/// Server that listens on `port` until it is dropped.
pub(super) struct Server {
    process: Child,
    pub(super) port: u16,
    /// Port on which the server's clients may listen.
    pub(super) spare: u16,
    log: PathBuf,
}

impl Server {
    /// Starts the server; its output goes to a log in `dir`.
    pub(super) fn start(dir: &Path, way: &str, mut command: Command) -> Result<Server> {
        let [port, spare] = ports()?;
        let log = dir.join(format!("server-{way}.log"));
        let out = File::create(&log)?;
        command.env("PORT", port.to_string()).stdout(out.try_clone()?).stderr(out);
        let process = command.process_group(0).spawn()?;
        Ok(Server { process, port, spare, log })
    }

    /// Waits until the server listens, according to the kernel's socket tables. (A probe would
    /// count as a client.)
    pub(super) fn wait(&self) -> Result<()> {
        let at = format!("0100007F:{:04X} ", self.port);
        let listens = |line: &str| line.contains(&at) && line.split(' ').any(|word| word == "0A");
        let sockets = || ["tcp", "tcp6"].map(|of| fs::read_to_string(format!("/proc/net/{of}")));
        let is_up = || sockets().into_iter().flatten().any(|text| text.lines().any(listens));
        let in_time = stop::wait_until(TIMEOUTS[0], Duration::from_millis(10), is_up)?;
        ensure!(in_time, "the server does not listen: {}", self.said());
        Ok(())
    }

    /// Returns the server's output.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal to the server's process group.
    fn signal(&self, name: &str) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args([&format!("-{name}"), "--", &group]).output();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("TERM");
        let deadline = Instant::now() + TIMEOUTS[1];
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        self.signal("KILL");
        let _ = self.process.wait();
    }
}

/// Returns two free ports chosen by the kernel.
fn ports() -> Result<[u16; 2]> {
    let [a, b] = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    Ok([a.local_addr()?.port(), b.local_addr()?.port()])
}
