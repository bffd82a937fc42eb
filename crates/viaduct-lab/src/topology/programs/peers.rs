//! Programs that carry TCP over a lossy link in their own protocols: hysteria 2, in sing-box, and
//! kcptun. Each has a client on the connecting host and a server on the target host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

use viaduct_sys::process::Process;

use super::{run, serve};
use crate::topology::cpu_time;
use crate::topology::{Host, Scratch, TopologyError};

/// Tunnel program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// hysteria 2 in sing-box, configured with the link's rate.
    Hysteria,
    /// kcptun with default settings, except for windows that fit the link's rate and delay.
    Kcptun,
}

const SERVER: u16 = 7_443;
/// Start-up time allowed for a UDP server, which has no observable ready state.
const BEGINS: Duration = Duration::from_millis(1_500);

/// Running client and server; both are stopped when dropped.
#[derive(Debug)]
pub struct PeerTunnel {
    client: Process,
    server: Process,
    _scratch: Scratch,
}

impl Peer {
    /// Returns the display name.
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

    /// Finds the client and server programs; `None` if not installed (`scripts/need peers`).
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
    /// Starts both programs: connections to `port` of `near` reach that port of `far`, over a link
    /// of `megabits` Mb/s. Fails if a program is missing or does not start.
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

    /// Returns the processor time used by client and server.
    pub fn cpu(&self) -> Duration {
        cpu_time(self.client.id()) + cpu_time(self.server.id())
    }
}

fn quiet(mut command: std::process::Command) -> std::process::Command {
    let null = std::process::Stdio::null;
    command.stdin(null()).stdout(null()).stderr(null());
    command
}

/// Creates a certificate, which the client does not verify.
fn certificate(host: &Host, dir: &Path) -> Result<(), TopologyError> {
    let mut command = host.command("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    command.arg("-nodes");
    command.args(["-subj", "/CN=lab", "-days", "2", "-keyout"]).arg(dir.join("key.pem"));
    command.arg("-out").arg(dir.join("cert.pem"));
    let said = run(host, command, Duration::from_secs(20))?;
    if said.success {
        return Ok(());
    }
    Err(super::answer(host, format!("openssl created no certificate: {}", said.stderr.trim())))
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
