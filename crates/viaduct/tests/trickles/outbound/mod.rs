//! Trickles for programs without support for it: curl under `viaduct run +trickles`, and through
//! `viaduct proxy --trickles`, to `viaduct serve` over a link that loses packets.

mod address_change;
mod early;
mod encrypted;
mod long_flows;
mod path_mtu;
mod refused;
mod upgrade;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{UnprivilegedUser, random, within};
use crate::world::World;
use viaduct_sys::process::Process;

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
/// Time limit of a request, in seconds.
const LIMIT: &str = "40";
const LOSSY: &str = "rate=50M,delay=5ms,queue=300kB,loss=1%";

/// Returns a URL of the server.
fn url(ip: IpAddr, path: &str) -> String {
    match ip {
        IpAddr::V4(ip) => format!("http://{ip}/{path}"),
        IpAddr::V6(ip) => format!("http://[{ip}]/{path}"),
    }
}

/// Builds a curl command on the client's host, under `viaduct run` with the options `run`, if there
/// are any.
fn curl(world: &World, run: &[&str], words: &[&str]) -> Command {
    let mut command = world.net.a1().command("timeout");
    command.args(["--signal=KILL", LIMIT]);
    if !run.is_empty() {
        command.args([VIADUCT, "run"]).args(run).arg("--run-dir").arg(world.dir.join("runs"));
        command.arg("--");
    }
    command.args(["curl", "--noproxy", "*", "-sS"]).args(words).stderr(Stdio::piped());
    command
}

fn done(mut command: Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    assert_eq!(said, "", "{command:?}");
    output
}

/// Returns two counters of the server: bytes by Trickles, and requests by TCP.
fn counted(world: &World) -> (u64, u64) {
    let number = |of: &serde_json::Value| of.as_u64().unwrap();
    let read = || {
        let status = world.status();
        (number(&status["trickles"]["bytes"]), number(&status["tcp"]["requests"]))
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut before = read();
    // The counters are published a few times a second.
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = read();
        if now == before || Instant::now() > deadline {
            return now;
        }
        before = now;
    }
}

#[test]
fn curl_uses_trickles_under_every_interposer() {
    let Some(world) = World::new("run", LOSSY) else { return };
    let big = random(3_000_000);
    world.file("big.bin", &big);
    world.file("small", b"small");
    let _server = world.serve("auto");
    let mut expected = 0;
    for (via, by, ip) in [
        ("cgroup", "+trickles", world.v4()),
        ("cgroup", "+trickles:way=udp", world.v6()),
        ("seccomp", "+trickles:way=tcp", world.v6()),
        ("preload", "+trickles:way=tcp", world.v4()),
        ("preload", "+count +trickles", world.v4()),
    ] {
        let mut run: Vec<&str> = by.split(' ').collect();
        run.extend(["--via", via]);
        let start = Instant::now();
        let all = done(curl(&world, &run, &[&url(ip, "big.bin")]));
        assert!(all.stdout == big, "{via} {by}: {} bytes", all.stdout.len());
        println!("{via} {by}: 3 MB in {:?}", start.elapsed());
        expected += big.len() as u64;
        let (bytes, tcp) = counted(&world);
        assert!(bytes >= expected && tcp == 0, "{via} {by}: {bytes} of {expected}, {tcp} by TCP");
    }
    let run = ["+trickles"];
    let big_url = url(world.v4(), "big.bin");
    let part = done(curl(&world, &run, &["-r", "1000000-1999999", &big_url]));
    assert!(part.stdout == big[1_000_000..2_000_000]);
    // A range beyond 32 bits.
    let huge = fs::File::create(world.dir.join("site/huge")).unwrap();
    huge.write_all_at(&big[..2_000], (1 << 32) - 1_000).unwrap();
    huge.set_len(5 << 30).unwrap();
    let range = format!("{}-{}", (1_u64 << 32) - 1_000, (1_u64 << 32) + 999);
    let part = done(curl(&world, &run, &["-r", &range, &url(world.v4(), "huge")]));
    assert!(part.stdout == big[..2_000]);
    let head = String::from_utf8(done(curl(&world, &run, &["-I", &big_url])).stdout).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("3000000"), "{head}");
    // Several requests on one connection.
    let small = url(world.v4(), "small");
    let words = ["-w", "%{num_connects},%{remote_ip},", &small, &small];
    let two = String::from_utf8(done(curl(&world, &run, &words)).stdout).unwrap();
    let ip = world.v4();
    assert_eq!(two, format!("small1,{ip},small0,{ip},"));
    assert_eq!(counted(&world).1, 0, "nothing went by TCP");
    // Masters end shortly after their programs.
    let rules = || world.net.a1().run("nft", &["list", "ruleset"]).unwrap();
    let put_back = within(Duration::from_secs(5), || !rules().contains("trickles"));
    assert!(put_back, "{}", rules());
}

