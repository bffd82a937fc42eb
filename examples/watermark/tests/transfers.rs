//! Transfers: from replicas that answer in turn over a link that loses packets, and from a process
//! that is killed halfway.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{SECRET, decoded, picture};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration as Span, Instant as Moment};
use viaduct_proto::trickles::api::Endpoint;
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::packet::{FormatChoice, Return};
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Server, Settings};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State, Stream};
use viaduct_sys::netns::Netns;
use viaduct_sys::poll::{Waker, wait};
use viaduct_sys::process::Process;
use viaduct_trickles::{ClientSettings, Connector};
use viaduct_watermark::gallery::Gallery;
use viaduct_watermark::jpeg::Jpeg;
use viaduct_watermark::mark::Key;
use viaduct_watermark::picture::Picture;

const REQUEST: &[u8] = b"GET /4711/a.jpg HTTP/1.1\r\nHost: here\r\n\r\n";
const CLIENT: u32 = 4711;

fn key() -> Key {
    Key::new(&SECRET)
}

/// Body of a response.
fn body(response: &[u8]) -> &[u8] {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    assert!(response.starts_with(b"HTTP/1.1 200 OK"));
    &response[end + 4..]
}

/// Creates a replica with its own files and its own replay window.
fn replica(file: &[u8], now: Moment) -> (Gallery, Endpoint) {
    let mut gallery = Gallery::new(key());
    gallery.add("a.jpg", Picture::open(file).unwrap());
    let replay = Replay::new(1 << 18, Span::from_secs(30), [1, 2, 3, 4], now);
    let settings = Settings { make_up: 0, ..Settings::default() };
    let server = Server::new(settings, KeyRing::new(1, &[7; 32]), replay);
    (gallery, Endpoint::new(server, 0))
}

#[test]
fn replicas_that_answer_in_turn_over_a_lossy_link_produce_one_picture() {
    let Some(file) = picture(900, 700, &["-quality", "93"]) else { return };
    let whole = Picture::open(&file).unwrap().whole(&key(), CLIENT);
    let mut now = Moment::ZERO + Span::from_secs(100);
    let mut replicas = [replica(&file, now), replica(&file, now), replica(&file, now)];
    let to =
        Return::of_datagram("192.0.2.1:4000".parse().unwrap(), "192.0.2.2:80".parse().unwrap());
    let mut client = Stream::open(Config::default(), 3, now);
    client.write(MAIN, REQUEST);
    client.shutdown(MAIN);
    let (mut rng, mut got, mut turn) = (Rng::from_seed(1), Vec::new(), 0);
    let trip = Span::from_millis(10);
    let until = now + Span::from_secs(600);
    while client.state(MAIN) == State::Open && now < until {
        let mut answers = Vec::new();
        while let Some(request) = client.poll_transmit(now) {
            let (gallery, endpoint) = &mut replicas[turn % 3];
            turn += 1;
            let lost = rng.chance(0.005);
            let Ok(event) = endpoint.accept(now, to, &request) else { continue };
            let reply = gallery.respond(endpoint.ring(), &event);
            let mut keep = |_: &mut Return, answer: &[u8]| answers.push(answer.to_vec());
            if !lost {
                endpoint.send(event, &reply, &mut (), &mut keep);
            }
        }
        now += trip;
        for answer in answers.iter().filter(|_| !rng.chance(0.01)).collect::<Vec<_>>() {
            client.handle(now, answer);
        }
        if client.poll_timeout().is_some_and(|due| due <= now) {
            client.handle_timeout(now);
        }
        while let Some(bytes) = client.read(MAIN) {
            got.extend_from_slice(&bytes);
        }
    }
    assert_eq!(client.state(MAIN), State::Finished, "{:?}", client.stats());
    assert!(client.stats().lost > 0, "{:?}", client.stats());
    assert!(body(&got) == whole, "{} bytes of {}", got.len(), whole.len());
    assert!(replicas.iter().all(|(_, endpoint)| endpoint.stats().packets > 20));
}

/// Network namespace with a directory of files.
struct World {
    netns: Netns,
    dir: PathBuf,
}

