//! Upgrades of a proxy whose flows use Trickles: they end in the old process.

use std::thread;

use viaduct_lab::binary::use_binary;
use viaduct_lab::upgrade::upgrade;

use super::*;

#[test]
fn flows_over_trickles_outlive_upgrades_of_their_proxy() {
    let Some(world) = World::new("upgrade", LOSSY) else { return };
    use_binary(VIADUCT);
    let big = random(6_000_000);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let runs = world.dir.join("runs");
    let mut command = world.net.a1().command(VIADUCT);
    command.args(["proxy", "--listen", "127.0.0.1:7000", "--expect", "connect"]);
    command.args(["--trickles", "auto", "--workers", "2"]);
    command.args(["--allow-from", "127.0.0.0/8", "--allow-to", "0.0.0.0/0"]);
    command.arg("--run-dir").arg(&runs).stderr(Stdio::null());
    let mut proxy = Process::spawn(command).unwrap();
    let netns = world.net.a1().netns();
    let up = || netns.enter(|| std::net::TcpStream::connect("127.0.0.1:7000").is_ok()).unwrap();
    assert!(within(Duration::from_secs(10), up), "the proxy does not come up");
    let url = url(world.v4(), "big.bin");
    let by_proxy = |more: &[&str]| {
        let words = ["--proxy", "http://127.0.0.1:7000", "--proxytunnel", &url];
        // A later --noproxy replaces an earlier one.
        curl(&world, &[], &[&["--noproxy", ""], more, &words].concat())
    };
    let mut processes = Vec::new();
    thread::scope(|scope| {
        // Each download lasts three seconds, and at most two upgrades.
        let mut slow = Vec::new();
        for _ in 0..3 {
            let command = by_proxy(&["--limit-rate", "2M"]);
            slow.push(scope.spawn(move || done(command)));
            thread::sleep(Duration::from_millis(500));
            processes.push(upgrade(&runs, &[]).unwrap());
            assert!(done(by_proxy(&[])).stdout == big);
        }
        for download in slow {
            assert!(download.join().unwrap().stdout == big);
        }
    });
    let (last, others) = processes.split_last().unwrap();
    let ended = || others.iter().all(|process| process.has_ended());
    assert!(within(Duration::from_secs(10), ended), "old processes remain");
    assert!(proxy.wait().unwrap().success());
    assert_eq!(counted(&world).1, 0, "a request went by TCP");
    let tables = || world.net.a1().run("nft", &["list", "tables"]).unwrap();
    assert!(tables().contains("trickles"), "the last process has its rules");
    last.end().unwrap();
    assert!(!tables().contains("trickles"), "{}", tables());
}
