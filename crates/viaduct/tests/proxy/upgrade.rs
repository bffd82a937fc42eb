//! Upgrades of a running proxy: no connection is refused or reset and no byte is wrong, and a new
//! process that fails, at any step, leaves everything as it was.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use viaduct_lab::proxies::Proxy;
use viaduct_lab::upgrade::upgrade;

use super::common::upgrade::{failure, program};
use super::{PORT, World, chain, echo};

const UPGRADES: usize = 20;
/// Flows during the upgrades: some that are always busy, and some whose client is too slow, so that
/// bytes wait in the proxy.
const BUSY: usize = 45;
const SLOW: usize = 5;
/// Pause between two new connections.
const ARRIVALS: Duration = Duration::from_millis(10);

/// Byte at a position of each stream.
fn pattern(position: usize) -> u8 {
    (position % 251) as u8
}

/// Serves a stream of [`pattern`] until `stop`, with or without pauses as the client requests, and
/// then sends its length in eight bytes. If the client requests an echo instead, echoes a word.
fn serve(mut stream: TcpStream, stop: &AtomicBool) {
    let mut kind = [0];
    if stream.read_exact(&mut kind).is_err() {
        return;
    }
    if kind == *b"e" {
        let mut word = [0; 5];
        stream.read_exact(&mut word).unwrap();
        return stream.write_all(&word).unwrap();
    }
    let (mut position, size) = (0, if kind == *b"b" { 4 << 10 } else { 64 << 10 });
    while !stop.load(Ordering::Relaxed) {
        let chunk: Vec<u8> = (position..position + size).map(pattern).collect();
        stream.write_all(&chunk).unwrap();
        position += size;
        if kind == *b"b" {
            thread::sleep(Duration::from_millis(10));
        }
    }
    stream.write_all(&position.to_be_bytes()).unwrap();
}

/// Reads a stream and checks each byte. Returns the longest pause between two reads.
fn read_stream(mut stream: TcpStream, is_slow: bool) -> Duration {
    stream.write_all(if is_slow { b"s" } else { b"b" }).unwrap();
    let (mut all, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    let mut position = 0;
    loop {
        let read = stream.read(&mut chunk).unwrap();
        if read == 0 {
            break;
        }
        longest = longest.max(last.elapsed());
        last = Instant::now();
        all.extend(&chunk[..read]);
        // The last eight bytes may be the length.
        while all.len() > 8 {
            let check = all.len() - 8;
            let wrong =
                all[..check].iter().zip(position..).find(|(byte, at)| **byte != pattern(*at));
            assert!(wrong.is_none(), "a wrong byte: {wrong:?}");
            position += check;
            drop(all.drain(..check));
        }
        if is_slow {
            thread::sleep(Duration::from_millis(2));
        }
    }
    let length = usize::from_be_bytes(all.try_into().unwrap());
    assert_eq!(position, length, "bytes are missing at the end");
    longest
}

/// Opens connections, one after the other, until `stop`. Returns their number.
fn arrive(to: SocketAddr, stop: &AtomicBool) -> usize {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"eabcde").unwrap();
        let mut word = [0; 5];
        stream.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"abcde");
        count += 1;
        thread::sleep(ARRIVALS);
    }
    count
}

/// Runs all clients, in this thread's namespace, until `stop`. Returns the number of new
/// connections, and the longest pauses of the busy flows.
fn clients(ip: IpAddr, stop: &Arc<AtomicBool>) -> (usize, Vec<Duration>) {
    let to = SocketAddr::new(ip, PORT);
    thread::scope(|scope| {
        let reader = |is_slow| {
            let stream = TcpStream::connect(to).unwrap();
            scope.spawn(move || read_stream(stream, is_slow))
        };
        let busy: Vec<_> = (0..BUSY).map(|_| reader(false)).collect();
        let slow: Vec<_> = (0..SLOW).map(|_| reader(true)).collect();
        let arrived = scope.spawn(|| arrive(to, stop)).join().unwrap();
        for flow in slow {
            flow.join().unwrap();
        }
        (arrived, busy.into_iter().map(|flow| flow.join().unwrap()).collect())
    })
}

#[test]
fn upgrades_refuse_and_reset_nothing_and_lose_no_byte() {
    let world = World::new("delay=1ms");
    let ip = world.addresses()[0];
    let (listener, stop) = (world.listen(ip), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, stop) = (stream.unwrap(), stopped.clone());
            thread::spawn(move || serve(stream, &stop));
        }
    });
    let (run_dir, stops) = (world.proxy.directory().to_owned(), stop.clone());
    let upgrades = thread::spawn(move || {
        // After an error the last process must continue, or streams would end early.
        let (mut all, mut failed) = (Vec::new(), None);
        while all.len() < UPGRADES && failed.is_none() {
            thread::sleep(Duration::from_millis(250));
            match upgrade(&run_dir, &[]) {
                Ok(process) => all.push(process),
                Err(error) => failed = Some(error),
            }
        }
        thread::sleep(Duration::from_millis(250));
        stops.store(true, Ordering::Relaxed);
        (all, failed)
    });
    let (arrived, mut pauses) = world.chain.client().netns().enter(|| clients(ip, &stop)).unwrap();
    let (all, failed) = upgrades.join().unwrap();
    assert!(failed.is_none(), "after {} upgrades: {failed:?}", all.len());
    // On an idle machine there are some hundreds.
    assert!(arrived > UPGRADES * 2, "only {arrived} connections");
    pauses.sort_unstable();
    println!("{arrived} connections; longest pauses of {BUSY} flows: {pauses:?}");
    // On an idle machine a pause takes some milliseconds. Here, other tests use the processor too.
    assert!(pauses[BUSY / 2] < Duration::from_secs(3), "{pauses:?}");
    let tables = || world.hop().run("nft", &["list", "tables"]).unwrap();
    assert!(tables().contains("viaduct_proxy_7000"));
    all.last().unwrap().end().unwrap();
    assert!(!tables().contains("viaduct_proxy_7000"), "the last process reverts the rules");
}

