//! TCP sequence numbers of both directions, which only the client keeps.

use std::net::SocketAddr;

use super::tcp::{self, Kind, Segment};
use super::{Mark, Role, Room, TooLong};

/// Maximum distance of sequence numbers from the acknowledged number if windows are scaled, in
/// bytes: half of the advertised window, so that late packets stay within the window.
const WIDE: u32 = 1 << 29;
/// Maximum distance before a scaled window was seen, or if a middlebox removed the scale from the
/// SYNs: less than 64 KB.
const NARROW: u32 = 60_000;
/// Maximum bytes by which answers may exceed the expected length and still be acknowledged. Also
/// the maximum distance below `acked` of a number that counts as sent recently.
const BEYOND: u32 = 1 << 20;

/// TCP numbers of one connection.
///
/// ```text
///   sent bytes        acked ........ next ..(window)..▶    full: `next` returns to `acked`
///   expected bytes    heard ........ place ..(window)..▶   full: `place` returns to `heard`
/// ```
///
/// The client acknowledges (`heard`) only bytes that have arrived, and numbers its own bytes from
/// `acked`, so every firewall on the path has seen the acknowledged bytes. Lost bytes are never
/// retransmitted under their old TCP number: Trickles recovers them with its own numbers.
#[derive(Clone, Debug)]
pub struct Numbers {
    local: SocketAddr,
    remote: SocketAddr,
    /// Sequence number of the SYN.
    first: u32,
    /// True if the SYN was answered.
    open: bool,
    /// Sequence number of the next request.
    next: u32,
    /// Sequence number after the last byte ever sent.
    top: u32,
    /// Highest acknowledgement number in the answers.
    acked: u32,
    /// Acknowledgement number of the next request: the highest end of an answer so far.
    heard: u32,
    /// Sequence number from which the answers to the next request are expected.
    place: u32,
    /// Maximum distance from `acked` to `next`.
    reach_out: u32,
    /// Maximum distance from `heard` to `place`.
    reach_in: u32,
    scaled: bool,
    count: u8,
}

impl Numbers {
    /// Starts a connection with the initial sequence number `first`, preferably random.
    pub fn new(local: SocketAddr, remote: SocketAddr, first: u32) -> Numbers {
        let next = first.wrapping_add(1);
        Numbers {
            local,
            remote,
            first,
            open: false,
            next,
            top: next,
            acked: next,
            heard: 0,
            place: 0,
            reach_out: NARROW,
            reach_in: NARROW,
            scaled: false,
            count: 0,
        }
    }

    /// Local address and port, before any NAT.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Address and port of the server.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns whether the SYN has been answered. Until then every request is a SYN.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Maximum message lengths in packets of `mtu` bytes.
    pub fn room(&self, mtu: usize) -> Room {
        let of = |kind| mtu.saturating_sub(tcp::overhead(self.remote.is_ipv4(), kind));
        Room { first: of(Kind::Syn), later: of(Kind::Data) }
    }

    /// Replaces the contents of `packet` by the packet of the next request, at most `mtu` bytes.
    /// `expected` is the expected length of its answers in bytes, without headers; longer answers
    /// do no harm. Errors: the message does not fit.
    pub fn request(
        &mut self,
        message: &[u8],
        expected: u32,
        mtu: usize,
        packet: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        let room = self.room(mtu);
        let room = if self.open { room.later } else { room.first };
        if message.len() > room {
            return Err(TooLong { have: message.len(), room });
        }
        let (seq, ack, ahead) = match self.open {
            true => (self.take(message.len() as u32), self.heard, self.reserve(expected)),
            false => (self.first, 0, 0),
        };
        let mark = Mark { role: Role::Request, count: self.count, length: 0, ahead };
        self.count = self.count.wrapping_add(1);
        let (source, destination, kind) = (self.local, self.remote, self.kind());
        let (scaled, largest) = (true, u16::MAX);
        let segment = Segment { source, destination, kind, seq, ack, scaled, largest, mark };
        tcp::emit(&segment, message, mtu, packet)
    }

