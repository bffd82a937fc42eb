//! Changes on a real system: external tools see them, and all are undone by restore, by drop, and
//! by the next start after kill -9.

mod common;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Host, host_behind, is_root, pair};
use viaduct_sys::capture::ring::{Direction, Ring, RingConfig};
use viaduct_sys::journal::{Changes, JournalError};
use viaduct_sys::nft::mss_clamp::MssClamp;
use viaduct_sys::socket::udp::UdpBatch;

const JOURNAL: &str = "VIADUCT_TEST_JOURNAL";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn journal(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("viaduct-{test}-{}.json", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn clamp() -> MssClamp {
    let peers =
        vec![(ip("10.2.0.0"), 16), (ip("10.9.0.0"), 24), (ip("10.2.3.0"), 24), (ip("fd02::"), 48)];
    MssClamp { instance: "test".into(), interface: "va".into(), peers, max_packet: 1400 }
}

/// Makes a change of each kind.
fn change_everything(path: &Path) -> Changes {
    let mut changes = Changes::open(path).expect("open");
    changes.offload_off("va").expect("offload");
    changes.route_mtu((ip("10.2.0.0"), 16), "va", 1400).expect("route");
    changes.route_mtu((ip("10.9.0.0"), 24), "va", 1400).expect("connected route");
    changes.route_mtu((ip("10.7.0.0"), 16), "va", 1400).expect("route through the default gateway");
    changes.route_mtu((ip("fd02::"), 48), "va", 1400).expect("route");
    changes.route_mtu((ip("fd07::"), 16), "va", 1400).expect("route through the default gateway");
    changes.mss_clamp(clamp()).expect("clamp");
    changes.sysctl("net/ipv4/conf/va/rp_filter", "2").expect("sysctl");
    changes
}

/// Creates a host with routes of every kind towards the other end.
fn world() -> (Host, Host) {
    let (left, right) = pair();
    left.sh("ip route add 10.2.0.0/16 via 10.9.0.2 proto static metric 50 mtu 1450
         ip route add 10.2.3.0/24 via 10.9.0.2 src 10.9.0.1
         ip route add 10.2.4.0/24 via 10.9.0.2 mtu 1300
         ip route add default via 10.9.0.2 metric 7
         ip route add fd02::/48 via fd09::2 metric 99
         ip route add default via fd09::2
         ip route add blackhole 10.66.0.0/16
         nft add table inet other
         echo 1 > /proc/sys/net/ipv4/conf/va/rp_filter");
    (left, right)
}

/// Returns the state that the changes concern, as other programs see it.
fn seen(host: &Host) -> String {
    let routes = |host: &Host, family| {
        // The kernel may add link-local routes at any time, and the order of routes does not
        // matter.
        let text = host.sh(&format!("ip {family} route"));
        let mut lines: Vec<_> = text.lines().filter(|line| !line.starts_with("fe80::")).collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    let rest = host.sh("ethtool -k va; nft list ruleset; cat /proc/sys/net/ipv4/conf/va/rp_filter");
    [routes(host, "-4"), routes(host, "-6"), rest].join("\n--\n")
}

fn assert_changed(now: &str) {
    for part in [
        "10.2.0.0/16 via 10.9.0.2 dev va proto 118 metric 50 mtu lock 1400",
        "10.2.3.0/24 via 10.9.0.2 dev va proto 118 src 10.9.0.1 mtu lock 1400",
        "10.2.4.0/24 via 10.9.0.2 dev va mtu 1300",
        "10.9.0.0/24 dev va proto 118 scope link src 10.9.0.1 mtu lock 1400",
        "10.7.0.0/16 via 10.9.0.2 dev va proto 118 metric 7 mtu lock 1400",
        "fd02::/48 via fd09::2 dev va proto 118 metric 99 mtu lock 1400",
        "fd00::/16 via fd09::2",
        "tcp-segmentation-offload: off",
        "table inet viaduct_test",
        "table inet other",
    ] {
        let part = part.replace("fd00::/16", "fd07::/16");
        assert!(now.contains(&part), "{part} in\n{now}");
    }
    assert!(now.ends_with("\n2\n"), "{now}");
}

#[test]
fn offloads_that_are_switched_on_later_are_switched_off_and_restored() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    left.sh("ethtool -K va gro off");
    let path = journal("offload-later");
    let mut changes = left.run(move || {
        let mut changes = Changes::open(&path).expect("open");
        changes.offload_off("va").expect("offload");
        changes
    });
    left.sh("ethtool -K va gro on");
    let changes = left.run(move || {
        changes.repeat(changes.mark()).expect("switched off as well");
        changes
    });
    let gro = || left.sh("ethtool -k va").contains("generic-receive-offload: on");
    assert!(!gro());
    left.run(move || changes.restore().expect("restore"));
    assert!(gro(), "as it was before the repetition");
}

#[test]
fn restore_and_drop_undo_everything() {
    if !is_root() {
        return;
    }
    let (left, _right) = world();
    let path = journal("restore");
    let before = seen(&left);
    for by_drop in [false, true] {
        let at = path.clone();
        let changes = left.run(move || change_everything(&at));
        assert_changed(&seen(&left));
        let text = std::fs::read_to_string(&path).expect("the journal exists");
        assert!(text.contains("rp_filter"), "{text}");
        match by_drop {
            false => left.run(move || changes.restore().expect("restore")),
            true => left.run(move || drop(changes)),
        }
        assert_eq!(seen(&left), before);
        assert!(!path.exists(), "the journal still exists");
    }
}

#[test]
#[ignore = "not a test: the process that the next test kills"]
fn the_killed_owner() {
    let Some(path) = std::env::var_os(JOURNAL) else { return };
    let _changes = change_everything(Path::new(&path));
    println!("\nready");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn the_next_start_after_a_kill_undoes_everything() {
    if !is_root() {
        return;
    }
    let (left, _right) = world();
    let path = journal("kill");
    let before = seen(&left);
    let at = path.clone();
    let mut owner = left.run(move || {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--ignored", "--exact", "the_killed_owner", "--nocapture"]).env(JOURNAL, at);
        command.process_group(0).stdout(Stdio::piped()).spawn().expect("starts")
    });
    let mut lines = BufReader::new(owner.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("readable") == "ready"), "the owner has made no changes");
    assert_changed(&seen(&left));

    let at = path.clone();
    let busy = left.run(move || Changes::open(&at)).expect_err("the owner is alive");
    assert!(matches!(busy, JournalError::Busy { pid, .. } if pid == owner.id()), "{busy}");
    assert_changed(&seen(&left));

    owner.kill().expect("kill -9");
    owner.wait().expect("reaped");
    assert_changed(&seen(&left));
    let at = path.clone();
    let next = left.run(move || Changes::open(&at)).expect("the owner is dead");
    assert_eq!(next.warnings(), [] as [&str; 0]);
    assert_eq!(seen(&left), before);
    left.run(move || next.restore().expect("nothing to do"));
    assert!(!path.exists());
}

#[test]
fn a_change_that_fails_leaves_nothing_behind() {
    if !is_root() {
        return;
    }
    let (left, _right) = world();
    let path = journal("fail");
    let before = seen(&left);
    let errors = left.run(move || {
        let mut changes = Changes::open(&path).expect("open");
        let errors = [
            changes.sysctl("net/ipv4/conf/va/rp_filter", "rubbish"),
            changes.sysctl("net/ipv4/conf/nope0/rp_filter", "2"),
            changes.route_mtu((ip("10.2.0.0"), 16), "lo", 1400),
            changes.route_mtu((ip("10.66.1.0"), 24), "va", 1400),
            changes.offload_off("nope0"),
            changes.mss_clamp(MssClamp { peers: vec![(ip("10.0.0.0"), 99)], ..clamp() }),
        ];
        let errors = errors.map(|result| result.expect_err("impossible").to_string());
        assert!(!std::fs::read_to_string(&path).expect("journal").contains("va"));
        std::fs::write(path.with_extension("odd"), "{}").expect("write");
        let odd = Changes::open(&path.with_extension("odd")).expect_err("not a journal");
        std::fs::remove_file(path.with_extension("odd")).expect("remove");
        [&errors[..], &[odd.to_string()]].concat()
    });
    assert_eq!(seen(&left), before);
    let expected = [
        "rp_filter",
        "nope0",
        "not reached through \"lo\"",
        "blackhole 10.66.0.0/16",
        "nope0",
        "nft -f -",
        "is not a journal",
    ];
    for (error, part) in errors.iter().zip(expected) {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[test]
fn hosts_learn_the_lowered_mtu_by_icmp() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let host = host_behind(&left, &right);
    right.sh("ip addr add 10.2.0.1/32 dev lo; ip addr add fd02::1/128 dev lo nodad");
    left.sh("ip route add default via 10.9.0.2; ip route add fd02::/48 via fd09::2");
    let path = journal("mtu");
    let changes = left.run(move || {
        let mut changes = Changes::open(&path).expect("open");
        changes.route_mtu((ip("10.2.0.0"), 16), "va", 1400).expect("route");
        changes.route_mtu((ip("fd02::"), 48), "va", 1400).expect("route");
        changes
    });
    for (from, to, headers) in [("0.0.0.0:0", "10.2.0.1:9", 28), ("[::]:0", "[fd02::1]:9", 48)] {
        let (fits, longest) = host.run(move || {
            let mut socket = UdpBatch::bind(from.parse().expect("an address")).expect("bind");
            let to: SocketAddr = to.parse().expect("an address");
            let mut fits = |length: usize| socket.send(&[(to, &vec![0; length])]).sent == 1;
            let start = Instant::now();
            while fits(1500 - headers) && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
            (fits(1500 - headers), (fits(1400 - headers), fits(1401 - headers)))
        });
        assert!(!fits, "the MTU to {to} was not learnt");
        assert_eq!(longest, (true, false), "{to}");
    }
    left.run(move || changes.restore().expect("restore"));
}

/// Returns the MSS of the next SYN with this port, in this direction at the tap.
fn mss(ring: &mut Ring, port: u16, direction: Direction) -> u16 {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        let Some(frame) = ring.next() else { continue };
        let (header, protocol) = if frame[0] >> 4 == 4 { (20, frame[9]) } else { (40, frame[6]) };
        if protocol != 6 || frame[header + 13] & 2 == 0 || frame.direction() != direction {
            continue;
        }
        let tcp = &frame[header..];
        if tcp[..2] == port.to_be_bytes() || tcp[2..4] == port.to_be_bytes() {
            assert_eq!(tcp[20..22], [2, 4], "the first option is the MSS");
            return u16::from_be_bytes([tcp[22], tcp[23]]);
        }
    }
    panic!("no SYN within five seconds");
}

#[test]
fn segment_sizes_are_lowered_in_both_directions_and_never_raised() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let host = host_behind(&left, &right);
    right.sh("ip addr add 10.2.0.1/32 dev lo; ip addr add fd02::1/128 dev lo nodad");
    right.sh("ip addr add 10.4.0.1/32 dev lo");
    left.sh("ip route add 10.2.0.0/15 via 10.9.0.2; ip route add 10.4.0.0/16 via 10.9.0.2");
    left.sh("ip route add fd02::/48 via fd09::2");
    let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
    let mut wan = right.run(move || Ring::open("vb", config).expect("ring"));
    let mut lan = host.run(move || Ring::open("h0", config).expect("ring"));
    let mut connect = |to: &'static str| {
        let listener = right.run(move || TcpListener::bind(to).expect("bind"));
        let to = listener.local_addr().expect("bound");
        let stream = host.run(move || TcpStream::connect(to).expect("connect"));
        let port = stream.local_addr().expect("connected").port();
        // MSS in the SYN that the server receives, and in the SYN-ACK that the host receives.
        (mss(&mut wan, port, Direction::Incoming), mss(&mut lan, port, Direction::Incoming))
    };
    assert_eq!(connect("10.2.0.1:0"), (1460, 1460));
    let path = journal("mss");
    let changes = left.run(move || {
        let mut changes = Changes::open(&path).expect("open");
        changes.mss_clamp(clamp()).expect("clamp");
        changes
    });
    assert_eq!(connect("10.2.0.1:0"), (1360, 1360));
    assert_eq!(connect("[fd02::1]:0"), (1340, 1340));
    assert_eq!(connect("10.4.0.1:0"), (1460, 1460), "not a peer's prefix");
    host.sh("ip route add 10.2.0.0/16 via 10.8.0.1 advmss 1000");
    assert_eq!(connect("10.2.0.1:0"), (1000, 1360), "a smaller MSS was changed");
    left.run(move || changes.restore().expect("restore"));
    host.sh("ip route del 10.2.0.0/16");
    assert_eq!(connect("10.2.0.1:0"), (1460, 1460));
}
