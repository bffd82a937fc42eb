//! Machines of the simulation: a server of one long stream, and a client that fetches it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;

use super::reno::{Receiver, Sender};
use crate::sim::{Machine, Port};
use crate::time::{Duration, Instant};
use crate::trickles::client::{Client, Config, ENDS, Reassembly};
use crate::trickles::keys::KeyRing;
use crate::trickles::replay::Replay;
use crate::trickles::server::{Event, Server, Settings};
use crate::trickles::wire::{Payload, Request};

/// Byte `position` of the stream.
pub(crate) fn byte(position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16) as u8
}

pub(crate) fn address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 4_000))
}

/// Creates a server without history.
pub(crate) fn server(settings: Settings, now: Instant) -> Server {
    let ring = KeyRing::new(1, &[3; 32]);
    let replay = Replay::new(1 << 22, Duration::from_secs(30), [1, 2, 3, 4], now);
    Server::new(settings, ring, replay)
}

/// Serves a request from a stream of `length` bytes.
pub(crate) fn serve(
    server: &mut Server,
    now: Instant,
    from: SocketAddr,
    length: u64,
    message: &[u8],
) -> Vec<Vec<u8>> {
    let Ok(grant) = server.handle(now, from, message) else { return Vec::new() };
    let (request, ring) = (Request::parse(message).expect("it was answered"), server.ring());
    let mut user = Vec::new();
    if let Event::Open { .. } = grant.event {
        assert_eq!(request.data, b"GET");
        ring.seal_user(&length.to_be_bytes(), &mut user);
    }
    let mut asks = request.groups;
    let (mut out, mut data) = (Vec::new(), Vec::new());
    for (index, permit) in grant.permits().enumerate() {
        let fits = user.len() <= permit.room;
        let mut payload = Payload { user: if fits { &user } else { &[] }, ..Payload::default() };
        data.clear();
        if permit.room > 0
            && user.is_empty()
            && let Some((sealed, ask)) = asks.next()
        {
            let state = ring.open_user(sealed).and_then(|state| state.first_chunk());
            let length = u64::from_be_bytes(*state.expect("our own user continuation"));
            let end = (ask.position + u64::from(ask.length)).min(length);
            let room = ask.position + permit.room as u64;
            data.extend((ask.position..end.min(room)).map(byte));
            payload.position = ask.position;
            let ends = ask.position + data.len() as u64 == length;
            payload.flags = if ends { ENDS } else { 0 };
        }
        payload.data = &data;
        let mut message = Vec::new();
        assert!(grant.emit(ring, index, &payload, &mut message));
        out.push(message);
    }
    out
}

/// Client that fetches one stream.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) client: Client,
    stream: Reassembly,
    now: Instant,
    /// Time at which the stream was complete.
    pub(crate) done: Option<Instant>,
    length: u64,
    /// Packets with data that have arrived.
    pub(crate) packets: u64,
}

impl Fetch {
    pub(crate) fn new(length: u64, now: Instant) -> Self {
        let client = Client::open(Config::default(), 99, now);
        Fetch { client, stream: Reassembly::default(), now, done: None, length, packets: 0 }
    }

    /// Bytes that arrived in order.
    pub(crate) fn position(&self) -> u64 {
        self.stream.position()
    }

    fn take(&mut self) {
        while let Some(arrived) = self.client.poll_arrived() {
            if !arrived.user.is_empty() {
                self.client.want(0, self.length, arrived.user);
            }
            self.packets += u64::from(!arrived.data.is_empty());
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

/// Machine at one end of the links.
#[derive(Debug)]
pub(crate) enum End {
    Client(Box<Fetch>),
    Server { server: Box<Server>, length: u64, out: VecDeque<Vec<u8>> },
    Sender(Sender),
    Receiver(Receiver),
}

impl End {
    pub(crate) fn server(settings: Settings, length: u64) -> Self {
        let server = Box::new(server(settings, Instant::ZERO));
        End::Server { server, length, out: VecDeque::new() }
    }

    pub(crate) fn as_fetch(&self) -> &Fetch {
        let End::Client(fetch) = self else { panic!("no client") };
        fetch
    }

    pub(crate) fn as_server(&self) -> &Server {
        let End::Server { server, .. } = self else { panic!("no server") };
        server
    }

    pub(crate) fn as_sender(&self) -> &Sender {
        let End::Sender(sender) = self else { panic!("no sender") };
        sender
    }
}

impl Machine for End {
    fn handle_packet(&mut self, now: Instant, _port: Port, packet: Vec<u8>) {
        match self {
            End::Client(fetch) => {
                fetch.now = now;
                fetch.client.handle(now, &packet);
                fetch.take();
            }
            End::Server { server, length, out } => {
                out.extend(serve(server, now, address(), *length, &packet));
            }
            End::Sender(sender) => sender.handle(now, &packet),
            End::Receiver(receiver) => receiver.handle(now, &packet),
        }
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        let message = match self {
            End::Client(fetch) => {
                fetch.client.poll_transmit(fetch.now, &mut Bytes::from_static(b"GET"))
            }
            End::Server { out, .. } => out.pop_front(),
            End::Sender(sender) => sender.poll_transmit(),
            End::Receiver(receiver) => receiver.poll_transmit(),
        };
        Some((0, message?))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            End::Client(fetch) => fetch.client.poll_timeout(),
            End::Server { .. } => None,
            End::Sender(sender) => sender.poll_timeout(),
            End::Receiver(receiver) => receiver.poll_timeout(),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            End::Client(fetch) => {
                fetch.now = now;
                fetch.client.handle_timeout(now);
            }
            End::Server { .. } => {}
            End::Sender(sender) => sender.handle_timeout(now),
            End::Receiver(receiver) => receiver.handle_timeout(now),
        }
    }
}
