//! Trickles clients and servers on any input. Requests and responses are parsed or refused. A
//! server's memory does not grow, and its answer to an unproven address has at most as many bytes
//! as the request. If messages between a client and a server are lost, doubled, delayed and
//! altered, neither end panics, and the stream's bytes stay in order.
#![no_main]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use arbitrary::Arbitrary;
use bytes::Bytes as Shared;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, Steps, pass};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::client::{Client, Config, ENDS, Reassembly};
use viaduct_proto::trickles::continuation::Continuation;
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Event, Server, Settings};
use viaduct_proto::trickles::wire::{Form, Payload, Request, Response};

const LENGTH: u64 = 200_000;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Raw bytes, passed to all parsers.
    Raw(Bytes),
    /// Messages in flight are delivered, to the server or to the client.
    Up(u8),
    Down(u8),
    /// A message in flight is lost, doubled, moved to the end of the queue, or altered.
    Lose {
        up: bool,
        which: u8,
    },
    Double {
        up: bool,
        which: u8,
    },
    Delay {
        up: bool,
        which: u8,
    },
    Alter {
        up: bool,
        which: u8,
        byte: u16,
        to: u8,
    },
    /// The client's port changes.
    Move {
        port: u8,
    },
    /// Time passes, in milliseconds.
    Wait {
        millis: u16,
    },
    /// The other replica, which has its own replay window, answers later requests.
    Swap,
    /// The secrets are rotated.
    Rotate {
        number: u8,
    },
}

fn byte(position: u64) -> u8 {
    (position ^ position >> 8) as u8
}

struct World {
    now: Instant,
    from: SocketAddr,
    server: Server,
    other: Server,
    client: Client,
    stream: Reassembly,
    up: Vec<Vec<u8>>,
    down: Vec<Vec<u8>>,
    /// True if a response was altered. The data may then be altered as well.
    altered: bool,
    /// Addresses to which something was sent.
    answered: BTreeSet<SocketAddr>,
}

fuzz_target!(|steps: Steps<Step>| {
    let now = Instant::from_nanos(1 << 50);
    let server = || {
        let replay = Replay::new(1 << 12, Duration::from_secs(30), [1, 2, 3, 4], now);
        Server::new(Settings::default(), KeyRing::new(0, &[0; 32]), replay)
    };
    let memory = server().replay().memory();
    let mut world = World {
        now,
        from: SocketAddr::from(([192, 0, 2, 1], 4_000)),
        server: server(),
        other: server(),
        client: Client::open(Config::default(), 5, now),
        stream: Reassembly::default(),
        up: Vec::new(),
        down: Vec::new(),
        altered: false,
        answered: BTreeSet::new(),
    };
    for step in steps.0 {
        world.step(step);
        world.pump();
        assert_eq!(world.server.replay().memory(), memory);
    }
});

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Raw(Bytes(bytes)) => self.raw(&bytes),
            Step::Up(count) => {
                let count = usize::from(count).min(self.up.len());
                for message in self.up.drain(..count).collect::<Vec<_>>() {
                    self.serve(&message);
                }
            }
            Step::Down(count) => {
                let count = usize::from(count).min(self.down.len());
                for message in self.down.drain(..count).collect::<Vec<_>>() {
                    self.client.handle(self.now, &message);
                }
            }
            Step::Lose { up, which } => {
                self.pick(up, which, |flight, i| drop(flight.remove(i)));
            }
            Step::Double { up, which } => self.pick(up, which, |flight, i| {
                if flight.len() < 1_000 {
                    flight.push(flight[i].clone());
                }
            }),
            Step::Delay { up, which } => self.pick(up, which, |flight, i| {
                let message = flight.remove(i);
                flight.push(message);
            }),
            Step::Alter { up, which, byte, to } => {
                self.altered |= !up;
                self.pick(up, which, |flight, i| {
                    let at = usize::from(byte) % flight[i].len().max(1);
                    if let Some(place) = flight[i].get_mut(at) {
                        *place = to;
                    }
                });
            }
            Step::Move { port } => self.from.set_port(4_000 + u16::from(port % 4)),
            Step::Wait { millis } => self.wait(Duration::from_millis(millis.into())),
            Step::Swap => std::mem::swap(&mut self.server, &mut self.other),
            Step::Rotate { number } => {
                for server in [&mut self.server, &mut self.other] {
                    server.ring_mut().rotate(number, &[number; 32], 3);
                }
            }
        }
    }

    fn pick(&mut self, up: bool, which: u8, act: impl FnOnce(&mut Vec<Vec<u8>>, usize)) {
        let flight = if up { &mut self.up } else { &mut self.down };
        if !flight.is_empty() {
            let which = usize::from(which) % flight.len();
            act(flight, which);
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        let _ = Request::parse(bytes).map(|request| request.groups.count());
        let _ = Response::parse(bytes);
        let _ = Continuation::peek(bytes);
        let refused = self.server.stats().refused();
        let answered = self.server.handle(self.now, self.from, bytes).map(drop);
        assert!(answered.is_ok() || self.server.stats().refused() == refused + 1);
        self.client.handle(self.now, bytes);
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

    fn serve(&mut self, message: &[u8]) {
        let Ok(grant) = self.server.handle(self.now, self.from, message) else { return };
        let mut asks = Request::parse(message).expect("it was answered").groups;
        let ring = self.server.ring();
        let mut user = Vec::new();
        let open = matches!(grant.event, Event::Open { .. });
        if open {
            ring.seal_user(b"stream", &mut user);
        }
        // An address to which nothing was sent before may be a victim's. So may an address to which
        // an address token is sent, even if something was sent there before.
        let (mut unproven, mut sent) = (self.answered.insert(self.from), 0);
        for (index, permit) in grant.permits().enumerate() {
            let mut payload = Payload::default();
            let mut data = Vec::new();
            if open && user.len() <= permit.room {
                payload.user = &user;
            } else if permit.room > 0 {
                if let Some((sealed, ask)) = asks.next() {
                    if ring.open_user(sealed).is_some() && ask.position < LENGTH {
                        let room = (permit.room as u64).min(ask.length.into());
                        let end = (ask.position + room).min(LENGTH);
                        data.extend((ask.position..end).map(byte));
                        payload.position = ask.position;
                        payload.flags = if end == LENGTH { ENDS } else { 0 };
                    }
                }
            }
            payload.data = &data;
            let mut out = Vec::new();
            assert!(grant.emit(ring, index, &payload, &mut out));
            let response = Response::parse(&out).expect("a server's own response");
            unproven |= matches!(response.form, Form::AddressToken(_));
            sent += out.len();
            if self.down.len() < 1_000 {
                self.down.push(out);
            }
        }
        assert!(!unproven || sent <= message.len(), "{sent} bytes for {}", message.len());
    }

    fn pump(&mut self) {
        while let Some(arrived) = self.client.poll_arrived() {
            if !arrived.user.is_empty() && self.stream.position() == 0 {
                self.client.want(0, LENGTH, arrived.user);
            }
            if self.altered {
                continue;
            }
            let bytes = arrived.data.iter().zip(arrived.position..);
            assert!(bytes.into_iter().all(|(&got, position)| got == byte(position)));
            self.stream.insert(arrived.position, arrived.data);
            while self.stream.read().is_some() {}
        }
        while let Some(message) =
            self.client.poll_transmit(self.now, &mut Shared::from_static(b"GET"))
        {
            if self.up.len() < 1_000 {
                self.up.push(message);
            }
        }
    }
}
