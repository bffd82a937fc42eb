//! The machines of the simulation: a server of one long stream, and a client that fetches it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;

use super::reference::{Receiver, Sender};
use crate::sim::{Machine, Port};
use crate::time::{Duration, Instant};
use crate::trickles::client::{Client, Config, ENDS, Reassembly};
use crate::trickles::keys::KeyRing;
use crate::trickles::replay::Replay;
use crate::trickles::server::{Event, Server, Settings};
use crate::trickles::wire::Payload;

/// Byte `position` of the stream.
pub(super) fn byte(position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16) as u8
}

pub(super) fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4_000))
}

/// A server without a past.
pub(super) fn server(settings: Settings, now: Instant) -> Server {
    let ring = KeyRing::new(1, &[3; 32]);
    let replay = Replay::new(1 << 22, Duration::from_secs(30), [1, 2, 3, 4], now);
    Server::new(settings, ring, replay)
}

/// Answers a request with what it asks for of a stream of `length` bytes.
pub(super) fn serve(
    server: &mut Server,
    now: Instant,
    from: SocketAddr,
    length: u64,
    message: &[u8],
) -> Vec<Vec<u8>> {
    let Ok(answer) = server.handle(now, from, message) else { return Vec::new() };
    let mut user = Vec::new();
    if let Event::Open { .. } = answer.event {
        assert_eq!(answer.request.data, b"GET");
        answer.seal_user(&length.to_be_bytes(), &mut user);
    }
    let mut asks = answer.request.groups;
    let (mut out, mut data) = (Vec::new(), Vec::new());
    for (index, permit) in answer.permits().enumerate() {
        let fits = user.len() <= permit.room;
        let mut payload = Payload { user: if fits { &user } else { &[] }, ..Payload::default() };
        data.clear();
        if permit.room > 0
            && user.is_empty()
            && let Some((sealed, ask)) = asks.next()
        {
            let state = answer.user(sealed).expect("our own user continuation");
            let length = u64::from_be_bytes(state.try_into().unwrap());
            let end = (ask.position + u64::from(ask.length)).min(length);
            let room = ask.position + permit.room as u64;
            data.extend((ask.position..end.min(room)).map(byte));
            payload.position = ask.position;
            let ends = ask.position + data.len() as u64 == length;
            payload.flags = if ends { ENDS } else { 0 };
        }
        payload.data = &data;
        let mut message = Vec::new();
        answer.emit(index, &payload, &mut message);
        out.push(message);
    }
    out
}

/// A client that fetches one stream.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) client: Client,
    stream: Reassembly,
    now: Instant,
    /// When the stream had come whole.
    pub(super) done: Option<Instant>,
    length: u64,
}

impl Fetch {
    pub(super) fn new(length: u64, now: Instant) -> Self {
        let client = Client::open(Config::default(), 99, now);
        Fetch { client, stream: Reassembly::default(), now, done: None, length }
    }

    /// Bytes that came in order.
    pub(super) fn position(&self) -> u64 {
        self.stream.position()
    }

    fn take(&mut self) {
        while let Some(arrived) = self.client.poll_arrived() {
            if !arrived.user.is_empty() {
                self.client.want(0, self.length, arrived.user);
            }
            self.stream.insert(arrived.position, arrived.data);
        }
        let mut position = self.stream.position();
        while let Some(data) = self.stream.read() {
            for &got in &data {
                assert_eq!(got, byte(position), "at {position}");
                position += 1;
            }
        }
        if position == self.length && self.done.is_none() {
            self.done = Some(self.now);
        }
    }
}

/// A node of the simulation.
#[derive(Debug)]
pub(super) enum Node {
    Client(Box<Fetch>),
    Server { server: Box<Server>, length: u64, out: VecDeque<Vec<u8>> },
    Sender(Sender),
    Receiver(Receiver),
}

impl Node {
    pub(super) fn server(settings: Settings, length: u64) -> Self {
        let server = Box::new(server(settings, Instant::ZERO));
        Node::Server { server, length, out: VecDeque::new() }
    }

    pub(super) fn as_server(&self) -> &Server {
        let Node::Server { server, .. } = self else { panic!("no server") };
        server
    }

    pub(super) fn as_sender(&self) -> &Sender {
        let Node::Sender(sender) = self else { panic!("no sender") };
        sender
    }
}

impl Machine for Node {
    fn handle_packet(&mut self, now: Instant, _port: Port, packet: Vec<u8>) {
        match self {
            Node::Client(fetch) => {
                fetch.now = now;
                fetch.client.handle(now, &packet);
                fetch.take();
            }
            Node::Server { server, length, out } => {
                out.extend(serve(server, now, address(), *length, &packet));
            }
            Node::Sender(sender) => sender.handle(now, &packet),
            Node::Receiver(receiver) => receiver.handle(now, &packet),
        }
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        let message = match self {
            Node::Client(fetch) => {
                fetch.client.poll_transmit(fetch.now, &mut Bytes::from_static(b"GET"))
            }
            Node::Server { out, .. } => out.pop_front(),
            Node::Sender(sender) => sender.poll_transmit(),
            Node::Receiver(receiver) => receiver.poll_transmit(),
        };
        Some((0, message?))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Node::Client(fetch) => fetch.client.poll_timeout(),
            Node::Server { .. } => None,
            Node::Sender(sender) => sender.poll_timeout(),
            Node::Receiver(receiver) => receiver.poll_timeout(),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Node::Client(fetch) => {
                fetch.now = now;
                fetch.client.handle_timeout(now);
            }
            Node::Server { .. } => {}
            Node::Sender(sender) => sender.handle_timeout(now),
            Node::Receiver(receiver) => receiver.handle_timeout(now),
        }
    }
}
