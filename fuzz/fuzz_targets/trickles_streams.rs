//! Streams over Trickles, and files by HTTP on them. Arbitrary bytes are parsed or refused as a
//! standard continuation, as events of another server, as a digest and as a request's head.
//! Messages between a client and two servers are lost, doubled and altered, and events are moved
//! between the servers: nothing panics, and unless a message was altered, the client reads the
//! files' content.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, Steps, pass};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::api::{Endpoint, Files};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::packet::Return;
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Server, Settings};
use viaduct_proto::trickles::standard::wire::{open_place, open_valid};
use viaduct_proto::trickles::standard::{MAIN, Notes, Segments};
use viaduct_proto::trickles::stream::{Config, Stream};
use viaduct_proto::web::{Digest, Found, Listing, Request, Site, respond};

/// Bytes of each file.
const SIZE: u64 = 30_000;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Raw bytes, passed to all parsers.
    Raw(Bytes),
    /// Arbitrary bytes for the main stream.
    Write(Bytes),
    /// A valid request on a stream of its own.
    Ask {
        name: u8,
        reserve: u16,
    },
    Shutdown,
    Forget(u8),
    /// Messages in flight are delivered.
    Up {
        count: u8,
        server: bool,
    },
    Down(u8),
    Lose {
        up: bool,
        which: u8,
    },
    Double {
        up: bool,
        which: u8,
    },
    Alter {
        up: bool,
        which: u8,
        byte: u16,
        to: u8,
    },
    /// Messages arrive at a server, and its events are moved to the other server.
    Move {
        server: bool,
        count: u8,
    },
    Wait {
        millis: u16,
    },
}

struct Disk;

fn byte(at: u64) -> u8 {
    (at ^ at >> 8) as u8
}

impl Files for Disk {
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool {
        assert!(offset + out.len() as u64 <= SIZE);
        out.iter_mut().zip(offset..).for_each(|(place, at)| *place = byte(at));
        file == 7
    }
}

impl Site for Disk {
    fn find(&mut self, request: &Request) -> (Found, u64) {
        match request.path.len() {
            0 => (Found::Directory(Listing::new(&[], vec![b"a".to_vec()], false)), 0),
            1 => (Found::File { size: SIZE, modified: 9, nanos: 0 }, 7),
            _ => (Found::Nothing, 0),
        }
    }
}

struct World {
    now: Instant,
    servers: [Endpoint; 2],
    client: Stream,
    asked: Vec<u32>,
    up: Vec<Vec<u8>>,
    down: Vec<Vec<u8>>,
    /// True if a message was altered. The data may then be altered as well.
    altered: bool,
    read: std::collections::BTreeMap<u32, Vec<u8>>,
}

fuzz_target!(|steps: Steps<Step>| {
    let now = Instant::from_nanos(1 << 50);
    let server = || {
        let replay = Replay::new(1 << 12, Duration::from_secs(30), [1, 2, 3, 4], now);
        Endpoint::new(Server::new(Settings::default(), KeyRing::new(0, &[0; 32]), replay), 50)
    };
    let mut world = World {
        now,
        servers: [server(), server()],
        client: Stream::open(Config::default(), 5, now),
        asked: Vec::new(),
        up: Vec::new(),
        down: Vec::new(),
        altered: false,
        read: Default::default(),
    };
    for step in steps.0 {
        world.step(step);
        world.pump();
    }
});

