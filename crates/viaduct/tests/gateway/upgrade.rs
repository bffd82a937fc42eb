//! Upgrades of a running gateway: packets stay protected, and a new process that fails leaves
//! everything as it was.

mod flows;

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, kill_process};
use viaduct_lab::binary::copy_program;
use viaduct_lab::gateways::{Gateway, GatewaySpec};
use viaduct_lab::topology::{Host, Node};
use viaduct_lab::upgrade::{ForeignProcess, upgrade};

use super::common::upgrade::{failure, program};
use super::{eventually, lost_pings, short, system, world};

const UPGRADES: usize = 5;
/// Interval of the packets of each stream.
const INTERVAL: Duration = Duration::from_millis(2);
const PORT: u16 = 5_000;
/// Time before and after an upgrade within which losses may be due to the upgrade: the old process
/// no longer recovers packets that were lost shortly before, and for a while no repairs are sent.
const NEAR: Duration = Duration::from_millis(250);

/// Stream of numbered datagrams in one direction.
struct Stream {
    /// Time at which each datagram was sent.
    sent: Vec<Instant>,
    /// Number of times that each datagram has arrived.
    arrived: HashMap<u32, usize>,
}

fn datagram(number: u32) -> Vec<u8> {
    (0..100).flat_map(|at| number.wrapping_mul(at | 1).to_be_bytes()).collect()
}

impl Stream {
    /// Sends from one host to the other until `stop`.
    fn run(from: &Host, to: &Host, stop: &AtomicBool) -> Stream {
        let bind = |host: &Host, port: u16| {
            let at = (IpAddr::from(host.v4()), port);
            host.netns().enter(|| UdpSocket::bind(at)).unwrap().unwrap()
        };
        let (sender, receiver) = (bind(from, 0), bind(to, PORT));
        receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let to = receiver.local_addr().unwrap();
        thread::scope(|scope| {
            let sent = scope.spawn(move || {
                let (begun, mut sent) = (Instant::now(), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    sent.push(Instant::now());
                    sender.send_to(&datagram(sent.len() as u32 - 1), to).unwrap();
                    thread::sleep((INTERVAL * sent.len() as u32).saturating_sub(begun.elapsed()));
                }
                sent
            });
            let (mut arrived, mut buffer) = (HashMap::new(), [0; 2_000]);
            while let Ok(length) = receiver.recv(&mut buffer) {
                let number = u32::from_be_bytes(*buffer.first_chunk().unwrap());
                assert!(buffer[..length] == datagram(number), "a wrong byte");
                *arrived.entry(number).or_default() += 1;
            }
            Stream { sent: sent.join().unwrap(), arrived }
        })
    }

    /// Send times of the datagrams that have not arrived.
    fn lost(&self) -> Vec<Instant> {
        let is_lost = |(number, _): &(u32, &Instant)| !self.arrived.contains_key(number);
        (0..).zip(&self.sent).filter(is_lost).map(|(_, at)| *at).collect()
    }
}

/// Upgrades gateway A. Returns the new process, and the time at which it has taken over.
fn upgrade_a(run_dir: &Path) -> (ForeignProcess, Instant) {
    (upgrade(run_dir, &["--name", "site-a"]).unwrap(), Instant::now())
}

/// Times without repairs, in milliseconds, from the log.
fn pauses(log: &str) -> Vec<f64> {
    let all = log.lines().filter_map(|line| line.split("paused_ms=").nth(1));
    all.map(|rest| rest.split([' ', '\u{1b}']).next().unwrap().parse().unwrap()).collect()
}

#[test]
fn packets_stay_protected_and_none_is_altered_while_a_gateway_is_upgraded() {
    let mut world = world((1500, 1500), "rate=100M,delay=5ms,loss=1%");
    world.protect(&short()).unwrap();
    let node = world.dumbbell.gateway_a().clone();
    let (before, run_dir) = (system(&node), world.gateways().unwrap().directory().to_owned());
    // The gateways learn the losses of the link.
    lost_pings(&world, false, 100);
    let at_b = world.gateways().unwrap().b.status().unwrap().peer();
    let (sessions, recovered) = (at_b.session.handshakes, at_b.receiver.recovered);
    let stop = Arc::new(AtomicBool::new(false));
    let (a1, b1) = (world.a1().clone(), world.b1().clone());
    let streams = [(a1.clone(), b1.clone()), (b1, a1)].map(|(from, to)| {
        let stop = stop.clone();
        thread::spawn(move || Stream::run(&from, &to, &stop))
    });
    let mut all = Vec::new();
    for _ in 0..UPGRADES {
        thread::sleep(Duration::from_millis(400));
        all.push(upgrade_a(&run_dir));
    }
    thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    let streams = streams.map(|stream| stream.join().unwrap());
    check_losses(&streams, &all.iter().map(|(_, at)| *at).collect::<Vec<_>>());
    let gateways = world.gateways().unwrap();
    let pauses = pauses(&gateways.a.log());
    println!(
        "{} ms without repairs",
        pauses.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")
    );
    let short = pauses.iter().filter(|pause| **pause <= 50.0).count();
    // Other tests use the processor, too.
    assert!(pauses.len() == UPGRADES && short > UPGRADES / 2, "{pauses:?}");
    let [a, b] = [gateways.a.status().unwrap(), gateways.b.status().unwrap()];
    assert_eq!(b.peer().session.handshakes, sessions, "the sessions have continued");
    let recovered = b.peer().receiver.recovered - recovered;
    assert!(recovered >= 20, "only {recovered} packets were lost and recovered");
    assert_eq!(b.peer().session.forged + b.peer().session.replayed, 0);
    let (successor, _) = all.last().unwrap();
    assert_eq!((a.pid, a.trouble), (successor.id(), None));
    assert_eq!(system(&node), before, "routes, rules and offloads are as before");
    successor.end().unwrap();
    world.unprotect();
    assert!(!system(&node).contains("vd-sitea"), "the last process removes the TUN");
}

