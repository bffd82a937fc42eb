//! Client over UDP whose messages can each be held back, altered or sent twice.

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;

use viaduct_proto::time::Instant;
use viaduct_proto::trickles::continuation::Continuation;
use viaduct_proto::trickles::packet::{Role, udp};
use viaduct_proto::trickles::proof::{self, Range};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, Stream};
use viaduct_proto::trickles::wire::Request;
use viaduct_proto::trickles::wire::request::{Kind, Returned, emit_returned};
use viaduct_sys::clock;

use crate::experiments::prelude::*;

/// Padded size of a first request, and maximum size of a message.
const MESSAGE: u16 = 1_400;

/// Client: an honest core and a socket.
pub(super) struct RawClient {
    pub(super) socket: UdpSocket,
    pub(super) stream: Stream,
    count: u8,
    /// Bytes received on the main stream so far.
    pub(super) got: u64,
    /// Messages that the core has produced but that have not been sent.
    pub(super) held: VecDeque<Vec<u8>>,
}

impl RawClient {
    /// Prepares a request for `path` from `host`; nothing is sent yet.
    pub(super) fn new(host: &Host, to: SocketAddr, path: &str, token: u64) -> Result<RawClient> {
        let socket = connect(host, to)?;
        let config = Config { message: MESSAGE, ..Config::default() };
        let mut stream = Stream::open(config, token, now());
        let text = format!("GET /{path} HTTP/1.1\r\nHost: lab\r\n\r\n");
        stream.write(MAIN, text.as_bytes());
        stream.shutdown(MAIN);
        Ok(RawClient { socket, stream, count: 0, got: 0, held: VecDeque::new() })
    }

    /// Handles at most one incoming message, for which it waits up to `most`, and queues the
    /// resulting messages in `held`.
    pub(super) fn turn(&mut self, most: Duration) -> Result<()> {
        let due = self.stream.poll_timeout().map_or(most, |due| due - now());
        if let Some(message) = receive(&self.socket, due.min(most))? {
            self.stream.handle(now(), &message);
            while let Some(data) = self.stream.read(MAIN) {
                self.got += data.len() as u64;
            }
        }
        if self.stream.poll_timeout().is_some_and(|due| due <= now()) {
            self.stream.handle_timeout(now());
        }
        while let Some(message) = self.stream.poll_transmit(now()) {
            self.held.push_back(message);
        }
        Ok(())
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<()> {
        self.count = self.count.wrapping_add(1);
        send(&self.socket, self.count, message)
    }

    /// Behaves honestly until `bytes` have arrived; messages after that are held back.
    pub(super) fn run_until(&mut self, bytes: u64) -> Result<()> {
        let end = now() + Duration::from_secs(10);
        while self.got < bytes {
            ensure!(now() < end, "only {} of {bytes} bytes arrived", self.got);
            while let Some(message) = self.held.pop_front() {
                self.send(&message)?;
            }
            self.turn(Duration::from_millis(100))?;
        }
        while self.held.iter().all(|message| Step::parse(message).is_none()) {
            ensure!(now() < end, "no message returns a continuation");
            self.turn(Duration::from_millis(100))?;
        }
        self.held.retain(|message| Step::parse(message).is_some());
        Ok(())
    }

    /// Receives for `time` without handling anything; returns the datagrams and message bytes.
    pub(super) fn count_answers(&self, time: Duration) -> Result<(u64, u64)> {
        let (end, mut received) = (now() + time, (0, 0));
        while now() < end {
            if let Some(message) = receive(&self.socket, end - now())? {
                received = (received.0 + 1, received.1 + message.len() as u64);
            }
        }
        Ok(received)
    }
}

/// Opens a UDP socket in `host`, connected to `to`.
pub(super) fn connect(host: &Host, to: SocketAddr) -> Result<UdpSocket> {
    let bind = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect(to)?;
        Ok(socket)
    };
    Ok(host.netns().enter(bind)??)
}

/// Sends a message from a socket.
pub(super) fn send(socket: &UdpSocket, count: u8, message: &[u8]) -> Result<()> {
    let mut datagram = udp::head(Role::Request, count).to_vec();
    datagram.extend_from_slice(message);
    socket.send(&datagram)?;
    Ok(())
}

