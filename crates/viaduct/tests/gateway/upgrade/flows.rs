//! Upgrades of gateways in split mode: which flows continue and which are cut, including when one
//! of the processes is killed or gets SIGTERM in the middle.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::process::Signal;
use viaduct_lab::gateways::{GatewaySpec, Gateways};
use viaduct_lab::upgrade::{ForeignProcess, upgrade};
use viaduct_lab::world::World;

use super::{PORT, upgrade_a};
use crate::common::upgrade::{Relay, failure};
use crate::common::{random, within_some};
use crate::{eventually, split, system, world};

/// Time limit for a connection to be established, and for its next bytes.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// Number of flows of a gateway with two event loops. A flow's port selects its loop; the
/// probability that all flows share one loop is 1 in 2,048.
const FLOWS: u64 = 12;

/// World with gateways in split mode.
struct SplitWorld {
    world: World,
    /// Servers. Flows to the second one have a handler, so they stay in their process.
    servers: [TcpListener; 2],
    /// State of gateway A's machine without the gateway.
    clean: String,
    /// State of gateway A's machine before the first flow.
    before: String,
}

impl SplitWorld {
    /// Starts gateways whose table `[split]` has the lines `options`.
    fn new(options: &str) -> SplitWorld {
        let mut world = world((1500, 1500), "rate=100M,delay=5ms,loss=1%");
        let clean = system(world.dumbbell.gateway_a());
        let own = "['10.{own}.0.0/16', 'fd00:{own}::/48']";
        let chain = format!("ports = ['{}']\nhandlers = ['compress']\n", PORT + 1);
        let mut spec = GatewaySpec::default().split();
        spec.tables = format!(
            "[split]\n{options}[[policy]]\nfrom = {own}\n{chain}\
             [[policy]]\nto = {own}\nside = 'accept'\n{chain}"
        );
        world.protect(&spec).unwrap();
        let before = system(world.dumbbell.gateway_a());
        let servers = [PORT, PORT + 1].map(|port| {
            let at = (IpAddr::from(world.b1().v4()), port);
            let server = world.b1().netns().enter(|| TcpListener::bind(at)).unwrap().unwrap();
            server.set_nonblocking(true).unwrap();
            server
        });
        SplitWorld { world, servers, clean, before }
    }

    fn gateways(&self) -> &Gateways {
        self.world.running().unwrap()
    }

    /// Process of gateway A.
    fn process(&self) -> ForeignProcess {
        ForeignProcess::of(self.gateways().a.status().unwrap().pid).unwrap()
    }

    /// Connects to one of the servers, which sends everything back.
    fn connect(&self, server: &TcpListener) -> TcpStream {
        let to = server.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&to, TIME_LIMIT);
        let client = self.world.a1().netns().enter(connect).unwrap().unwrap();
        client.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        client.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        let accepted = within_some(TIME_LIMIT, || server.accept().ok());
        let (stream, _) = accepted.expect("the connection does not reach the server");
        thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        client
    }

    /// Opens a flow to each server, and checks both.
    fn flows(&self) -> [TcpStream; 2] {
        let flows = self.servers.each_ref().map(|server| self.connect(server));
        flows.iter().for_each(check_echo);
        flows
    }

    /// Number of gateway A's open flows.
    fn open(&self) -> u64 {
        split::split(&self.gateways().a, "open").as_u64().unwrap()
    }

    /// Starts an upgrade of gateway A to the program `relay`. The upgrade is expected to fail; the
    /// thread returns its error message.
    fn fail_to_upgrade(&self, relay: &Relay) -> JoinHandle<String> {
        let (run_dir, program) = (self.gateways().directory().to_owned(), relay.path.clone());
        thread::spawn(move || {
            failure(&run_dir, &["--name", "site-a", "--program", &program.to_string_lossy()])
        })
    }

    /// Waits until the rules and routes of gateway A's machine are as before the first flow. The
    /// rules remember the addresses of each SYN for a few seconds (`nft::intercept`).
    fn wait_for_rules(&self) {
        let are_as_before = || system(self.world.dumbbell.gateway_a()) == self.before;
        eventually(&self.gateways().a, "routes and rules as before", are_as_before);
    }

    /// Stops the gateways, and checks that the last process of gateway A has reverted all changes.
    fn check_end(mut self) {
        self.world.unprotect();
        assert_eq!(system(self.world.dumbbell.gateway_a()), self.clean);
    }
}