fn way() -> Return {
    let at = |text: &str| text.parse().expect("an address");
    Return::of_datagram(at("192.0.2.1:4000"), at("192.0.2.2:80"))
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Raw(Bytes(bytes)) => self.raw(&bytes),
            Step::Write(Bytes(bytes)) => {
                self.client.write(MAIN, &bytes);
            }
            Step::Ask { name, reserve } => {
                let head = format!("GET /{name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
                if self.asked.len() < 100 {
                    self.asked.extend(self.client.request(head.as_bytes(), reserve.into()));
                }
            }
            Step::Shutdown => self.client.shutdown(MAIN),
            Step::Forget(which) => {
                if !self.asked.is_empty() {
                    let stream = self.asked.remove(usize::from(which) % self.asked.len());
                    self.client.forget(stream);
                    self.read.remove(&stream);
                }
            }
            Step::Up { count, server } => {
                let count = usize::from(count).min(self.up.len());
                for message in self.up.drain(..count).collect::<Vec<_>>() {
                    let _ = self.servers[usize::from(server)].handle(
                        self.now,
                        way(),
                        &message,
                        usize::MAX,
                    );
                }
                self.serve();
            }
            Step::Down(count) => {
                let count = usize::from(count).min(self.down.len());
                for message in self.down.drain(..count).collect::<Vec<_>>() {
                    self.client.handle(self.now, &message);
                }
            }
            Step::Lose { up, which } => self.pick(up, which, |flight, i| drop(flight.remove(i))),
            Step::Double { up, which } => self.pick(up, which, |flight, i| {
                if flight.len() < 1_000 {
                    flight.push(flight[i].clone());
                }
            }),
            Step::Alter { up, which, byte, to } => {
                self.altered = true;
                self.pick(up, which, |flight, i| {
                    let at = usize::from(byte) % flight[i].len().max(1);
                    if let Some(place) = flight[i].get_mut(at) {
                        *place = to;
                    }
                });
            }
            Step::Move { server, count } => {
                let count = usize::from(count).min(self.up.len());
                let from = usize::from(server);
                for message in self.up.drain(..count).collect::<Vec<_>>() {
                    let _ = self.servers[from].handle(self.now, way(), &message, usize::MAX);
                }
                let mut collection = Vec::new();
                let server = &mut self.servers[from];
                let moved = server.extract_events(self.now, usize::MAX, |_| true, &mut collection);
                let installed = self.servers[1 - from].install_events(self.now, &collection);
                assert_eq!(installed.taken + installed.refused, moved);
                self.serve();
            }
            Step::Wait { millis } => self.wait(Duration::from_millis(millis.into())),
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        let ring = KeyRing::new(0, &[0; 32]);
        let _ = (Segments::new(bytes).count(), Notes::new(bytes).count());
        let _ = (open_place(&ring, bytes), open_valid(&ring, bytes));
        assert_eq!(self.servers[0].install_events(self.now, bytes).taken, 0);
        if let Some(digest) = Digest::parse(bytes) {
            assert_eq!(Digest::parse(&digest.emit()), Some(digest));
        }
        let mut digest = Digest::default();
        if let (Ok((taken, Some(request))), Ok(Some((whole, length)))) =
            (digest.read(bytes), Request::parse(bytes))
        {
            assert_eq!((taken, request), (length, whole));
        }
        self.client.handle(self.now, bytes);
    }

    fn pick(&mut self, up: bool, which: u8, act: impl FnOnce(&mut Vec<Vec<u8>>, usize)) {
        let flight = if up { &mut self.up } else { &mut self.down };
        if !flight.is_empty() {
            let which = usize::from(which) % flight.len();
            act(flight, which);
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        pass(self, end, |world| world.client.poll_timeout(), World::time_out);
        self.now = end;
    }

    fn time_out(&mut self, due: Instant) {
        self.now = self.now.max(due);
        self.client.handle_timeout(self.now);
        self.pump();
    }

    fn serve(&mut self) {
        for server in &mut self.servers {
            while let Some(event) = server.poll_event() {
                let reply = respond(server.ring(), &event, &mut Disk);
                server.send(event, &reply, &mut Disk, |_, message| {
                    if self.down.len() < 1_000 {
                        self.down.push(message.to_vec());
                    }
                });
            }
            assert_eq!(server.waiting(), 0);
        }
    }

    fn pump(&mut self) {
        while let Some(stream) = self.client.poll_changed() {
            while let Some(data) = self.client.read(stream) {
                self.read.entry(stream).or_default().extend_from_slice(&data);
            }
        }
        while let Some(message) = self.client.poll_transmit(self.now) {
            if self.up.len() < 1_000 {
                self.up.push(message);
            }
        }
        if self.altered {
            return;
        }
        for stream in &self.asked {
            let Some(read) = self.read.get(stream) else { continue };
            let Some(head) = read.windows(4).position(|window| window == b"\r\n\r\n") else {
                continue;
            };
            assert!(read.starts_with(b"HTTP/1.1 200 OK\r\n"));
            let body = &read[head + 4..];
            assert!(body.len() as u64 <= SIZE);
            assert!(body.iter().zip(0..).all(|(&got, at)| got == byte(at)));
        }
    }
}
