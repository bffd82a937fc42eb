//! The C examples, compiled against the library and run: server and client in a network namespace.
#![allow(clippy::unwrap_used)] // a test may panic

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use viaduct_sys::netns::Netns;
use viaduct_sys::process::Process;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Directory with the shared library: that of the test's binary, or its parent.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [deps.clone(), deps.parent().unwrap().to_owned()];
    let there = places.into_iter().find(|place| place.join("libviaduct_trickles.so").exists());
    there.expect("no library: run `cargo build -p viaduct-capi` in the profile of the tests")
}

/// Compiles a C file of the repository into `dir`. Returns false if there is no compiler.
fn compile(source: &str, dir: &Path) -> bool {
    let library = library();
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L", "-I"]);
    let name = Path::new(source).file_stem().unwrap();
    cc.arg(root().join("include")).arg("-o").arg(dir.join(name));
    cc.arg(root().join(source));
    cc.arg("-L").arg(&library).arg("-lviaduct_trickles");
    cc.arg(format!("-Wl,-rpath,{}", library.display()));
    match cc.status() {
        Ok(status) => {
            assert!(status.success(), "{source} does not compile");
            true
        }
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            false
        }
    }
}

const SOURCES: [&str; 3] = [
    "examples/trickles/server.c",
    "examples/trickles/client.c",
    "crates/viaduct-capi/tests/calls.c",
];

struct World {
    netns: Netns,
    dir: PathBuf,
}

impl World {
    /// Prepares a directory and a namespace. `None`, with a message, if there is no compiler or
    /// no namespace.
    fn new(test: &str) -> Option<World> {
        let dir = std::env::temp_dir().join(format!("viaduct-capi-{test}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        if !SOURCES.into_iter().all(|source| compile(source, &dir)) {
            return None;
        }
        let Ok(netns) = Netns::new() else {
            eprintln!("skipped: no namespace");
            return None;
        };
        let up = netns.command("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        fs::write(dir.join("key"), format!("1 {}\n", "5c".repeat(32))).unwrap();
        Some(World { netns, dir })
    }

    /// Starts a server, and waits until it is ready.
    fn serve(&self, at: &str, more: &[&str], stdin: Stdio, stdout: Stdio) -> Process {
        let mut command = self.netns.command(self.dir.join("server").to_str().unwrap());
        command.arg(at).arg(&self.dir).arg(self.dir.join("key")).args(more);
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        let mut server = Process::spawn(command).unwrap();
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        server
    }

    /// Starts a server that moves every second batch of events to a second server, which listens at
    /// another port.
    fn serve_elsewhere(&self) -> [Process; 2] {
        let mut giver = self.serve("127.0.0.1:90", &["give"], Stdio::null(), Stdio::piped());
        let events = giver.stdout.take().unwrap();
        [giver, self.serve("127.0.0.1:91", &["take"], events.into(), Stdio::null())]
    }

    /// The client's command.
    fn client(&self, to: &str, what: [&str; 3]) -> Command {
        let mut client = self.netns.command(self.dir.join("client").to_str().unwrap());
        client.arg(to).arg(&self.dir).args(what);
        client
    }

    /// Wraps the command `client` so that it runs as root, but without any capability.
    fn unprivileged(&self, client: &Command) -> Command {
        let mut unprivileged = self.netns.command("setpriv");
        unprivileged.args(["--bounding-set", "-all", "--inh-caps", "-all", "--"]);
        unprivileged.arg(client.get_program()).args(client.get_args());
        unprivileged
    }

    /// Returns whether firewall rules of a client exist.
    fn has_rules(&self) -> bool {
        let rules = self.netns.command("nft").args(["list", "tables"]).output().unwrap();
        String::from_utf8(rules.stdout).unwrap().contains("viaduct_c_")
    }

    fn fetch(&self, length: &str, count: &str, upload: &str) {
        let client = self.client("127.0.0.1:90", [length, count, upload]);
        self.succeed(client, [length, count, upload]);
    }

    fn succeed(&self, mut client: Command, [length, count, upload]: [&str; 3]) {
        let done = client.output().unwrap();
        let said = [done.stdout, done.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(done.status.success(), "{said:?}");
        assert_eq!(said[0].trim(), format!("{count} of {length} bytes each, {upload} uploaded"));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_server_and_a_client_in_c_fetch_and_upload() {
    let Some(world) = World::new("fetch") else { return };
    let _server = world.serve("127.0.0.1:90", &[], Stdio::null(), Stdio::null());
    world.fetch("100", "200", "0");
    world.fetch("300000", "20", "50");
    // A request of more than a megabyte must also work, although the server keeps none of it.
    world.fetch("1000", "3", "1200000");
}

#[test]
fn rules_of_failed_and_killed_clients_are_removed() {
    let Some(world) = World::new("left") else { return };
    let done = world.client("127.0.0.1:95", ["100", "1", "0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&done.stderr).contains("refused") && !world.has_rules());

    let _server = world.serve("127.0.0.1:90", &[], Stdio::null(), Stdio::null());
    let mut command = world.client("127.0.0.1:90", ["1000000000", "50", "0"]);
    let mut killed = Process::spawn({
        command.stdout(Stdio::null());
        command
    })
    .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !world.has_rules() {
        assert!(Instant::now() < deadline, "the client has set no rules");
        std::thread::sleep(Duration::from_millis(20));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(world.has_rules(), "a killed client leaves its rules");
    world.fetch("100", "1", "0");
    assert!(!world.has_rules(), "the next client removes the rules of the killed client");
}

#[test]
fn events_extracted_by_one_process_are_answered_by_another() {
    let Some(world) = World::new("moved") else { return };
    let _servers = world.serve_elsewhere();
    world.fetch("200000", "10", "20000");
}

#[test]
fn an_unprivileged_client_uses_udp_and_its_events_may_be_moved() {
    let Some(world) = World::new("unprivileged") else { return };
    let _servers = world.serve_elsewhere();
    let what = ["200000", "10", "20000"];
    world.succeed(world.unprivileged(&world.client("127.0.0.1:90", what)), what);
}

#[test]
fn every_call_does_what_the_header_says() {
    let Some(world) = World::new("calls") else { return };
    for (at, way) in
        [("127.0.0.1:90", "tcp"), ("[::1]:90", "tcp"), ("127.0.0.1:90", "udp"), ("[::1]:90", "udp")]
    {
        let mut calls = world.netns.command(world.dir.join("calls").to_str().unwrap());
        let done = calls.arg(at).arg(&world.dir).arg(way).output().unwrap();
        let said = [done.stdout, done.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(done.status.success() && said[0] == "all calls\n", "{at} {way}: {said:?}");
    }
    assert!(!world.has_rules());
}
