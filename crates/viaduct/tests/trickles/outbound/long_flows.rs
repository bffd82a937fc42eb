//! Long flows: a transfer that outlives its server's secret, a server that has stopped, unread
//! data.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use viaduct_sys::process::Process;

use super::{VIADUCT, counted, curl, url};
use crate::common::{random, within};
use crate::world::World;

/// Time within which a server rereads its secrets.
const LOOKED: Duration = Duration::from_millis(1_500);

#[test]
fn a_transfer_survives_the_rotation_of_its_secret() {
    let Some(world) = World::new("rotated", "rate=8M,delay=10ms,queue=60kB") else { return };
    let big = random(6_000_000);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let (old, new) = (format!("1 {}\n", "a1".repeat(32)), format!("2 {}\n", "b2".repeat(32)));
    for way in ["tcp", "udp"] {
        fs::write(world.dir.join("key"), &old).unwrap();
        thread::sleep(LOOKED);
        let begun = Instant::now();
        let mut fetch =
            curl(&world, &[&format!("+trickles:way={way}")], &[&url(world.v4(), "big.bin")]);
        let fetch = fetch.stdout(Stdio::piped()).spawn().unwrap();
        let rotated = thread::scope(|scope| {
            let rotated = scope.spawn(|| {
                for secrets in [format!("{old}{new}"), format!("{new}{old}"), new.clone()] {
                    thread::sleep(LOOKED);
                    fs::write(world.dir.join("key"), secrets).unwrap();
                }
                begun.elapsed()
            });
            let got = fetch.wait_with_output().unwrap();
            assert!(got.status.success() && got.stdout == big, "{way}: {:?}", got.stderr);
            rotated.join().unwrap()
        });
        let took = begun.elapsed();
        println!("{way}: {took:?}, of which the old secret was known for {rotated:?}");
        assert!(took > rotated + Duration::from_secs(1), "{way}: ended before the secret");
        assert!(took < Duration::from_secs(9), "{way}: {took:?}");
    }
    assert_eq!(counted(&world).1, 0, "a request went by TCP");
}

#[test]
fn a_silent_server_is_logged() {
    let Some(world) = World::new("silent", "rate=40M,delay=5ms,queue=300kB") else { return };
    world.file("big.bin", &random(40_000_000));
    let mut server = world.serve("auto");
    let (log, got) = (world.dir.join("log"), world.dir.join("got"));
    let words = ["-o", got.to_str().unwrap(), &url(world.v4(), "big.bin")];
    let mut client = curl(&world, &["+trickles"], &words);
    let _client = Process::spawn({
        client.stderr(File::create(&log).unwrap());
        client
    })
    .unwrap();
    let some = || fs::metadata(&got).is_ok_and(|got| got.len() > 1_000_000);
    assert!(within(Duration::from_secs(10), some), "the download does not get so far");
    server.kill().unwrap();
    let said = format!("{}:80 does not answer any more", world.v4());
    let told = || fs::read_to_string(&log).is_ok_and(|log| log.contains(&said));
    // The limit includes the attempt after ten seconds of silence.
    assert!(within(Duration::from_secs(25), told), "{:?}", fs::read_to_string(&log));
}

#[test]
fn unread_data_is_bounded_over_all_flows() {
    const FLOWS: usize = 16;
    let Some(world) = World::new("unread", "rate=400M,delay=5ms,queue=2MB") else { return };
    let big = random(24_000_000);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let netns = world.net.a1().netns();
    let mut command = world.net.a1().command(VIADUCT);
    command.args(["proxy", "--listen", "127.0.0.1:7000", "--expect", "connect"]);
    command.args(["--trickles", "auto", "--trickles-buffer", "2000000", "--workers", "1"]);
    command.args(["--allow-from", "127.0.0.0/8", "--allow-to", "0.0.0.0/0"]);
    command.arg("--run-dir").arg(world.dir.join("runs")).stderr(Stdio::null());
    let proxy = Process::spawn(command).unwrap();
    let connect = || netns.enter(|| TcpStream::connect("127.0.0.1:7000")).unwrap();
    assert!(within(Duration::from_secs(10), || connect().is_ok()), "the proxy does not come up");
    let open = || {
        let mut flow = connect().unwrap();
        flow.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(flow, "CONNECT {}:80 HTTP/1.1\r\n\r\n", world.v4()).unwrap();
        let get = "GET /big.bin HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
        flow.write_all(get.as_bytes()).unwrap();
        flow
    };
    // The first flow makes the proxy allocate memory that is needed only once.
    open().read_to_end(&mut Vec::new()).unwrap();
    let memory = || resident(proxy.id());
    let begun = memory();
    let flows: Vec<TcpStream> = (0..FLOWS).map(|_| open()).collect();
    thread::sleep(Duration::from_secs(3));
    let grown = memory().saturating_sub(begun);
    println!("{FLOWS} unread flows: {grown} bytes more");
    assert!(grown < 24_000_000, "{grown} bytes more");
    let mut last = Vec::new();
    for mut flow in flows {
        last.clear();
        flow.read_to_end(&mut last).unwrap();
        assert!(last.ends_with(&big), "{} bytes", last.len());
    }
    assert_eq!(counted(&world).1, 0, "a request went by TCP");
}

/// Anonymous memory of a process, in bytes.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
