//! File servers behind an emulated link, and a client, each in a namespace of its own.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use viaduct_lab::emulator::EmulatorConfig;
use viaduct_lab::topology::{Dumbbell, DumbbellSpec, Journal, Wan};
use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State};
use viaduct_sys::poll::{Waker, wait};
use viaduct_sys::process::Process;
use viaduct_trickles::{ClientSettings, Connector, ConnectorEvent, Flow};

/// Address that both servers share.
pub(crate) const SHARED: Ipv4Addr = Ipv4Addr::new(10, 2, 200, 1);

pub(crate) struct World {
    pub(crate) net: Dumbbell,
    pub(crate) dir: PathBuf,
}

impl World {
    /// Builds the network. Returns `None`, after a message, if this process is not root.
    pub(crate) fn new(test: &str, link: &str) -> Option<World> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: raw packets need root");
            return None;
        }
        let wan = Wan::Emulated(Box::new(EmulatorConfig::symmetric(link.parse().unwrap(), 5)));
        let spec = DumbbellSpec { hosts: 2, wan, ..DumbbellSpec::default() };
        let net = Dumbbell::build(&spec, &Journal::new()).unwrap();
        let dir =
            std::env::temp_dir().join(format!("viaduct-served-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("site")).unwrap();
        let secret = |byte: &str| byte.repeat(32);
        fs::write(dir.join("key"), format!("1 {}\n", secret("a1"))).unwrap();
        Some(World { net, dir })
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.dir.join("site").join(name), bytes).unwrap();
    }

    /// Starts a server, and waits until it is up.
    pub(crate) fn serve(&self, trickles: &str) -> Process {
        self.serve_with(trickles, &[], || self.connect_plain().is_ok())
    }

    /// Starts a server with more arguments, and waits until `is_up` holds.
    pub(crate) fn serve_with(
        &self,
        trickles: &str,
        more: &[&str],
        is_up: impl Fn() -> bool,
    ) -> Process {
        self.serve_in(0, &[&["--trickles", trickles], more].concat(), is_up)
    }

    /// Starts a server on host b1 (0) or b2 (1) with these arguments.
    pub(crate) fn serve_in(
        &self,
        host: usize,
        words: &[&str],
        is_up: impl Fn() -> bool,
    ) -> Process {
        let command = self.net.hosts_b()[host].command(env!("CARGO_BIN_EXE_viaduct"));
        self.start(host, command, words, is_up)
    }

    /// Starts a server on b1 with this limit on descriptors.
    pub(crate) fn serve_with_few(&self, descriptors: u32) -> Process {
        let mut command = self.net.b1().command("sh");
        let limited = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_viaduct")]);
        self.start(0, command, &[], || self.connect_plain().is_ok())
    }

    fn start(
        &self,
        host: usize,
        mut command: Command,
        words: &[&str],
        is_up: impl Fn() -> bool,
    ) -> Process {
        command.arg("serve").arg(self.dir.join("site")).args(["--listen", "[::]:80"]);
        command.args(words);
        if !["off", "--replicas"].iter().any(|given| words.contains(given)) {
            command.arg("--key").arg(self.dir.join("key"));
        }
        command.arg("--run-dir").arg(self.run_dir(host)).stderr(Stdio::null());
        let server = Process::spawn(command).unwrap();
        let up = crate::common::within(Duration::from_secs(10), is_up);
        assert!(up, "the server does not come up");
        server
    }

    /// Connects by the kernel's TCP, from the client's namespace.
    pub(crate) fn connect_plain(&self) -> std::io::Result<std::net::TcpStream> {
        self.connect_plain_to(0)
    }

    /// Connects by the kernel's TCP to host b1 (0) or b2 (1).
    pub(crate) fn connect_plain_to(&self, host: usize) -> std::io::Result<std::net::TcpStream> {
        let to = (self.net.hosts_b()[host].v4(), 80);
        self.net.a1().netns().enter(|| std::net::TcpStream::connect(to)).unwrap()
    }

    fn run_dir(&self, host: usize) -> PathBuf {
        self.dir.join(["run", "run-2"][host])
    }

    /// Adds the shared address to both hosts of the server's side; no route leads to it yet.
    pub(crate) fn share_address(&self) {
        for host in self.net.hosts_b() {
            host.ip(&[format!("addr add {SHARED}/32 dev lo")]).unwrap();
        }
    }

    /// Routes the shared address to this host.
    pub(crate) fn lead_to(&self, host: usize) {
        let via = self.net.hosts_b()[host].v4();
        self.net.gateway_b().ip(&[format!("route replace {SHARED}/32 via {via}")]).unwrap();
    }

    /// Returns whether the server on b1 has a status socket.
    pub(crate) fn status_is_there(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.dir.join("run/serve-80.sock")).is_ok()
    }

    /// Returns the status of the server on b1.
    pub(crate) fn status(&self) -> serde_json::Value {
        self.status_of(0)
    }

    /// Returns the status of the server on host b1 (0) or b2 (1).
    pub(crate) fn status_of(&self, host: usize) -> serde_json::Value {
        let mut status = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        status.args(["status", "--json", "--run-dir"]).arg(self.run_dir(host));
        let said = status.args(["--name", "serve-80"]).output().unwrap();
        serde_json::from_slice(&said.stdout).unwrap()
    }

    pub(crate) fn v4(&self) -> IpAddr {
        self.net.b1().v4().into()
    }

    pub(crate) fn v6(&self) -> IpAddr {
        self.net.b1().v6().unwrap().into()
    }

    /// Opens a client on host a1.
    pub(crate) fn client(&self, ways: FormatChoice) -> Client {
        let settings = ClientSettings {
            formats: ways,
            mtu: 1500,
            untracked: true,
            instance: "viaduct_fetch".to_owned(),
            run_dir: self.dir.join("run"),
        };
        let netns = self.net.a1().netns().clone();
        let connector = netns.enter(|| Connector::open(&settings, 9)).unwrap().unwrap();
        Client { connector: Some(connector), netns, read: HashMap::new(), progress: Arc::default() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A client: its connector, and the data read from each stream.
pub(crate) struct Client {
    connector: Option<Connector>,
    netns: viaduct_sys::netns::Netns,
    pub(crate) read: HashMap<u32, Vec<u8>>,
    /// Bytes read from the main stream.
    pub(crate) progress: Arc<AtomicUsize>,
}

/// Outcome of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Plain,
    Failed(String),
    TooSlow,
}

impl Client {
    pub(crate) fn connector(&mut self) -> &mut Connector {
        self.connector.as_mut().unwrap()
    }

    pub(crate) fn connect(&mut self, ip: IpAddr) -> Flow {
        let to = SocketAddr::new(ip, 80);
        let (netns, connector) = (self.netns.clone(), self.connector());
        netns.enter(|| connector.connect(to, Config::default())).unwrap().unwrap()
    }

    /// Sends `text` on the main stream, ends this direction of it, and reads until all of `streams`
    /// have ended, for at most `limit`.
    pub(crate) fn fetch(
        &mut self,
        flow: Flow,
        text: &str,
        streams: &[u32],
        limit: Duration,
    ) -> End {
        let stream = self.connector().stream(flow).unwrap();
        assert_eq!(stream.write(MAIN, text.as_bytes()), text.len());
        stream.shutdown(MAIN);
        self.connector().flush();
        let (waker, deadline) = (Waker::new().unwrap(), Instant::now() + limit);
        while Instant::now() < deadline {
            let packets = self.connector().turn().unwrap();
            while let Some((of, word)) = self.connector().poll_event() {
                match word {
                    ConnectorEvent::Changed(stream) if of == flow => self.take(flow, stream),
                    ConnectorEvent::PlainTcp => return End::Plain,
                    ConnectorEvent::Open
                    | ConnectorEvent::FellBack { .. }
                    | ConnectorEvent::Unresponsive => {}
                    other => return End::Failed(format!("{other:?}")),
                }
            }
            self.connector().flush();
            let stream = self.connector().stream(flow).unwrap();
            let states: Vec<State> = streams.iter().map(|&id| stream.state(id)).collect();
            if let Some(State::Failed(why)) = states.iter().find(|s| matches!(s, State::Failed(_)))
            {
                return End::Failed(why.to_string());
            }
            if states.iter().all(|state| *state == State::Finished) {
                return End::Finished;
            }
            self.connector().flush();
            if packets == 0 {
                let most = Duration::from_millis(50);
                let timeout = self.connector().poll_timeout().unwrap_or(most).min(most);
                wait(&[self.connector.as_ref().unwrap()], &waker, timeout);
            }
        }
        eprintln!(
            "{:?} {:?}",
            self.connector().stream(flow).unwrap().stats(),
            self.connector().port().stats()
        );
        End::TooSlow
    }

    fn take(&mut self, flow: Flow, stream: u32) {
        let connector = self.connector.as_mut().unwrap();
        let read = self.read.entry(stream).or_default();
        while let Some(data) = connector.stream(flow).unwrap().read(stream) {
            read.extend_from_slice(&data);
        }
        if stream == MAIN {
            self.progress.store(read.len(), Ordering::Relaxed);
        }
    }

    /// Returns the head and body of the response on a stream.
    pub(crate) fn response(&self, stream: u32) -> (String, &[u8]) {
        let got = self.read.get(&stream).map_or(&[][..], |got| got);
        let end = got.windows(4).position(|window| window == b"\r\n\r\n").expect("a response head");
        (String::from_utf8(got[..end].to_vec()).unwrap(), &got[end + 4..])
    }

    pub(crate) fn format(&mut self, flow: Flow) -> Option<Format> {
        self.connector().port().format(flow)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let connector = self.connector.take();
        // The connector removes its rules, which are in the namespace.
        let _ = self.netns.enter(|| drop(connector));
    }
}