/// Sends bytes over a flow, and checks those that return.
fn check_echo(client: &TcpStream) {
    let data = random(300_000);
    thread::scope(|scope| {
        scope.spawn(|| (&mut &*client).write_all(&data).unwrap());
        let mut echo = vec![0; data.len()];
        (&mut &*client).read_exact(&mut echo).unwrap();
        assert!(echo == data, "a wrong byte");
    });
}

/// Checks all flows at the same time.
fn check_all(flows: &[TcpStream]) {
    thread::scope(|scope| {
        for flow in flows {
            scope.spawn(move || check_echo(flow));
        }
    });
}

/// Waits until an idle flow ends. Returns false if it is still open after the time limit.
fn is_cut(client: &TcpStream) -> bool {
    match (&mut &*client).read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn flows_of_split_mode_are_not_cut_by_an_upgrade() {
    let split = SplitWorld::new("");
    let (gateways, first) = (split.gateways(), split.process());
    let flows = split.flows();
    let (second, _) = upgrade_a(gateways.directory());
    flows.iter().for_each(check_echo);
    assert!(!first.has_ended(), "the flow with a handler stays in the old process");
    drop(split.flows());
    eventually(&gateways.a, "the plain flow goes on", || split.open() == 1);
    let other = upgrade(gateways.directory(), &["--name", "site-b"]).unwrap();
    flows.iter().for_each(check_echo);
    let [one, chained] = flows;
    drop(chained);
    eventually(&gateways.a, "the old process ends", || first.has_ended());
    check_echo(&one);
    let status = gateways.a.status().unwrap();
    assert_eq!((status.pid, status.trouble), (second.id(), None));
    split.wait_for_rules();
    drop(one);
    second.end().unwrap();
    other.end().unwrap();
    split.check_end();
}

#[test]
fn flows_of_several_event_loops_are_not_cut_by_an_upgrade() {
    let split = SplitWorld::new("workers = 2\n");
    let (gateways, first) = (split.gateways(), split.process());
    let connect = || (0..FLOWS).map(|_| split.connect(&split.servers[0])).collect::<Vec<_>>();
    let flows = connect();
    check_all(&flows);
    let run_dir = gateways.directory().to_owned();
    let upgrading = thread::spawn(move || upgrade_a(&run_dir));
    while !upgrading.is_finished() {
        check_all(&flows);
    }
    let (second, _) = upgrading.join().unwrap();
    eventually(&gateways.a, "the old process has no flow left", || first.has_ended());
    check_all(&flows);
    eventually(&gateways.a, "two event loops", || event_loops(second.id()) == 2);
    // The listeners of both loops have been handed over, too.
    let others = connect();
    check_all(&others);
    eventually(&gateways.a, "all flows", || split.open() == 2 * FLOWS);
    assert_eq!(gateways.a.status().unwrap().pid, second.id());
    drop((flows, others));
    second.end().unwrap();
    split.check_end();
}

/// Number of the event loops of a process that has several.
fn event_loops(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("flows-")).count()
}

