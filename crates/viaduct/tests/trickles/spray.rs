//! `viaduct spray` on the router in front of two servers: distribution of packets, drain, and
//! detection of dead servers.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_sys::process::Process;

use crate::common::{random, until, within};
use crate::world::{End, SHARED, World};

const LIMIT: Duration = Duration::from_secs(20);

/// Spray on the router of the servers' side.
struct Spray<'a> {
    world: &'a World,
    run_dir: PathBuf,
    process: Option<Process>,
}

impl Spray<'_> {
    fn start<'a>(world: &'a World, replicas: &str) -> Spray<'a> {
        let run_dir = world.dir.join("run-spray");
        let mut spray = Spray { world, run_dir, process: None };
        spray.configure(replicas);
        spray.restart();
        spray
    }

    /// Writes the config, with these keys for the second replica.
    fn configure(&self, second: &str) {
        let [b1, b2] = self.world.net.hosts_b() else { panic!("two hosts") };
        let addresses = |host: &viaduct_lab::topology::Host| {
            format!("[\"{}\", \"{}\"]", host.v4(), host.v6().unwrap())
        };
        let config = format!(
            "[spray]\nname = \"www\"\naddresses = [\"{SHARED}\", \"fd00:2:0:c8::1\"]\n\
             ports = [80]\ninterfaces = [\"wan0\"]\nrun_dir = \"{}\"\n\
             [check]\ninterval = \"30ms\"\ntimeout = \"50ms\"\n\
             [[replica]]\nname = \"b1\"\naddresses = {}\n\
             [[replica]]\nname = \"b2\"\naddresses = {}\n{second}",
            self.run_dir.display(),
            addresses(b1),
            addresses(b2)
        );
        fs::write(self.config(), config).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.world.dir.join("spray.toml")
    }

    fn log(&self) -> PathBuf {
        self.world.dir.join("spray.log")
    }

    fn restart(&mut self) {
        self.process = None;
        let mut command = self.world.net.gateway_b().command(env!("CARGO_BIN_EXE_viaduct"));
        let log = fs::File::options().create(true).append(true).open(self.log()).unwrap();
        command.args(["spray", "--config"]).arg(self.config()).stderr(log);
        self.process = Some(Process::spawn(command).unwrap());
        // After a kill, the rules of the killed process exist before the new process is up.
        let is_up = || {
            let said = run(&self.run_dir, &["status", "--name", "spray-www"]);
            said.status.success() && self.rules().contains("fwd")
        };
        assert!(within(LIMIT, is_up), "the service is not up, or there are no rules");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.as_ref().unwrap().id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn rules(&self) -> String {
        self.world.net.gateway_b().run("nft", &["list", "ruleset"]).unwrap()
    }

    fn status(&self) -> Value {
        let said = run(&self.run_dir, &["status", "--json", "--name", "spray-www"]);
        serde_json::from_slice(&said.stdout).unwrap()
    }

    /// Waits until the second replica is in this state, with this share of the packets.
    fn wait_for(&self, state: &str, share: f64) {
        let is_so = || {
            let of = &self.status()["replicas"][1];
            of["state"] == state && (of["share"].as_f64().unwrap() - share).abs() < 0.01
        };
        assert!(within(LIMIT, is_so), "{}", self.status());
    }

    fn sent(&self) -> [u64; 2] {
        let replicas = &self.status()["replicas"];
        [0, 1].map(|n| replicas[n]["packets"].as_u64().unwrap())
    }
}