#[test]
fn without_privilege_a_run_uses_udp() {
    let Some(world) = World::new("user", LOSSY) else { return };
    let big = random(500_000);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let user = UnprivilegedUser::new("outbound");
    let inside = user.command("timeout");
    let mut command = world.net.a1().command(inside.get_program().to_str().unwrap());
    command.args(inside.get_args()).args(["--signal=KILL", LIMIT]).arg(user.viaduct());
    command.args(["run", "+trickles", "--run-dir"]).arg(user.at(""));
    command.args(["--", "curl", "--noproxy", "*", "-sS", &url(world.v4(), "big.bin")]);
    command.stderr(Stdio::piped());
    assert!(done(command).stdout == big);
    let (bytes, tcp) = counted(&world);
    assert!(bytes >= big.len() as u64 && tcp == 0, "{bytes}, {tcp} by TCP");
}

#[test]
fn a_server_without_trickles_is_reached_by_tcp() {
    let Some(world) = World::new("python", "rate=50M,delay=5ms,queue=300kB") else { return };
    let big = random(1_000_000);
    world.file("big.bin", &big);
    let mut command = world.net.b1().command("python3");
    command.args(["-m", "http.server", "80", "-d"]).arg(world.dir.join("site"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Process::spawn(command).unwrap();
    assert!(within(Duration::from_secs(10), || world.connect_plain().is_ok()));
    let url = url(world.v4(), "big.bin");
    // The server's TCP answers packets in TCP's format immediately; UDP gets no answer.
    for (way, most) in [("auto", 2), ("tcp", 2), ("udp", 6)] {
        let start = Instant::now();
        let run = format!("+trickles:way={way}");
        let all = done(curl(&world, &[&run], &[&url]));
        assert!(all.stdout == big, "{way}");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(most), "{way}: {took:?}");
    }
    let closed = format!("http://{}:81/", world.v4());
    let refused = curl(&world, &["+trickles:way=tcp"], &[&closed]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    let refused = curl(&world, &["+trickles"], &[&closed]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
}

#[test]
fn a_policy_selects_trickles() {
    let Some(world) = World::new("proxy", LOSSY) else { return };
    let big = random(3_000_000);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let config = world.dir.join("proxy.toml");
    let runs = world.dir.join("runs");
    let text = format!(
        "[proxy]\nlisten = '127.0.0.1:7000'\nexpect = 'connect'\nallow-from = '127.0.0.0/8'\n\
         allow-to = ['0.0.0.0/0', '::/0']\nmetrics = '127.0.0.1:7001'\nworkers = 2\nrun-dir = \
         '{}'\n\
         [[policy]]\nto = ['{}']\ndirect = true\n[[policy]]\ntrickles = 'auto'\n",
        runs.display(),
        world.v6(),
    );
    fs::write(&config, text).unwrap();
    let mut command = world.net.a1().command(VIADUCT);
    command.args(["proxy", "--config"]).arg(&config).stderr(Stdio::null());
    let proxy = Process::spawn(command).unwrap();
    let netns = world.net.a1().netns();
    let up = || netns.enter(|| std::net::TcpStream::connect("127.0.0.1:7001").is_ok()).unwrap();
    assert!(within(Duration::from_secs(10), up), "the proxy does not come up");
    let by_proxy = |url: &str| {
        let words = ["--noproxy", "", "--proxy", "http://127.0.0.1:7000", "--proxytunnel", url];
        done(curl(&world, &[], &words)).stdout
    };
    assert!(by_proxy(&url(world.v4(), "big.bin")) == big);
    let (bytes, tcp) = counted(&world);
    assert!(bytes >= big.len() as u64 && tcp == 0, "{bytes}, {tcp} by TCP");
    assert!(by_proxy(&url(world.v6(), "big.bin")) == big, "the first policy is not applied");
    assert_eq!(counted(&world).1, 1);
    let metrics = done(curl(&world, &[], &["http://127.0.0.1:7001/metrics"])).stdout;
    let metrics = String::from_utf8(metrics).unwrap();
    let count = |by: &str| {
        let line = metrics.lines().find(|l| l.contains("_count{") && l.contains(by));
        line.and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    let both = ["\"trickles\"", "\"direct\""].map(count);
    assert_eq!(both, [Some("1".to_owned()), Some("1".to_owned())], "{metrics}");
    drop(proxy);
}

#[test]
fn a_download_survives_a_restart_of_its_server() {
    let Some(world) = World::new("again", "rate=40M,delay=5ms,queue=300kB") else { return };
    let big = random(10_000_000);
    world.file("big.bin", &big);
    let mut server = world.serve("auto");
    let got = world.dir.join("got");
    let words = ["-o", got.to_str().unwrap(), &url(world.v4(), "big.bin")];
    let client = curl(&world, &["+trickles"], &words).spawn().unwrap();
    let half = || fs::metadata(&got).is_ok_and(|got| got.len() > 4_000_000);
    assert!(within(Duration::from_secs(20), half), "the download does not get so far");
    server.kill().unwrap();
    let killed = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    let before = fs::metadata(&got).unwrap().len();
    assert!(before < big.len() as u64, "the download had finished before");
    let _server = world.serve("auto");
    println!("the server was gone for {:?}", killed.elapsed());
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(&got).unwrap() == big);
    assert_eq!(counted(&world).1, 0, "a request went by TCP");
}
