//! Programs whose flows go over encrypted Trickles, and fail if that is not possible.

use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use viaduct_sys::capture::ring::{Ring, RingConfig};

use super::{VIADUCT, curl, done, url};
use crate::world::World;

const LINK: &str = "rate=50M,delay=5ms,queue=300kB";
const WORDS: &[u8] = b"plaintext that must not be shown!";

/// Capture of all packets on the server's interface.
struct Watch {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<u8>>>,
}

impl Watch {
    fn start(world: &World) -> Watch {
        // The tap sees packets of up to 64 KiB, before segmentation offload splits them.
        let config = RingConfig { max_packet: 65535, bytes: 8 << 20 };
        let ring = world.net.b1().netns().enter(|| Ring::open("eth0", config));
        let (mut ring, enough) = (ring.unwrap().unwrap(), Arc::<AtomicBool>::default());
        let until = enough.clone();
        let thread = thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                let last = until.load(Ordering::Relaxed);
                while let Some(frame) = ring.next() {
                    seen.push(frame.to_vec());
                }
                if last {
                    assert_eq!(ring.drops(), 0);
                    return seen;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Watch { enough, thread }
    }

    /// Returns the total bytes of all packets, and the number of packets that contain `words`.
    fn finish(self, words: &[u8]) -> (usize, usize) {
        self.enough.store(true, Ordering::Relaxed);
        let seen = self.thread.join().unwrap();
        let shows = |packet: &&Vec<u8>| packet.windows(words.len()).any(|window| window == words);
        (seen.iter().map(Vec::len).sum(), seen.iter().filter(shows).count())
    }
}

/// Creates an identity. Returns its public key.
pub(crate) fn identity(world: &World, name: &str) -> String {
    let mut made = std::process::Command::new(VIADUCT);
    made.args(["key", "new", "--out"]).arg(world.dir.join(name));
    let made = made.output().unwrap();
    assert!(made.status.success());
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

fn fails(world: &World, by: &str, url: &str) -> Output {
    let output = curl(world, &[by], &["--connect-timeout", "4", url]).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{by}: {output:?}");
    output
}

#[test]
fn encrypted_flows_are_never_sent_in_plaintext() {
    let Some(world) = World::new("encrypted", LINK) else { return };
    let big = WORDS.repeat(10_000);
    world.file("secret.txt", &big);
    let key = identity(&world, "identity");
    let other = identity(&world, "other");
    let file = world.dir.join("identity");
    let only = ["--identity", file.to_str().unwrap(), "--encrypted-only"];
    let url = url(world.v4(), "secret.txt");
    let server = world.serve_with("auto", &only, || world.status_is_there());
    for way in ["tcp", "udp"] {
        let watch = Watch::start(&world);
        let by = format!("+trickles:way={way},key={key}");
        assert!(done(curl(&world, &[&by], &[&url])).stdout == big, "{by}");
        let (bytes, shown) = watch.finish(&WORDS[..16]);
        assert!(bytes > big.len() && shown == 0, "{way}: {shown} packets, {bytes} bytes in all");
    }
    let said = world.status();
    assert!(said["trickles"]["decrypted"].as_u64().unwrap() > 40, "{said}");
    // A flow fails with the key of another server, without a key, and with a server
    // without Trickles.
    let mute = fails(&world, &format!("+trickles:way=tcp,key={other}"), &url);
    let said = String::from_utf8(mute.stderr).unwrap();
    assert!(
        said.contains("does not answer: a server without a key, or with another key"),
        "{said}"
    );
    fails(&world, "+trickles:way=tcp", &url);
    assert!(world.connect_plain().is_err(), "TCP is accepted");
    drop(server);
    // A server that serves both answers encrypted requests encrypted, and other requests
    // in plaintext.
    let _server = world.serve_with("auto", &only[..2], || world.connect_plain().is_ok());
    for (by, is_clear) in
        [("+trickles:way=tcp".to_owned(), true), (format!("+trickles:way=tcp,key={key}"), false)]
    {
        let watch = Watch::start(&world);
        assert!(done(curl(&world, &[&by], &[&url])).stdout == big, "{by}");
        let (_, shown) = watch.finish(&WORDS[..16]);
        // Segments that are sent together are seen as one packet.
        assert_eq!(shown > 10, is_clear, "{by}: {shown} packets");
    }
}

#[test]
fn a_server_without_trickles_is_refused_if_encryption_is_required() {
    let Some(world) = World::new("downgrade", LINK) else { return };
    world.file("small", b"small");
    let key = identity(&world, "identity");
    let _server = world.serve("off");
    let url = url(world.v4(), "small");
    assert_eq!(done(curl(&world, &["+trickles:way=tcp"], &[&url])).stdout, b"small");
    let refused = fails(&world, &format!("+trickles:way=tcp,key={key}"), &url);
    assert_eq!(refused.status.code(), Some(7), "not reported as a refusal: {refused:?}");
}