impl World {
    fn new(file: &[u8]) -> Option<World> {
        let Ok(netns) = Netns::new() else {
            eprintln!("skipped: no namespace");
            return None;
        };
        let up = netns.command("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        // Slow enough that the transfer still runs when the server is killed.
        let slow = "qdisc add dev lo root tbf rate 20mbit burst 32k latency 100ms";
        assert!(netns.command("tc").args(slow.split(' ')).status().unwrap().success());
        let dir = std::env::temp_dir().join(format!("viaduct-watermark-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("a.jpg"), file).unwrap();
        fs::write(dir.join("key"), format!("1 {}\n", "5c".repeat(32))).unwrap();
        fs::write(dir.join("mark"), SECRET.map(|byte| format!("{byte:02x}")).concat()).unwrap();
        Some(World { netns, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn serve(&self) -> Process {
        let mut command = self.netns.command(env!("CARGO_BIN_EXE_viaduct-watermark"));
        command.args(["serve", "--listen", "127.0.0.1:80", "--mark"]).arg(self.path("mark"));
        command.arg("--key").arg(self.path("key")).arg("--run-dir").arg(&self.dir);
        command.arg(self.path("a.jpg")).stderr(Stdio::piped());
        let mut server = Process::spawn(command).unwrap();
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        server
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Fetches the picture; calls `half` once more than half of `length` bytes have arrived.
fn fetch(dir: &Path, length: usize, mut half: impl FnMut()) -> Vec<u8> {
    let settings = ClientSettings {
        formats: FormatChoice::Any,
        mtu: 1500,
        untracked: true,
        instance: "watermark_test".to_owned(),
        run_dir: dir.to_owned(),
    };
    let mut connector = Connector::open(&settings, 9).unwrap();
    let flow = connector.connect("127.0.0.1:80".parse().unwrap(), Config::default()).unwrap();
    let stream = connector.stream(flow).unwrap();
    stream.write(MAIN, REQUEST);
    stream.shutdown(MAIN);
    connector.flush();
    let (mut got, mut is_half, waker) = (Vec::new(), false, Waker::new().unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "{} bytes of {length}", got.len());
        while connector.turn().unwrap() > 0 {}
        while connector.poll_event().is_some() {}
        let stream = connector.stream(flow).unwrap();
        while let Some(bytes) = stream.read(MAIN) {
            got.extend_from_slice(&bytes);
        }
        match stream.state(MAIN) {
            State::Open => {}
            State::Finished => return got,
            State::Failed(why) => panic!("{why}, after {} bytes", got.len()),
        }
        connector.flush();
        if !std::mem::replace(&mut is_half, got.len() > length / 2) && is_half {
            half();
        }
        let timeout = connector.poll_timeout().unwrap_or(Duration::from_millis(100));
        wait(&[&connector], &waker, timeout.min(Duration::from_millis(100)));
    }
}

#[test]
fn a_picture_survives_a_kill_of_its_server_and_is_watermarked() {
    let Some(file) = picture(900, 700, &["-quality", "93"]) else { return };
    let Some(world) = World::new(&file) else { return };
    world.netns.join().unwrap();
    let mut server = Some(world.serve());
    let got = fetch(&world.dir, file.len(), || {
        server.take().unwrap().kill().unwrap();
        server = Some(world.serve());
    });
    assert!(body(&got) == Picture::open(&file).unwrap().whole(&key(), CLIENT));
    fs::write(world.path("mine.jpg"), body(&got)).unwrap();
    assert_eq!(decoded(body(&got)).len(), 900 * 700 * 3);
    let mut read = world.netns.command(env!("CARGO_BIN_EXE_viaduct-watermark"));
    read.arg("read").arg("--mark").arg(world.path("mark"));
    let said = |name: &str, mut read: std::process::Command| {
        let done = read.arg(world.path(name)).output().unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    assert_eq!(said("mine.jpg", read), (true, format!("{CLIENT}\n")));
    let mut read = world.netns.command(env!("CARGO_BIN_EXE_viaduct-watermark"));
    read.arg("read").arg("--mark").arg(world.path("mark"));
    assert_eq!(said("a.jpg", read), (false, String::new()), "the file itself has no mark");
    assert_eq!(key().read(&Jpeg::parse(body(&got)).unwrap()).unwrap().client, Some(CLIENT));
}