    /// Processes a packet of answers with `bytes` bytes after its headers. Returns whether the
    /// packet belongs to this connection. If so, its messages may be processed; implausible numbers
    /// are ignored. An off-path attacker can forge such a packet, but not one that opens the
    /// connection ([`Numbers::is_open`]).
    pub fn handle_answer(&mut self, answer: &Segment, bytes: usize) -> bool {
        let ours = answer.source == self.remote && answer.destination == self.local;
        if !ours || answer.mark.role != Role::Answer {
            return false;
        }
        match answer.kind {
            Kind::SynAck => self.hear_opening(answer),
            Kind::Data if self.open => self.hear_data(answer, bytes as u32),
            Kind::Data | Kind::Syn => {}
        }
        true
    }

    /// Returns whether a plain TCP server's answer with this acknowledgement number can answer our
    /// SYN. The server may or may not have accepted the SYN's message as data.
    pub fn answers_syn(&self, ack: u32) -> bool {
        !self.open && ack.wrapping_sub(self.first.wrapping_add(1)) <= u32::from(u16::MAX)
    }

    /// Returns whether a packet of ours with this sequence number may be in flight, or may have
    /// been recently. ICMP errors quote the sequence number of a packet, and answers acknowledge
    /// such numbers; an off-path attacker does not know them.
    pub fn has_sent(&self, seq: u32) -> bool {
        let on_its_way = self.top.wrapping_sub(self.acked).saturating_add(BEYOND);
        if self.open { self.top.wrapping_sub(seq) <= on_its_way } else { seq == self.first }
    }

    fn kind(&self) -> Kind {
        if self.open { Kind::Data } else { Kind::Syn }
    }

    /// Allocates the sequence number of a request of `bytes` bytes.
    fn take(&mut self, bytes: u32) -> u32 {
        if self.next.wrapping_sub(self.acked).saturating_add(bytes) > self.reach_out {
            self.next = self.acked;
        }
        let seq = self.next;
        self.next = seq.wrapping_add(bytes);
        if is_after(self.next, self.top) {
            self.top = self.next;
        }
        seq
    }

    /// Reserves numbers for the answers to a request, and returns their distance from `heard`.
    fn reserve(&mut self, expected: u32) -> u32 {
        let expected = expected.max(1);
        let ahead = self.place.wrapping_sub(self.heard);
        if is_after(self.heard, self.place) || ahead.saturating_add(expected) > self.reach_in {
            self.place = self.heard;
        }
        let at = self.place;
        self.place = at.wrapping_add(expected.min(self.reach_in));
        at.wrapping_sub(self.heard)
    }

    /// Processes a SYN-ACK. Its payload occupies no sequence numbers: an earlier answer to the SYN
    /// may have had fewer bytes.
    fn hear_opening(&mut self, answer: &Segment) {
        if self.open || answer.ack != self.first.wrapping_add(1) {
            return;
        }
        self.open = true;
        self.scaled = answer.scaled;
        self.heard = answer.seq.wrapping_add(1);
        self.place = self.heard;
        // Our own windows are scaled in all later packets, which precede their answers.
        self.reach_in = if self.scaled { WIDE } else { NARROW };
    }

    fn hear_data(&mut self, answer: &Segment, bytes: u32) {
        let end = answer.seq.wrapping_add(bytes);
        let most = self.place.wrapping_add(BEYOND.min(self.reach_in));
        // An off-path attacker would have to guess both numbers. If a forged packet moved `heard`,
        // later requests would acknowledge bytes that no firewall has seen.
        let plausible = self.has_sent(answer.ack) && !is_after(end, most);
        if plausible && is_after(end, self.heard) {
            self.heard = end;
            if is_after(end, self.place) {
                self.place = end;
            }
        }
        let sane = !is_after(self.acked, answer.ack) && !is_after(answer.ack, self.top);
        if sane {
            self.acked = answer.ack;
            if is_after(self.acked, self.next) {
                self.next = self.acked;
            }
            if self.scaled {
                self.reach_out = WIDE;
            }
        }
    }
}

/// Returns whether `a` is the later of two numbers, in serial number arithmetic.
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}
