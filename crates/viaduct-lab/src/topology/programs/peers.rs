//! Programs that carry TCP over a bad link by protocols of their own: hysteria 2, as sing-box has it,
//! and kcptun. Each has a client beside the host that connects and a server beside the one that is
//! connected to.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

use viaduct_sys::process::Process;

use super::{run, serve};
use crate::topology::cpu_time;
use crate::topology::{Host, Scratch, TopologyError};

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// hysteria 2 by sing-box, told the link's rate.
    Hysteria,
    /// kcptun as it comes, with windows for the link's rate and delay.
    Kcptun,
}

/// Port of the servers, of UDP.
const SERVER: u16 = 7_443;
/// Time that a server of UDP takes to begin, which nothing shows.
const BEGINS: Duration = Duration::from_millis(1_500);

/// A pair of client and server. Both end with this value.
#[derive(Debug)]
pub struct PeerTunnel {
    client: Process,
    server: Process,
    _scratch: Scratch,
}

impl Peer {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Hysteria => "hysteria 2 (sing-box)",
            Peer::Kcptun => "kcptun",
        }
    }

    fn programs(self) -> [&'static str; 2] {
        match self {
            Peer::Hysteria => ["sing-box", "sing-box"],
            Peer::Kcptun => ["kcptun-client", "kcptun-server"],
        }
    }

    /// Its programs, client and server; `None` if they are not installed (`scripts/need peers`).
    pub fn find(self) -> Option<[PathBuf; 2]> {
        let home = env::var_os("HOME").map(|home| Path::new(&home).join("go/bin"));
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<PathBuf> = env::split_paths(&path).chain(home).collect();
        let find = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|at| at.is_file());
        let [client, server] = self.programs();
        Some([find(client)?, find(server)?])
    }
}

impl PeerTunnel {
    /// Starts both: what connects to `port` of `near` reaches that port of `far`, over a link of so
    /// many megabits a second.
    ///
    /// # Errors
    /// A program is missing, or does not begin.
    pub fn start(
        peer: Peer,
        (near, far): (&Host, &Host),
        port: u16,
        megabits: u32,
    ) -> Result<PeerTunnel, TopologyError> {
        let missing = || near.io("find its programs".into(), std::io::ErrorKind::NotFound.into());
        let [client, server] = peer.find().ok_or_else(missing)?;
        let wrong = |e| far.io(format!("write the files of {}", peer.name()), e);
        let scratch = Scratch::new().map_err(wrong)?;
        let at = SocketAddr::new(far.v4().into(), SERVER);
        let (client, server) = match peer {
            Peer::Hysteria => {
                certificate(far, scratch.path())?;
                let files = [
                    ("server.json", hysteria_server(scratch.path())),
                    ("client.json", hysteria_client(far, port, megabits)),
                ];
                for (name, text) in files {
                    fs::write(scratch.path().join(name), text).map_err(wrong)?;
                }
                let of = |host: &Host, program: &Path, file: &str| {
                    let mut command = host.command(&program.to_string_lossy());
                    command.arg("run").arg("-c").arg(scratch.path().join(file));
                    command
                };
                (of(near, &client, "client.json"), of(far, &server, "server.json"))
            }
            Peer::Kcptun => {
                let common = ["--nocomp", "--quiet", "--sndwnd", "4096", "--rcvwnd", "4096"];
                let mut back = far.command(&server.to_string_lossy());
                let target = format!("{}:{port}", far.v4());
                back.args(["-t", &target, "-l", &format!(":{SERVER}")]).args(common);
                let mut front = near.command(&client.to_string_lossy());
                front.args(["-r", &at.to_string(), "-l", &format!(":{port}")]).args(common);
                (front, back)
            }
        };
        let server = far.spawn(quiet(server))?;
        thread::sleep(BEGINS);
        let client = serve(near, client, port)?;
        Ok(PeerTunnel { client, server, _scratch: scratch })
    }

    /// Processor time that both have used.
    pub fn cpu(&self) -> Duration {
        cpu_time(self.client.id()) + cpu_time(self.server.id())
    }
}

fn quiet(mut command: std::process::Command) -> std::process::Command {
    let null = std::process::Stdio::null;
    command.stdin(null()).stdout(null()).stderr(null());
    command
}

/// A certificate that the client does not look at.
fn certificate(host: &Host, dir: &Path) -> Result<(), TopologyError> {
    let mut command = host.command("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ]);
    command.args(["-subj", "/CN=lab", "-days", "2", "-keyout"]).arg(dir.join("key.pem"));
    command.arg("-out").arg(dir.join("cert.pem"));
    let said = run(host, command, Duration::from_secs(20))?;
    if said.success {
        return Ok(());
    }
    Err(super::answer(host, format!("openssl made no certificate: {}", said.stderr.trim())))
}

fn hysteria_server(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"{{ "log": {{ "disabled": true }},
  "inbounds": [{{ "type": "hysteria2", "listen": "::", "listen_port": {SERVER},
    "users": [{{ "password": "lab" }}],
    "tls": {{ "enabled": true, "server_name": "lab",
      "certificate_path": "{dir}/cert.pem", "key_path": "{dir}/key.pem" }} }}],
  "outbounds": [{{ "type": "direct" }}] }}"#
    )
}

fn hysteria_client(far: &Host, port: u16, megabits: u32) -> String {
    let far = far.v4();
    format!(
        r#"{{ "log": {{ "disabled": true }},
  "inbounds": [{{ "type": "direct", "listen": "::", "listen_port": {port}, "network": "tcp",
    "override_address": "{far}", "override_port": {port} }}],
  "outbounds": [{{ "type": "hysteria2", "server": "{far}", "server_port": {SERVER},
    "up_mbps": {megabits}, "down_mbps": {megabits}, "password": "lab",
    "tls": {{ "enabled": true, "insecure": true, "server_name": "lab" }} }}] }}"#
    )
}