#[test]
fn a_new_process_that_fails_at_any_step_leaves_all_as_it_was() {
    let world = World::new("delay=1ms");
    let (ip, run_dir) = (world.addresses()[0], world.proxy.directory());
    let listener = world.listen(ip);
    let mut client = world.connect(ip).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    echo(&mut client, &mut server);
    let killed = "os.kill(os.getpid(), signal.SIGKILL)";
    let cases = [
        ("hello(7, 9)\ns.recv(9)".to_owned(), "reads state formats 7 to 9, and this one writes 1"),
        ("s.send(b'what')\ns.recv(9)".to_owned(), "not a message of format 1"),
        (killed.to_owned(), "has ended"),
        (format!("hello(1, 1)\ns.recv(99999)\n{killed}"), "has ended"),
        (
            "hello(1, 1)\ns.recv(99999)\ns.send(b'{\"refused\":{\"reason\":\"no room\"}}')\n\
             s.recv(9)"
                .to_owned(),
            "no room",
        ),
        (
            format!("hello(1, 1)\ns.recv(99999)\ns.send(b'\"ready\"')\ns.recv(9)\n{killed}"),
            "not upgraded",
        ),
        ("hello(1, 1)\ns.recv(99999)\ns.send(b'\"taken\"')\ns.recv(9)".to_owned(), "out of order"),
    ];
    for (n, (steps, expected)) in cases.iter().enumerate() {
        let program = program(run_dir, &format!("program-{n}"), steps);
        let error = failure(run_dir, &["--program", &program.to_string_lossy()]);
        assert!(error.contains(expected) && error.contains("nothing has changed"), "{error}");
        echo(&mut client, &mut server);
        let mut other = world.connect(ip).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        echo(&mut other, &mut accepted);
    }
    let error = failure(run_dir, &["--program", "/bin/true"]);
    assert!(error.contains("exit status: 0"), "{error}");
    // After all these failures the proxy still works.
    let new = upgrade(run_dir, &[]).unwrap();
    echo(&mut client, &mut server);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    drop((client, server));
    new.end().unwrap();
}

#[test]
fn a_stop_aborts_an_upgrade_in_progress_and_refuses_further_ones() {
    let mut world = World::new("delay=1ms");
    let (ip, run_dir) = (world.addresses()[0], world.proxy.directory().to_owned());
    let listener = world.listen(ip);
    let mut client = world.connect(ip).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let held = run_dir.join("held");
    let steps = format!(
        "hello(1, 1)\ns.recv(99999)\nopen('{}', 'w').close()\ns.recv(99999)",
        held.display()
    );
    let program = program(&run_dir, "program", &steps).display().to_string();
    let error = thread::scope(|scope| {
        let upgrading = scope.spawn(|| failure(&run_dir, &["--program", &program]));
        while !held.exists() {
            assert!(!upgrading.is_finished(), "the program does not start");
            thread::sleep(Duration::from_millis(5));
        }
        let pid = Pid::from_raw(world.proxy.process().id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        upgrading.join().unwrap()
    });
    assert!(error.contains("nothing has changed"), "{error}");
    assert!(!error.contains("does not answer"), "the new process was waited for: {error}");
    let error = failure(&run_dir, &[]);
    assert!(error.contains("the service is stopping"), "{error}");
    echo(&mut client, &mut server);
    drop((client, server));
    assert!(world.proxy.process().wait().unwrap().success());
}

#[test]
fn a_kill_of_the_old_process_in_the_middle_costs_no_more_than_any_kill() {
    let mut world = World::new("delay=1ms");
    let (ip, run_dir) = (world.addresses()[0], world.proxy.directory().to_owned());
    let listener: TcpListener = world.listen(ip);
    let steps = "hello(1, 1)\ns.recv(99999)\ns.send(b'\"ready\"')\ns.recv(99999)\n\
                 os.kill(os.getppid(), signal.SIGKILL)";
    let program = program(&run_dir, "program", steps);
    let error = failure(&run_dir, &["--program", &program.to_string_lossy()]);
    assert!(error.contains("the service has ended"), "{error}");
    assert!(!world.proxy.process().wait().unwrap().success());
    let arguments = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0", "--run-dir"];
    let run_dir = run_dir.to_string_lossy().into_owned();
    let arguments: Vec<&str> = arguments.into_iter().chain([run_dir.as_str()]).collect();
    let _again = Proxy::start(&world.chain.hops()[0], &arguments).unwrap();
    let mut client = world.connect(ip).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    echo(&mut client, &mut server);
}

#[test]
fn a_proxy_on_demand_reports_that_it_cannot_be_upgraded() {
    let chain = chain("delay=1ms");
    let arguments = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0", "--on-demand"];
    let proxy = Proxy::start(&chain.hops()[0], &arguments).unwrap();
    let error = failure(proxy.directory(), &["--name", "proxy-7000"]);
    assert!(error.contains("on-demand") && error.contains("restart"), "{error}");
}
