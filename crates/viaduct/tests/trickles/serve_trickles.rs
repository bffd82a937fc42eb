//! `viaduct serve` over Trickles, in real packets over a link that loses some of them.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{self, random};
use crate::world::{End, SHARED, World};
use serde_json::Value;
use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_proto::trickles::standard::MAIN;

const LOSSY: &str = "rate=100M,delay=1ms,queue=500kB,loss=1%";
const LIMIT: Duration = Duration::from_secs(60);

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
}

#[test]
fn ten_megabytes_arrive_in_every_format_and_by_plain_tcp() {
    let Some(world) = World::new("ways", LOSSY) else { return };
    let big = random(10_000_000);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let (tcp, udp) = (Format::Tcp, Format::Udp);
    for (ip, format, length) in [
        (world.v4(), tcp, big.len()),
        (world.v6(), tcp, 2_000_000),
        (world.v4(), udp, 2_000_000),
        (world.v6(), udp, 2_000_000),
    ] {
        let start = Instant::now();
        let mut client = world.client(FormatChoice::Only(format));
        let flow = client.connect(ip);
        let range = format!("Range: bytes=0-{}\r\n", length - 1);
        let text = [get("/big.bin", &range), get("/none", "")].concat();
        let end = client.fetch(flow, &text, &[MAIN], LIMIT);
        assert_eq!(end, End::Finished, "{ip} {format:?}: {}", world.status());
        let (head, body) = client.response(MAIN);
        assert!(head.starts_with("HTTP/1.1 206"), "{head}");
        assert!(body[..length] == big[..length], "{ip} {format:?}");
        assert!(body[length..].starts_with(b"HTTP/1.1 404"));
        assert_eq!(client.format(flow), Some(format));
        println!("{length} bytes from {ip} by {format:?}: {:?}", start.elapsed());
    }
    let mut plain = world.connect_plain().unwrap();
    plain.write_all(get("/big.bin", "Connection: close\r\n").as_bytes()).unwrap();
    assert!(common::rest(&mut plain).ends_with(&big[big.len() - 1_000..]));

    std::thread::sleep(Duration::from_millis(300));
    let status = world.status();
    let trickles = &status["trickles"];
    assert!(trickles["opened"].as_u64() >= Some(4), "{status}");
    assert!(trickles["bytes"].as_u64() >= Some(16_000_000), "{status}");
    assert!(status["tcp"]["requests"].as_u64() >= Some(1), "{status}");
}

#[test]
fn several_threads_answer_each_request_once() {
    // The link duplicates every packet.
    let link = "rate=100M,delay=1ms,queue=500kB,duplicate=100%";
    let Some(world) = World::new("threads", link) else { return };
    let big = random(500_000);
    world.file("big.bin", &big);
    let server = world.serve_with("auto", &["--workers", "3"], || world.connect_plain().is_ok());
    let mut repeats = 0;
    for format in [Format::Tcp, Format::Udp] {
        let mut client = world.client(FormatChoice::Only(format));
        for ip in [world.v4(), world.v6(), world.v4(), world.v6()] {
            client.read.clear();
            let flow = client.connect(ip);
            let end = client.fetch(flow, &get("/big.bin", ""), &[MAIN], LIMIT);
            assert_eq!(end, End::Finished, "{ip} {format:?}: {}", world.status());
            assert!(client.response(MAIN).1 == big, "{ip} {format:?}");
            repeats += client.connector().stream(flow).unwrap().stats().repeats;
        }
    }
    // The counters are published a few times a second.
    let read = || world.status()["trickles"].clone();
    let counters =
        |of: &Value| ["messages", "opened", "bytes", "refused"].map(|name| of[name].clone());
    let mut status = read();
    common::until("the counters stand still", || {
        std::thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut status, read());
        counters(&before) == counters(&status)
    });
    let count = |name: &str| status[name].as_u64().unwrap();
    let replayed = status["refused"].as_array().unwrap().iter().find(|of| of[0] == "replayed");
    let replayed = replayed.unwrap()[1].as_u64().unwrap();
    // Duplicates of openings are answered too: the replay cache does not record openings.
    assert!(count("opened") >= 2 * 8, "{status}");
    let steps = count("messages") - count("opened");
    // Half of the other messages are duplicates. If the client repeats a request, as on a busy
    // machine, both the repetition and its duplicate count as replays.
    assert!(replayed * 2 <= steps + 2 * repeats + 8, "{replayed} of {steps}: {status}");
    assert!(replayed * 2 + 40 > steps, "{replayed} of {steps}: {status}");
    assert!(count("bytes") < 8 * (big.len() as u64 + 50_000), "{status}");
    // All threads share one rule, which is removed at the end.
    let rules = || world.net.b1().run("nft", &["list", "ruleset"]).unwrap();
    assert_eq!(rules().matches("chain arriving").count(), 1, "{}", rules());
    let told = std::process::Command::new("kill").args(["-INT", &server.id().to_string()]).status();
    assert!(told.unwrap().success());
    assert!(common::within(Duration::from_secs(5), || rules().trim().is_empty()), "{}", rules());
}