/// Runs `viaduct` with this run directory.
fn run(run_dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    command.args(words).arg("--run-dir").arg(run_dir).output().unwrap()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

fn servers(world: &World) -> Vec<Option<Process>> {
    world.share_address();
    for host in world.net.hosts_b() {
        host.ip(&["addr add fd00:2:0:c8::1/128 dev lo nodad".to_owned()]).unwrap();
    }
    (0..2).map(|host| Some(serve(world, host))).collect()
}

fn serve(world: &World, host: usize) -> Process {
    let words = ["--trickles", "auto", "--balanced"];
    world.serve_in(host, &words, || world.connect_plain_to(host).is_ok())
}

/// Fetches a file over IPv4 in both packet formats, and over IPv6 in TCP's. Checks its content.
fn fetch_all(world: &World, expected: &[u8]) {
    for (ip, format) in [
        (SHARED.into(), Format::Tcp),
        ("fd00:2:0:c8::1".parse().unwrap(), Format::Tcp),
        (SHARED.into(), Format::Udp),
    ] {
        let mut client = world.client(FormatChoice::Only(format));
        let flow = client.connect(ip);
        assert_eq!(client.fetch(flow, &get("/big.bin"), &[MAIN], LIMIT), End::Finished, "{ip}");
        assert!(client.response(MAIN).1 == expected);
    }
}

#[test]
fn packets_are_distributed_to_replicas_that_are_up_and_not_drained() {
    let Some(world) = World::new("spray", "rate=80M,delay=2ms,queue=300kB") else { return };
    let big = random(1_000_000);
    world.file("big.bin", &big);
    let mut servers = servers(&world);
    let spray = Spray::start(&world, "");
    spray.wait_for("up", 0.5);
    fetch_all(&world, &big);
    let [b1, b2] = spray.sent();
    assert!(b1.abs_diff(b2) <= 6 && b1 > 300, "{b1} and {b2} packets");

    // Plain TCP at the same port: each connection has one replica.
    let connect = || {
        let to = (SHARED, 80);
        world.net.a1().netns().enter(|| TcpStream::connect(to)).unwrap().unwrap()
    };
    let _connections: Vec<_> = (0..16).map(|_| connect()).collect();
    let open = |host| world.status_of(host)["tcp"]["open"].as_u64().unwrap();
    assert!(within(LIMIT, || open(0) + open(1) >= 16), "{} {}", open(0), open(1));
    assert!(open(0) > 0 && open(1) > 0);

    let change = |word: &str, replica: &str| {
        let said = run(&spray.run_dir, &["spray", word, "www", replica]);
        (said.status.success(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    assert!(change("drain", "b3").1.contains("there is no replica b3; there are b1, b2"));
    assert_eq!(change("drain", "b2"), (true, String::new()));
    let before = spray.sent();
    fetch_all(&world, &big);
    let after = spray.sent();
    assert!(after[1] == before[1] && after[0] > before[0] + 300, "{before:?} {after:?}");
    assert_eq!(change("resume", "b2"), (true, String::new()));
    spray.wait_for("up", 0.5);

    // A killed replica gets no more packets; a restarted one does.
    servers[1] = None;
    spray.wait_for("down", 0.0);
    let page = run(&spray.run_dir, &["status", "--name", "spray-www"]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("down: connection refused; 0.0 % of the packets"), "{page}");
    fetch_all(&world, &big);
    servers[1] = Some(serve(&world, 1));
    spray.wait_for("up", 0.5);

    // A changed config takes effect without a restart; an invalid one has none.
    spray.configure("weight = 3\n");
    spray.signal(Signal::HUP);
    spray.wait_for("up", 0.75);
    spray.configure("weight = 0\n");
    spray.signal(Signal::HUP);
    let is_refused = || fs::read_to_string(spray.log()).unwrap().contains("not reloaded");
    assert!(within(LIMIT, is_refused), "the config is not refused");
    spray.wait_for("up", 0.75);
    assert!(spray.sent()[0] >= after[0], "counters survive a reload");
}

#[test]
fn rules_outlive_a_kill_and_are_repaired_and_removed() {
    let Some(world) = World::new("spray-rules", "delay=1ms") else { return };
    let _servers = servers(&world);
    let mut spray = Spray::start(&world, "");
    let changes = spray.run_dir.join("spray-www.changes.json");
    let router = world.net.gateway_b();
    router.run("nft", &["flush", "ruleset"]).unwrap();
    assert!(within(LIMIT, || spray.rules().contains("fwd")), "the rules are not repaired");
    assert!(within(LIMIT, || spray.status()["repairs"] == 1));

    spray.signal(Signal::KILL);
    until("it ends", || spray.process.as_mut().unwrap().try_wait().unwrap().is_some());
    assert!(spray.rules().contains("fwd") && changes.exists(), "packets are still distributed");
    spray.restart();
    spray.wait_for("up", 0.5);
    assert_eq!(spray.rules().matches("hook ingress").count(), 1);

    let began = Instant::now();
    spray.signal(Signal::TERM);
    until("it ends", || spray.process.as_mut().unwrap().try_wait().unwrap().is_some());
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(spray.rules(), "");
    assert!(!changes.exists());
}
