//! Measures the packets that one core receives and answers per second.
//!
//! `cargo test -p viaduct --release --test trickles -- --ignored --nocapture packets_a_second`

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_proto::trickles::packet::{Numbers, Return, tcp};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::poll::{Waker, wait};
use viaduct_sys::process::thread::pin;
use viaduct_sys::socket::mmsg::Outbox;
use viaduct_trickles::ServerPort;

use super::world::{PORT, World, sh};

/// Duration of each measurement.
const LONG: Duration = Duration::from_secs(3);

#[test]
#[ignore = "a measurement"]
fn packets_a_second_of_one_core() {
    let Some(world) = World::new("speed") else { return };
    // The flooding host must get no answers, so that its kernel sends no resets, which would take
    // time of the server's core.
    sh(
        &world.router,
        "nft 'table inet deaf { chain seen { type filter hook prerouting priority raw; \
         tcp option @253,32,8 0x11 drop; }; }'",
    );
    for (request, answer) in [(88, 88), (88, 1448), (1448, 88)] {
        let (answered, asked) = measure(&world, request, answer);
        println!(
            "requests of {request} bytes, answers of {answer}: {answered:.0} received and answered \
             in a second of one core's time, of {asked:.0} sent in one of another's"
        );
    }
    println!("processing in memory, without system calls: {:.0} packets/s", pure());
}

/// Returns answers and requests per second of the two cores' processor time, which other load
/// hardly changes.
fn measure(world: &World, request: usize, answer: usize) -> (f64, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let (settings, netns, stopped) = (world.settings(), world.server.netns().clone(), stop.clone());
    let (ready_sender, ready) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        netns.join().unwrap();
        pin(0).unwrap();
        let mut port = ServerPort::open(&settings).unwrap();
        ready_sender.send(()).unwrap();
        let (mut answered, bytes, waker) = (0_u64, vec![3; answer], Waker::new().unwrap());
        let begin = core_time();
        while !stopped.load(Ordering::Relaxed) {
            let done =
                port.turn(|_, mut to, answers| answers.send(&bytes, &mut to).unwrap()).unwrap();
            answered += done as u64;
            if done == 0 {
                let sockets: Vec<_> = port.sockets().collect();
                let sockets: Vec<_> = sockets.iter().map(|fd| fd as &dyn AsFd).collect();
                wait(&sockets, &waker, Duration::from_millis(20));
            }
        }
        answered as f64 / (core_time() - begin).as_secs_f64()
    });
    ready.recv().unwrap();
    // Sent from the router, so that only the server is measured.
    let asked = world.router.netns().enter(|| flood(request)).unwrap();
    stop.store(true, Ordering::Relaxed);
    (server.join().unwrap(), asked)
}

fn flood(request: usize) -> f64 {
    pin(1).unwrap();
    let raw = RawSockets::open().unwrap();
    raw.set_buffers(16 << 20).unwrap();
    let (mut outbox, packets) = (Outbox::default(), requests(request));
    let to: SocketAddr = "10.2.0.2:0".parse().unwrap();
    let (begin, began, mut sent) = (Instant::now(), core_time(), 0);
    while begin.elapsed() < LONG {
        for packet in &packets {
            outbox.push(packet, to, None);
        }
        sent += outbox.flush(raw.socket(true).unwrap()).sent;
    }
    sent as f64 / (core_time() - began).as_secs_f64()
}

fn requests(bytes: usize) -> Vec<Vec<u8>> {
    let (local, remote) =
        ("10.2.0.1:40000".parse().unwrap(), SocketAddr::new("10.2.0.2".parse().unwrap(), PORT));
    let mut numbers = Numbers::new(local, remote, 1);
    let mut packet = Vec::new();
    numbers.request(&[1], 1, 1500, &mut packet).unwrap();
    let mut opening = Return::of(&segment(&packet)).unwrap();
    opening.answer(&[1], 1500, &mut packet).unwrap();
    assert!(numbers.handle_answer(&segment(&packet), 1));
    let make = |_| {
        numbers.request(&vec![1; bytes], 100, 1500, &mut packet).unwrap();
        packet.clone()
    };
    (0..64).map(make).collect()
}

fn segment(packet: &[u8]) -> tcp::Segment {
    match tcp::parse(packet, packet.len(), tcp::Checksum::Check) {
        Ok(tcp::Packet::Message(segment, _)) => segment,
        other => panic!("{other:?}"),
    }
}

/// Returns the rate of reading requests and writing their answers, in memory only.
fn pure() -> f64 {
    let (packets, bytes) = (requests(88), [3; 1448]);
    let (begin, mut done, mut answer) = (core_time(), 0_u64, Vec::new());
    while core_time() - begin < LONG / 3 {
        for packet in &packets {
            let mut to = Return::of(&segment(packet)).unwrap();
            to.answer(&bytes, 1500, &mut answer).unwrap();
            done += 1;
        }
    }
    done as f64 / (core_time() - begin).as_secs_f64()
}

/// Returns the processor time of this thread.
fn core_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