#[test]
fn a_transfer_survives_a_restart_of_its_server() {
    let link = "rate=40M,delay=5ms,queue=300kB";
    let Some(world) = World::new("killed", link) else { return };
    let big = random(10_000_000);
    world.file("big.bin", &big);
    let mut server = world.serve("tcp");
    let mut client = world.client(FormatChoice::Any);
    let flow = client.connect(world.v4());
    let progress = client.progress.clone();
    let gone = std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let half = || progress.load(Ordering::Relaxed) > 4_000_000;
            assert!(common::within(LIMIT, half));
            server.kill().unwrap();
            let killed = Instant::now();
            server = world.serve("tcp");
            killed.elapsed()
        });
        let end = client.fetch(flow, &get("/big.bin", ""), &[MAIN], LIMIT);
        assert_eq!(end, End::Finished);
        killer.join().unwrap()
    });
    let (head, body) = client.response(MAIN);
    assert!(head.starts_with("HTTP/1.1 200") && body == big, "{head}");
    println!("the server was gone for {gone:?}");
}

#[test]
fn a_transfer_survives_a_route_that_flips_between_replicas() {
    let Some(world) = World::new("anycast", "rate=40M,delay=5ms,queue=300kB") else { return };
    let big = random(5_000_000);
    world.file("big.bin", &big);
    world.share_address();
    let words = ["--trickles", "tcp", "--balanced"];
    let serve = |host| world.serve_in(host, &words, || world.connect_plain_to(host).is_ok());
    let _servers = [0, 1].map(serve);
    world.lead_to(0);
    let mut client = world.client(FormatChoice::Any);
    let flow = client.connect(SHARED.into());
    let done = AtomicBool::new(false);
    let flips = std::thread::scope(|scope| {
        let flipper = scope.spawn(|| {
            let flip = |n: usize| {
                std::thread::sleep(Duration::from_millis(40));
                world.lead_to(n % 2);
            };
            (1..).take_while(|_| !done.load(Ordering::Relaxed)).map(flip).count()
        });
        let end = client.fetch(flow, &get("/big.bin", ""), &[MAIN], LIMIT);
        done.store(true, Ordering::Relaxed);
        assert_eq!(end, End::Finished);
        flipper.join().unwrap()
    });
    let (head, body) = client.response(MAIN);
    assert!(head.starts_with("HTTP/1.1 200") && body == big, "{head}");
    std::thread::sleep(Duration::from_millis(300));
    for host in [0, 1] {
        let status = world.status_of(host);
        assert!(status["trickles"]["answered"].as_u64() > Some(100), "{status}");
    }
    println!("{flips} flips");
}

