//! `viaduct serve --replicas`: secrets that two servers derive from a root, in a file or in etcd.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_sys::process::Process;

use crate::common::etcd::Etcd;
use crate::common::{free_port, random, until, within};
use crate::world::{End, SHARED, World};

const LIMIT: Duration = Duration::from_secs(20);

fn make(words: &[&str], file: &Path) {
    let mut key = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    let made = key.args(["key", "replicas"]).args(words).arg(file).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn a_replica_continues_what_another_began_across_new_roots() {
    let Some(world) = World::new("roots", "rate=20M,delay=5ms,queue=200kB") else { return };
    let big = random(8_000_000);
    world.file("big.bin", &big);
    world.share_address();
    let (first, second) = (world.dir.join("b1.toml"), world.dir.join("b2.toml"));
    make(&["--period", "10s", "--out"], &first);
    fs::copy(&first, &second).unwrap();
    let serve = |host: usize, file: &Path| {
        let words = ["--trickles", "tcp", "--replicas", file.to_str().unwrap()];
        world.serve_in(host, &words, || world.connect_plain_to(host).is_ok())
    };
    let (_b1, _b2) = (serve(0, &first), serve(1, &second));
    world.lead_to(0);
    let mut client = world.client(FormatChoice::Only(Format::Tcp));
    let flow = client.connect(SHARED.into());
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            make(&["--after", "1s", "--add"], &first);
            fs::copy(&first, &second).unwrap();
            std::thread::sleep(Duration::from_millis(1_300));
            world.lead_to(1);
        });
        let get = "GET /big.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.fetch(flow, get, &[MAIN], LIMIT)
    });
    assert_eq!(done, End::Finished);
    assert!(client.response(MAIN).1 == big);
    let of = |host| world.status_of(host)["trickles"]["answered"].as_u64().unwrap();
    assert!(within(LIMIT, || of(0) > 100 && of(1) > 100), "{} {}", of(0), of(1));
}

#[test]
fn secrets_in_etcd_are_followed_and_stay_in_force_while_it_is_down() {
    let dir = std::env::temp_dir().join(format!("viaduct-etcd-{}", std::process::id()));
    fs::create_dir_all(dir.join("site")).unwrap();
    let mut etcd = Etcd::start(&dir);
    let file = dir.join("replicas.toml");
    make(&["--period", "1h", "--out"], &file);
    let (port, run_dir) = (free_port(), dir.join("run"));
    let start = |etcd: &Etcd, log: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        command.arg("serve").arg(dir.join("site"));
        command.args(["--listen", &format!("127.0.0.1:{port}"), "--trickles", "udp"]);
        command.args(["--replicas", &format!("etcd://127.0.0.1:{}/viaduct/www", etcd.port)]);
        let log = fs::File::create(dir.join(log)).unwrap();
        Process::spawn({
            command.arg("--run-dir").arg(&run_dir).stderr(log);
            command
        })
        .unwrap()
    };
    let log = |log: &str| fs::read_to_string(dir.join(log)).unwrap();

    let mut refused = start(&etcd, "no-key");
    until("the server refuses", || refused.try_wait().unwrap().is_some());
    assert!(log("no-key").contains("there is no such key"), "{}", log("no-key"));

    etcd.put("viaduct/www", &fs::read(&file).unwrap());
    let server = start(&etcd, "first");
    assert!(within(LIMIT, || log("first").contains("serving")), "{}", log("first"));
    make(&["--add"], &file);
    etcd.put("viaduct/www", &fs::read(&file).unwrap());
    let changed = "the secrets of the replicas have changed";
    assert!(within(LIMIT, || log("first").contains(changed)), "{}", log("first"));

    etcd.stop();
    let gone = "the current secrets stay in force";
    assert!(within(LIMIT, || log("first").contains(gone)), "{}", log("first"));
    drop(server);
    let _server = start(&etcd, "second");
    assert!(within(LIMIT, || log("second").contains("serving")), "{}", log("second"));
    assert!(log("second").contains("its copy is used"), "{}", log("second"));
    etcd.restart();
    assert!(within(LIMIT, || log("second").contains("can be read again")), "{}", log("second"));
    fs::remove_dir_all(&dir).unwrap();
}
