//! Datagrams of the programs in a cgroup, held until a verdict.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::net::UdpSocket;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{in_namespace, is_root, sh};
use viaduct_sys::bpf::Group;
use viaduct_sys::nft::datagram_queue::DatagramQueue;
use viaduct_sys::nft::nfqueue::{SNAP, Verdict};
use viaduct_sys::process::supervise;

/// Held by each test: a process can have only one group.
static GROUP: Mutex<()> = Mutex::new(());

/// Sends a line to port 9000 of this host, from a program in `group`.
fn send(group: &Group, line: &str) {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("echo {line} > /dev/udp/127.0.0.1/9000")]);
    supervise::join_cgroup(&mut command, group.members());
    assert!(command.status().unwrap().success());
}

/// Waits up to 300 ms for the next held datagram. Returns its ID, and whether it is inbound.
fn next(held: &DatagramQueue) -> Option<(u32, bool)> {
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        if let Some(one) = held.recv(&mut [0; SNAP]).unwrap() {
            assert_eq!(one.packet[9], 17, "UDP");
            return Some((one.id, one.is_inbound));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

#[test]
fn rules_that_a_killed_process_has_left_do_not_prevent_another_queue() {
    if !is_root() {
        return;
    }
    in_namespace(|| {
        let _own = GROUP.lock().unwrap_or_else(PoisonError::into_inner);
        let group = Group::new().unwrap();
        let killed = match DatagramQueue::open(&group, false) {
            Ok(held) => held,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let rules = killed.rules();
        drop(killed);
        let held = DatagramQueue::open(&group, false).unwrap();
        drop(rules);
        send(&group, "one");
        assert!(next(&held).is_some());
    });
}

#[test]
fn a_groups_datagrams_wait_for_their_verdict_and_those_of_others_do_not() {
    if !is_root() {
        return;
    }
    in_namespace(|| {
        let far = UdpSocket::bind("127.0.0.1:9000").unwrap();
        far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let came = || {
            let mut line = [0; 9];
            far.recv(&mut line).ok().map(|length| line[..length].to_vec())
        };
        let _own = GROUP.lock().unwrap_or_else(PoisonError::into_inner);
        let group = Group::new().unwrap();
        let held = match DatagramQueue::open(&group, false) {
            Ok(held) => held,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        sh("bash -c 'echo none > /dev/udp/127.0.0.1/9000'");
        assert_eq!(came().unwrap(), b"none\n", "a program outside of the group");
        for line in ["one", "two"] {
            send(&group, line);
        }
        assert_eq!(came(), None);
        let [one, two] = [next(&held).unwrap(), next(&held).unwrap()];
        assert!(!one.1 && !two.1 && held.lost() == 0, "an inbound or a lost datagram");
        held.verdicts(&[(two.0, Verdict::Pass), (one.0, Verdict::Drop)]).unwrap();
        assert_eq!((came().unwrap(), came()), (b"two\n".to_vec(), None));
        held.end(Duration::ZERO);
        send(&group, "end");
        assert_eq!(came().unwrap(), b"end\n");
    });
}