#[test]
fn many_requests_share_a_connection_across_a_rotation() {
    let Some(world) = World::new("many", "rate=50M,delay=5ms,queue=300kB,loss=0.5%") else {
        return;
    };
    let files: Vec<Vec<u8>> = (0..100).map(|n| random(n * 500)).collect();
    files.iter().enumerate().for_each(|(n, bytes)| world.file(&format!("{n}"), bytes));
    let _server = world.serve("tcp");
    let mut client = world.client(FormatChoice::Only(Format::Tcp));
    let flow = client.connect(world.v6());
    let ask = |n: usize| get(&format!("/{n}"), "Connection: close\r\n");
    for _round in 0..2 {
        let stream = client.connector().stream(flow).unwrap();
        let streams: Vec<u32> =
            (0..files.len()).map(|n| stream.request(ask(n).as_bytes(), 1 << 20).unwrap()).collect();
        let end = client.fetch(flow, "", &streams, LIMIT);
        assert_eq!(end, End::Finished);
        for (stream, file) in streams.iter().zip(&files) {
            let (head, body) = client.response(*stream);
            assert!(head.starts_with("HTTP/1.1 200") && body == file, "{head}");
        }
        // The secret that sealed the client's state is still accepted.
        let (new, old) = ("b2".repeat(32), "a1".repeat(32));
        std::fs::write(world.dir.join("key"), format!("2 {new}\n1 {old}\n")).unwrap();
        std::thread::sleep(Duration::from_millis(600));
    }
}

#[test]
fn a_plain_tcp_server_is_recognised() {
    let Some(world) = World::new("plain", "delay=1ms") else { return };
    world.file("a", b"plain");
    let _server = world.serve("off");
    let mut client = world.client(FormatChoice::Any);
    for ip in [world.v4(), world.v6()] {
        let flow = client.connect(ip);
        assert_eq!(client.fetch(flow, &get("/a", ""), &[MAIN], LIMIT), End::Plain);
        client.connector().forget(flow);
    }
    let mut plain = world.connect_plain().unwrap();
    plain.write_all(get("/a", "Connection: close\r\n").as_bytes()).unwrap();
    assert!(common::rest(&mut plain).ends_with(b"plain"));
}

#[test]
fn few_descriptors_serve_many_files_and_tcp_clients() {
    let Some(world) = World::new("few", "rate=100M,delay=1ms,queue=500kB") else { return };
    (0..100).for_each(|n| world.file(&n.to_string(), format!("file {n}").as_bytes()));
    let server = world.serve_with_few(64);
    let mut client = world.client(FormatChoice::Any);
    let flow = client.connect(world.v4());
    let text: String = (0..100).map(|n| get(&format!("/{n}"), "")).collect();
    assert_eq!(client.fetch(flow, &text, &[MAIN], LIMIT), End::Finished);
    let got = String::from_utf8(client.read.remove(&MAIN).unwrap()).unwrap();
    assert_eq!(got.matches("HTTP/1.1 200").count(), 100, "{got}");
    assert!((0..100).all(|n| got.contains(&format!("\r\n\r\nfile {n}"))), "{got}");
    // Idle connections take all places; further clients wait.
    let _idle: Vec<_> = (0..5).map(|_| world.connect_plain().unwrap()).collect();
    let mut plain = world.connect_plain().unwrap();
    plain.write_all(get("/99", "Connection: close\r\n").as_bytes()).unwrap();
    assert!(common::rest(&mut plain).ends_with(b"file 99"));
    assert!(world.status()["tcp"]["requests"].as_u64() >= Some(1));
    // Removed files are closed, so that their disk space is freed.
    let removed = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
        let links = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().ends_with(" (deleted)")).count()
    };
    (0..100).for_each(|n| std::fs::remove_file(world.dir.join(format!("site/{n}"))).unwrap());
    assert!(common::within(Duration::from_secs(10), || removed() == 0), "{}", removed());
}

#[test]
fn a_file_replaced_during_a_transfer_is_not_mixed() {
    let Some(world) = World::new("replaced", "rate=20M,delay=5ms,queue=100kB") else { return };
    world.file("a", &random(5_000_000));
    let _server = world.serve("udp");
    let mut client = world.client(FormatChoice::Only(Format::Udp));
    let flow = client.connect(world.v4());
    let progress = client.progress.clone();
    let end = std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(common::within(LIMIT, || progress.load(Ordering::Relaxed) > 500_000));
            world.file("b", &random(5_000_001)[1..]);
            std::fs::rename(world.dir.join("site/b"), world.dir.join("site/a")).unwrap();
        });
        client.fetch(flow, &get("/a", ""), &[MAIN], LIMIT)
    });
    let End::Failed(why) = end else { panic!("{end:?}") };
    assert_eq!(why, "the object that was being sent has changed at the server");
    let (_, body) = client.response(MAIN);
    assert!(random(5_000_000).starts_with(body));
}
