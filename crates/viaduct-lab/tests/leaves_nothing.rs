//! A dropped world leaves no namespace, interface or process. (Ctrl-C and `kill -9` are tested
//! on the binary itself, in `viaduct/tests/lab`.)
#![allow(clippy::unwrap_used)] // a test may panic

mod canary;

use canary::{Canary, interfaces_here};
use std::time::Duration;
use viaduct_lab::topology::{Dumbbell, DumbbellSpec, Journal, Wan};

fn world() -> Dumbbell {
    Dumbbell::build(&DumbbellSpec { hosts: 2, ..DumbbellSpec::default() }, &Journal::new()).unwrap()
}

fn watched(world: &Dumbbell) -> Canary {
    let mut canary = Canary::new();
    world.nodes().iter().for_each(|node| canary.watch(node.netns().path()));
    assert_eq!(canary.alive(), 6);
    canary
}

#[test]
fn a_dropped_world_is_gone() {
    let before = interfaces_here();
    let world = world();
    let canary = watched(&world);
    let mut sleeper = world.a1().command("sleep");
    sleeper.arg("60");
    let child = world.a1().spawn(sleeper).unwrap();
    let pid = child.id();
    drop((child, world));
    canary.assert_all_gone();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(interfaces_here(), before);
}

#[test]
fn a_daemon_is_killed_with_its_world() {
    let world = world();
    let canary = watched(&world);
    world.b1().run("iperf3", &["--server", "--daemon"]).unwrap();
    drop(world);
    canary.assert_all_gone();
}

#[test]
fn a_world_whose_thread_panics_is_gone() {
    let (send, canaries) = std::sync::mpsc::channel();
    let result = std::thread::spawn(move || {
        let world = world();
        let mut sleeper = world.b1().command("sleep");
        sleeper.arg("60");
        let _child = world.b1().spawn(sleeper).unwrap();
        send.send(watched(&world)).unwrap();
        panic!("an experiment's bug");
    })
    .join();
    assert!(result.is_err());
    canaries.recv().unwrap().assert_all_gone();
}

#[test]
fn a_world_that_cannot_be_built_leaves_nothing() {
    let before = interfaces_here();
    // No packet passes the link, so building fails, but only after everything has been set up.
    let wan = Wan::emulated("loss=100%".parse().unwrap(), 1);
    let spec = DumbbellSpec { wan, timeout: Duration::from_millis(200), ..Default::default() };
    let text = Dumbbell::build(&spec, &Journal::new()).unwrap_err().to_string();
    assert!(text.starts_with("in a1: reaching 10.2.1.2 ("), "{text}");
    assert!(text.ends_with(") not done after 0.2 s"), "{text}");
    assert_eq!(interfaces_here(), before);
}

#[test]
fn two_worlds_can_coexist() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    let worlds = [world(), world()];
    // The same address in both worlds; each answers with its own number.
    for (n, world) in worlds.iter().enumerate() {
        let at = (world.b1().v4(), 7000);
        let listener = world.b1().netns().enter(|| TcpListener::bind(at).unwrap()).unwrap();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(&[n as u8]));
    }
    for (n, world) in worlds.iter().enumerate() {
        let at = (world.b1().v4(), 7000);
        let mut stream = world.a1().netns().enter(|| TcpStream::connect(at).unwrap()).unwrap();
        let mut answer = [0xff];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(usize::from(answer[0]), n);
    }
}