/// Checks the number of lost packets: near the upgrades at most one for each upgrade, and at most
/// three others.
fn check_losses(streams: &[Stream; 2], upgrades: &[Instant]) {
    for stream in streams {
        let (sent, lost) = (stream.sent.len(), stream.lost());
        let is_near = |at: &&Instant| {
            upgrades.iter().any(|upgrade| **at + NEAR > *upgrade && **at < *upgrade + NEAR)
        };
        let near = lost.iter().filter(is_near).count();
        let twice = stream.arrived.values().filter(|times| **times > 1).count();
        println!("{sent} sent, {} lost ({near} near an upgrade), {twice} twice", lost.len());
        assert!(sent > 3_000, "only {sent}");
        // The link loses one packet in a hundred.
        assert!(lost.len() - near <= 3 && near <= UPGRADES, "{} lost", lost.len());
        assert!(twice <= sent / 500, "{twice} of {sent} have arrived twice");
    }
}

#[test]
fn a_new_process_that_fails_leaves_the_old_one_at_work() {
    let mut world = world((1500, 1500), "rate=100M,delay=5ms,loss=2%");
    world.protect(&short()).unwrap();
    let node = world.dumbbell.gateway_a().clone();
    let (before, run_dir) = (system(&node), world.gateways().unwrap().directory().to_owned());
    let receive =
        "while True:\n\x20   m = s.recv(99999)\n\x20   if m.startswith(b'{\"peer\"'): break\n";
    let killed = "os.kill(os.getpid(), signal.SIGKILL)";
    let cases = [
        ("hello(7, 9)\ns.recv(9)".to_owned(), "reads state formats 7 to 9, and this one writes 1"),
        // The new process is killed: here before it is ready, and below after the old process has
        // stopped encoding.
        (format!("hello(1, 1)\n{receive}{killed}"), "has ended"),
        (format!("hello(1, 1)\n{receive}s.send(b'\"ready\"')\n{receive}{killed}"), "not upgraded"),
    ];
    for (n, (steps, expected)) in cases.iter().enumerate() {
        let program = program(&run_dir, &format!("program-{n}"), steps);
        let program = program.to_string_lossy();
        let error = failure(&run_dir, &["--name", "site-a", "--program", &program]);
        assert!(error.contains(expected) && error.contains("nothing has changed"), "{error}");
        assert!(lost_pings(&world, false, 100) <= 6, "packets are protected as before");
    }
    let gateways = world.gateways().unwrap();
    let pid = gateways.a.pid().unwrap().as_raw_nonzero().get();
    assert_eq!(gateways.a.status().unwrap().pid, pid.cast_unsigned());
    assert_eq!(system(&node), before);
    // A new process is killed after its start; the old process then enters itself in the journal
    // again.
    let gateway = gateways.a.pid().unwrap();
    let upgrading = thread::spawn(move || upgrade(&run_dir, &["--name", "site-a"]));
    let child = || child_of(gateway.as_raw_nonzero().get());
    eventually(&gateways.a, "the new process starts", || child().is_some());
    thread::sleep(Duration::from_millis(700));
    drop(ForeignProcess::of(child().unwrap()));
    let error = upgrading.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
    assert!(lost_pings(&world, false, 100) <= 6);
    world.gateways().unwrap().a.stop().unwrap();
    assert!(!system(&node).contains("proto 118"), "the old process has reverted its changes");
}

/// Child of a process, if there is one.
fn child_of(pid: i32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = |task: io::Result<fs::DirEntry>| {
        fs::read_to_string(task.ok()?.path().join("children")).ok()
    };
    let all: String = tasks.filter_map(children).collect();
    all.split_whitespace().next()?.parse().ok()
}

/// Returns whether a process has ended, even if its parent has not reaped it.
fn has_ended(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    state.map_or(true, |state| state.contains(") Z "))
}