#[test]
fn a_flow_that_the_new_process_has_outlives_a_kill_of_the_old_one() {
    let split = SplitWorld::new("");
    let gateways = split.gateways();
    let [plain, chained] = split.flows();
    // At the message `end` the old process has paused, and has sent everything.
    let relay = Relay::new(gateways.directory(), "relay", "\"end\"", "kill(old)");
    let upgrading = split.fail_to_upgrade(&relay);
    while !upgrading.is_finished() {
        check_echo(&plain);
    }
    let error = upgrading.join().unwrap();
    assert!(error.contains("the service has ended"), "{error}");
    let new = ForeignProcess::of(relay.pid()).unwrap();
    let serves = || gateways.a.status().is_ok_and(|status| status.pid == new.id());
    eventually(&gateways.a, "the new process serves", serves);
    assert!(is_cut(&chained), "the flow with a handler was only in the old process");
    check_echo(&plain);
    drop(split.flows());
    eventually(&gateways.a, "the plain flow goes on", || split.open() == 1);
    let recovered = || gateways.b.status().unwrap().peer().receiver.recovered;
    let before = recovered();
    eventually(&gateways.b, "packets are recovered", || {
        check_echo(&plain);
        recovered() > before
    });
    split.wait_for_rules();
    assert_eq!(gateways.a.status().unwrap().trouble, None);
    drop((plain, chained));
    new.end().unwrap();
    split.check_end();
}

#[test]
fn a_kill_of_the_old_process_before_all_is_sent_cuts_its_flows_and_no_later_ones() {
    let mut split = SplitWorld::new("");
    let flows = split.flows();
    // The relay kills the old process and ends instead of passing on `end`; the new process has
    // received everything before.
    let action = "kill(old), sys.exit()";
    let relay = Relay::new(split.gateways().directory(), "relay", "\"end\"", action);
    let error = split.fail_to_upgrade(&relay).join().unwrap();
    assert!(error.contains("the service has ended"), "{error}");
    assert!(flows.iter().all(is_cut), "a flow was not cut");
    eventually(&split.gateways().a, "the new process ends", || relay.has_ended());
    let gateways = split.world.gateways().unwrap();
    gateways.a.kill().unwrap();
    gateways.a.start().unwrap();
    gateways.wait_until_up().unwrap();
    drop((flows, split.flows()));
    // The next start has found the journal of the new process.
    split.wait_for_rules();
    split.check_end();
}

#[test]
fn flows_survive_a_new_process_that_is_killed_after_it_has_received_them() {
    let split = SplitWorld::new("");
    let (gateways, old) = (split.gateways(), split.process());
    let flows = split.flows();
    for (n, message) in ["{\"flows\"", "\"end\""].iter().enumerate() {
        let name = format!("relay-{n}");
        let relay = Relay::new(gateways.directory(), &name, message, "kill(new)");
        let upgrading = split.fail_to_upgrade(&relay);
        while !upgrading.is_finished() {
            flows.iter().for_each(check_echo);
        }
        let error = upgrading.join().unwrap();
        assert!(error.contains("nothing has changed"), "{message}: {error}");
        assert!(relay.has_ended());
        flows.iter().for_each(check_echo);
        drop(split.flows());
        eventually(&gateways.a, "both flows go on", || split.open() == 2);
    }
    let status = gateways.a.status().unwrap();
    assert_eq!((status.pid, status.trouble), (old.id(), None));
    drop(flows);
    split.check_end();
}

#[test]
fn sigterm_during_an_upgrade_cuts_all_flows_and_reverts_all_changes() {
    let split = SplitWorld::new("");
    let (gateways, old) = (split.gateways(), split.process());
    let flows = split.flows();
    let relay = Relay::new(gateways.directory(), "relay", "\"ready\"", "hold()");
    let upgrading = split.fail_to_upgrade(&relay);
    eventually(&gateways.a, "the new process is ready", || relay.holds());
    gateways.a.signal(Signal::TERM).unwrap();
    assert!(flows.iter().all(is_cut), "SIGTERM cuts all flows immediately");
    eventually(&gateways.a, "the old process ends", || old.has_ended());
    relay.release();
    upgrading.join().unwrap();
    assert!(relay.has_ended(), "the old process has ended the new one");
    assert_eq!(system(split.world.dumbbell.gateway_a()), split.clean);
    assert!(gateways.a.status().is_err());
    // The kernel of gateway A's machine forwards new connections, without splitting them.
    check_echo(&split.connect(&split.servers[0]));
}