/// Receives the next message; `None` if none arrives within `most`.
pub(super) fn receive(socket: &UdpSocket, most: Duration) -> Result<Option<Vec<u8>>> {
    let mut buffer = [0; 2048];
    socket.set_read_timeout(Some(most.max(Duration::from_micros(100))))?;
    match socket.recv(&mut buffer) {
        Ok(length) => match udp::parse(&buffer[..length]) {
            Ok((Role::Answer, _, message)) => Ok(Some(message.to_vec())),
            other => bail!("unexpected datagram from the server: {other:?}"),
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Parsed request that returns a continuation.
pub(super) struct Step<'a> {
    message: &'a [u8],
    pub(super) returned: Returned<'a>,
    pub(super) known: Continuation,
    attempt: u8,
    count: u32,
    /// Range of the proof in the message.
    proof: (usize, usize),
}

impl<'a> Step<'a> {
    /// Parses a request; `None` if it returns no continuation.
    pub(super) fn parse(message: &'a [u8]) -> Option<Step<'a>> {
        let request = Request::parse(message).ok()?;
        let (attempt, returned) = match request.kind {
            Kind::Open { .. } => return None,
            Kind::Step(returned) => (0, returned),
            Kind::Restart { attempt, returned } => (attempt, returned),
        };
        let known = Continuation::peek(returned.continuation).ok()?.0;
        let Returned { continuation, tail, repaired, .. } = returned;
        let mut head = Vec::new();
        emit_returned(request.count, attempt, continuation, tail, repaired, &[], &mut head);
        let mut end = head.len();
        let ranges = varint(message, &mut end)?;
        for _ in 0..2 * ranges {
            varint(message, &mut end)?;
        }
        let proof = (head.len(), end + 8);
        Some(Step { message, returned, known, attempt, count: request.count, proof })
    }

    /// True for a step, false for a restart.
    pub(super) fn is_step(&self) -> bool {
        self.attempt == 0
    }

    /// True if the proof reports a loss.
    pub(super) fn reports_losses(&self) -> bool {
        let proof = &self.message[self.proof.0..];
        proof[0] != 1 || proof[1] != 0
    }

    /// Returns the range of the continuation in the message.
    pub(super) fn continuation(&self) -> std::ops::Range<usize> {
        let start = if self.attempt == 0 { 5 } else { 6 };
        start..start + self.returned.continuation.len()
    }

    /// Returns the message with a proof that all packets arrived; the missing nonces are guessed.
    pub(super) fn without_losses(&self, guess: u64) -> Vec<u8> {
        let (start, end) = self.proof;
        let sum =
            self.message[end - 8..end].first_chunk().map_or(0, |sum| u64::from_be_bytes(*sum));
        let (first, last) = (self.known.epoch.base, self.known.number);
        let mut lie = self.message[..start].to_vec();
        proof::emit(first, &[Range { first, last, sum: sum ^ guess }], &mut lie);
        lie.extend_from_slice(&self.message[end..]);
        lie
    }

    /// Returns the message as a first restart attempt.
    pub(super) fn restarting(&self) -> Vec<u8> {
        let Returned { continuation, tail, repaired, .. } = self.returned;
        let proof = &self.message[self.proof.0..self.proof.1];
        let mut lie = Vec::new();
        emit_returned(self.count, 1, continuation, tail, repaired, proof, &mut lie);
        viaduct_proto::trickles::wire::request::emit_padding(100, &mut lie);
        lie.extend_from_slice(&self.message[self.proof.1..]);
        lie
    }
}

fn varint(message: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = *message.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Removes the first step from the messages held back, and returns it.
pub(super) fn first_step(held: &mut VecDeque<Vec<u8>>) -> Result<Vec<u8>> {
    let is_step = |message: &Vec<u8>| Step::parse(message).is_some_and(|step| step.is_step());
    let at = held.iter().position(is_step).context("no message returns a continuation")?;
    held.remove(at).context("no message at this index")
}

/// Returns the current time of the lab's clock, in the type that the client cores use.
pub(super) fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