#[test]
fn a_kill_of_the_old_process_in_the_middle_costs_no_more_than_any_kill() {
    let mut world = world((1500, 1500), "rate=100M,delay=5ms,loss=2%");
    world.protect(&short()).unwrap();
    let (node, run_dir): (Node, _) =
        (world.dumbbell.gateway_a().clone(), world.gateways().unwrap().directory().to_owned());
    let before = system(&node);
    let old = world.gateways().unwrap().a.pid().unwrap();
    let upgrading = thread::spawn(move || upgrade(&run_dir, &["--name", "site-a"]));
    let gateways = world.gateways().unwrap();
    let child = || child_of(old.as_raw_nonzero().get());
    eventually(&gateways.a, "the new process starts", || child().is_some());
    let new = child().unwrap();
    thread::sleep(Duration::from_millis(700));
    gateways.a.kill().unwrap();
    assert!(upgrading.join().unwrap().is_err());
    // Until then, it holds the sockets.
    eventually(&gateways.a, "the new process ends", || has_ended(new));
    gateways.a.start().unwrap();
    gateways.wait_until_up().unwrap();
    assert!(lost_pings(&world, false, 100) <= 6);
    assert_eq!(system(&node), before, "the next start has found the journal");
}

#[test]
fn sighup_upgrades_to_a_replaced_program_if_the_manager_follows_the_new_process() {
    let mut world = world((1500, 1500), "rate=100M,delay=1ms");
    let gateways = world.protect(&GatewaySpec::default()).unwrap();
    // Gateway A has a service manager that follows the new process. Gateway B has no service
    // manager.
    gateways.a.stop().unwrap();
    gateways.a.set_variable("NOTIFY_SOCKET", "@viaduct-upgrade-test");
    gateways.a.start().unwrap();
    gateways.wait_until_up().unwrap();
    let program = gateways.directory().join("program");
    let replace = || {
        copy_program(Path::new(env!("CARGO_BIN_EXE_viaduct")), &program.with_extension("new"))
            .unwrap();
        fs::rename(program.with_extension("new"), &program).unwrap();
    };
    replace();
    let [first, unfollowed] = ["site-a", "site-b"].map(|name| {
        let arguments = ["--name", name, "--program", &program.to_string_lossy()];
        upgrade(gateways.directory(), &arguments).unwrap()
    });
    let hang_up = |process: &ForeignProcess| {
        let pid = Pid::from_raw(process.id().cast_signed()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
    };
    let reloads = |gateway: &Gateway| gateway.log().matches("reloaded").count();
    hang_up(&first);
    eventually(&gateways.a, "the config is reloaded", || reloads(&gateways.a) == 1);
    assert_eq!(gateways.a.status().unwrap().pid, first.id());
    let config = fs::read_to_string(gateways.a.config()).unwrap();
    fs::write(gateways.a.config(), config + "# changed\n").unwrap();
    replace();
    hang_up(&first);
    let pid = || gateways.a.status().map_or(first.id(), |status| status.pid);
    eventually(&gateways.a, "the program is replaced", || pid() != first.id());
    let second = ForeignProcess::of(pid()).unwrap();
    eventually(&gateways.a, "the changed config is in force", || reloads(&gateways.a) == 2);
    hang_up(&unfollowed);
    eventually(&gateways.b, "only a reload", || reloads(&gateways.b) == 1);
    assert!(gateways.b.log().contains("restart the service"), "{}", gateways.b.log());
    assert_eq!(gateways.b.status().unwrap().pid, unfollowed.id());
    second.end().unwrap();
    unfollowed.end().unwrap();
}

#[test]
fn a_gateway_that_waited_at_its_start_upgrades_to_the_program_installed_meanwhile() {
    let mut world = world((1500, 1500), "rate=100M,delay=1ms");
    let node = world.dumbbell.gateway_a().clone();
    let gateways = world.protect(&GatewaySpec::default()).unwrap();
    gateways.a.stop().unwrap();
    let (a, directory) = (&gateways.a, gateways.directory());
    let config = fs::read_to_string(a.config()).unwrap();
    fs::write(a.config(), config + "\n[metrics]\nlisten = \"10.99.0.1:9100\"\n").unwrap();
    let program = directory.join("program");
    let install = || {
        let new = program.with_extension("new");
        copy_program(Path::new(env!("CARGO_BIN_EXE_viaduct")), &new).unwrap();
        fs::rename(new, &program).unwrap();
    };
    install();
    let mut command = node.command(&program.to_string_lossy());
    let log = fs::File::options().append(true).open(directory.join("a.log")).unwrap();
    command.arg("gateway").arg("-c").arg(a.config()).stderr(log);
    let _first = node.spawn(command).unwrap();
    eventually(a, "the gateway waits", || a.log().contains("waiting: [metrics] listen"));
    install();
    node.run("ip", &["address", "add", "10.99.0.1/32", "dev", "lo"]).unwrap();
    eventually(a, "the gateway is up", || a.status().is_ok());
    let second = upgrade(directory, &["--name", "site-a"]).unwrap();
    assert_eq!(a.status().unwrap().pid, second.id());
    second.end().unwrap();
}
