//! Upgrades of the ends of a tunnel: its streams end in the old processes, and new ones take links
//! of the new processes.

use std::sync::atomic::{AtomicBool, Ordering};

use viaduct_lab::upgrade::upgrade;

use super::common::there_and_back;
use super::common::upgrade::{failure, program};
use super::*;

const CARRIERS: [&str; 3] = ["--carrier tcp --links 2", "--carrier quic", "--carrier tls"];
/// Options of both ends. With early connections a server might see a connection that was begun for
/// a SYN and ends with the upgrade, because the new process begins another one.
const OPTIONS: &str = "--drain 2m --forward late";
/// Upgrades of each end.
const UPGRADES: usize = 2;
/// Pause between two upgrades.
const PAUSE: Duration = Duration::from_millis(400);
/// Pause between two new connections.
const ARRIVALS: Duration = Duration::from_millis(10);

/// Sends a word from the client to the server and back.
fn echo((client, server): &mut (TcpStream, TcpStream)) {
    let mut word = [0; 5];
    client.write_all(b"there").unwrap();
    server.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"there");
    server.write_all(b"back ").unwrap();
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"back ");
}

/// Opens connections, one after the other, until `stop`. Returns the times that they took.
fn arrive(world: &World, listener: &TcpListener, stop: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        echo(&mut world.pair(listener));
        times.push(begun.elapsed());
        thread::sleep(ARRIVALS);
    }
    times
}

#[test]
fn an_upgrade_of_either_end_resets_and_refuses_nothing() {
    for carrier in CARRIERS {
        let world = World::new("rate=50M,delay=5ms", &format!("{carrier} {OPTIONS}"));
        let ip = world.addresses()[0];
        let (listener, bulk) = (world.listen(ip), world.listen_at(ip, PORT + 1));
        let mut kept = vec![world.pair(&listener)];
        let (client, server) = world.pair(&bulk);
        let stop = AtomicBool::new(false);
        let (processes, mut times) = thread::scope(|scope| {
            let transfer = scope.spawn(|| there_and_back(client, server, &random(15_000_000)));
            let arrivals = scope.spawn(|| arrive(&world, &listener, &stop));
            let mut processes = Vec::new();
            for _ in 0..UPGRADES {
                for end in [&world.far, &world.near] {
                    thread::sleep(PAUSE);
                    processes.push(upgrade(end.directory(), &[]).unwrap());
                }
            }
            transfer.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            (processes, arrivals.join().unwrap())
        });
        kept.push(world.pair(&listener));
        kept.iter_mut().for_each(echo);
        times.sort_unstable();
        println!("{carrier}: {} connections, at most {:?}", times.len(), times.last());
        // A connection waits for the dial of a link: some tenths of a second on an idle machine.
        assert!(times.len() > 10 && times.last() < Some(&Duration::from_secs(3)), "{times:?}");
        // The first connection keeps the first processes alive, but not those in between.
        let (between, last) = processes.split_last_chunk::<2>().unwrap();
        until(&format!("{carrier}: processes without flows end"), || {
            between.iter().all(|process| process.has_ended())
        });
        assert!(!world.near.log().contains("ERROR"), "{}", world.near.log());
        for (client, server) in kept {
            there_and_back(client, server, &random(100_000));
        }
        for process in last.iter().rev() {
            process.end().unwrap();
        }
    }
}

#[test]
fn a_failed_upgrade_leaves_the_tunnel_and_its_listeners_as_they_were() {
    for carrier in CARRIERS {
        let world = World::new("delay=1ms", &format!("{carrier} {OPTIONS}"));
        let listener = world.listen(world.addresses()[0]);
        let to = listener.local_addr().unwrap();
        let mut flow = world.pair(&listener);
        let steps = "hello(1, 1)\ns.recv(99999)\ns.send(b'\"ready\"')\ns.recv(9)\n\
                     os.kill(os.getpid(), signal.SIGKILL)";
        for end in [&world.far, &world.near] {
            let program = program(end.directory(), "program", steps);
            let error = failure(end.directory(), &["--program", &program.to_string_lossy()]);
            assert!(error.contains("nothing has changed"), "{error}");
            echo(&mut flow);
            echo(&mut world.pair(&listener));
        }
        // Another near end gets a link.
        let node = world.chain.server();
        let other = format!("--listen 127.0.0.1:7001 --to {to} --tunnel 10.3.0.1:7100 {carrier}");
        let _other = proxy(node, &other, &world.keys, [1, 2]);
        let connect = || TcpStream::connect("127.0.0.1:7001").unwrap();
        let client = node.netns().enter(connect).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        echo(&mut (client, listener.accept().unwrap().0));
        // The next upgrade succeeds.
        let processes = [&world.far, &world.near].map(|end| upgrade(end.directory(), &[]).unwrap());
        echo(&mut flow);
        echo(&mut world.pair(&listener));
        drop(flow);
        processes.iter().for_each(|process| process.end().unwrap());
    }
}
