//! Destination and TCP numbers of a server's answers, as a function of the request.

use std::net::{IpAddr, SocketAddr};

use super::tcp::{self, Kind, Segment};
use super::{Format, Mark, Role, TooLong, udp};

/// Return path of the answers to one request, not to a connection. It may be stored with the
/// request, copied, and used on another machine that has the server's address ([`Return::emit`]).
///
/// ```text
///   a request      seq s, length n, ack a, ahead h   ──▶  answers: numbers from a + h, ack s + n
///   a SYN          seq s                             ──▶  first: a SYN-ACK, number derived from s;
///                                                         others: that number + 1; ack s + 1
/// ```
///
/// The payloads of a SYN and of its answer occupy no sequence numbers: a SYN may be sent again with
/// another message, but conntrack keeps the length of the first SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    server: SocketAddr,
    client: SocketAddr,
    numbers: Numbers,
    /// Number of answers so far, modulo 256.
    count: u8,
}

/// Header fields of the next answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Udp,
    Tcp {
        /// True if the next answer is a SYN-ACK.
        syn: bool,
        seq: u32,
        ack: u32,
        /// Copied from the request's mark.
        ahead: u32,
        /// True if each answer advances the sequence number.
        moves: bool,
    },
}

impl Return {
    /// Return path of a request in TCP's format, whose mark states the message's length; `None` if
    /// `request` is an answer.
    pub fn of(request: &Segment) -> Option<Return> {
        let ahead = request.mark.ahead;
        let numbers = match request.kind {
            _ if request.mark.role != Role::Request => return None,
            Kind::SynAck => return None,
            Kind::Syn => {
                let ack = request.seq.wrapping_add(1);
                Numbers::Tcp { syn: true, seq: first_number(request.seq), ack, ahead, moves: false }
            }
            Kind::Data => {
                let seq = request.ack.wrapping_add(ahead);
                let ack = request.seq.wrapping_add(request.mark.length.into());
                Numbers::Tcp { syn: false, seq, ack, ahead, moves: true }
            }
        };
        let (server, client) = (request.destination, request.source);
        Some(Return { server, client, numbers, count: 0 })
    }

    /// Return path of a request in a UDP datagram.
    pub fn of_datagram(client: SocketAddr, server: SocketAddr) -> Return {
        Return { server, client, numbers: Numbers::Udp, count: 0 }
    }

    /// Address of the client: the source of the request's packet.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Address of the server to which the request was sent, and from which answers are sent.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Packet format of the answers.
    pub fn format(&self) -> Format {
        if self.numbers == Numbers::Udp { Format::Udp } else { Format::Tcp }
    }

    /// Maximum message length in a packet of `mtu` bytes.
    pub fn room(&self, mtu: usize) -> usize {
        let is_ipv4 = self.client.is_ipv4();
        mtu.saturating_sub(match self.numbers {
            Numbers::Udp => udp::overhead(is_ipv4),
            Numbers::Tcp { syn: true, .. } => tcp::overhead(is_ipv4, Kind::SynAck),
            Numbers::Tcp { .. } => tcp::overhead(is_ipv4, Kind::Data),
        })
    }

    /// Replaces the contents of `packet` by the next answer: a complete IP packet of at most `mtu`
    /// bytes, or with UDP the payload of a datagram. Errors: the message does not fit.
    pub fn answer(
        &mut self,
        message: &[u8],
        mtu: usize,
        packet: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        let room = self.room(mtu);
        if message.len() > room {
            return Err(TooLong { have: message.len(), room });
        }
        let count = self.count;
        match &mut self.numbers {
            Numbers::Udp => {
                packet.clear();
                packet.extend(udp::head(Role::Answer, count));
                packet.extend_from_slice(message);
            }
            Numbers::Tcp { syn, seq, ack, ahead, moves } => {
                let kind = if *syn { Kind::SynAck } else { Kind::Data };
                let mark = Mark { role: Role::Answer, count, length: 0, ahead: *ahead };
                let (source, destination) = (self.server, self.client);
                let (scaled, largest) = (true, u16::MAX);
                let segment = Segment {
                    source,
                    destination,
                    kind,
                    seq: *seq,
                    ack: *ack,
                    scaled,
                    largest,
                    mark,
                };
                tcp::emit(&segment, message, mtu, packet)?;
                let taken = if *moves { message.len() as u32 } else { u32::from(*syn) };
                *seq = seq.wrapping_add(taken);
                *syn = false;
            }
        }
        self.count = count.wrapping_add(1);
        Ok(())
    }

    /// Serializes the return path, as part of an extracted event, for another machine.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = match self.numbers {
            Numbers::Udp => vec![0],
            Numbers::Tcp { syn, moves, .. } => vec![1 | u8::from(syn) << 1 | u8::from(moves) << 2],
        };
        bytes.push(self.count);
        if let Numbers::Tcp { seq, ack, ahead, .. } = self.numbers {
            bytes.extend([seq, ack, ahead].map(u32::to_be_bytes).concat());
        }
        for end in [self.server, self.client] {
            bytes.extend(end.port().to_be_bytes());
            match end.ip() {
                IpAddr::V4(ip) => bytes.extend(ip.octets()),
                IpAddr::V6(ip) => bytes.extend(ip.octets()),
            }
        }
        bytes
    }

    /// Parses a serialized return path; `None` if it is invalid.
    pub fn parse(bytes: &[u8]) -> Option<Return> {
        let (&[kind, count], rest) = bytes.split_first_chunk()?;
        let number = |at: usize| Some(u32::from_be_bytes(*rest.get(at..)?.first_chunk()?));
        let (numbers, rest) = match kind {
            0 => (Numbers::Udp, rest),
            1..=7 if kind & 1 == 1 => {
                let (syn, moves) = (kind & 2 != 0, kind & 4 != 0);
                let (seq, ack, ahead) = (number(0)?, number(4)?, number(8)?);
                (Numbers::Tcp { syn, seq, ack, ahead, moves }, &rest[12..])
            }
            _ => return None,
        };
        let (server, client) = rest.split_at(rest.len() / 2);
        let (server, client) = (end(server)?, end(client)?);
        Some(Return { server, client, numbers, count })
    }
}

fn end(bytes: &[u8]) -> Option<SocketAddr> {
    let (port, ip) = bytes.split_first_chunk()?;
    let ip = match ip.len() {
        4 => IpAddr::from(*ip.first_chunk::<4>()?),
        16 => IpAddr::from(*ip.first_chunk::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

/// Initial sequence number of the answer to a SYN, the same for each copy of the SYN and on each
/// replica. It need not be unpredictable, because an address token, not the acknowledgement of this
/// number, proves the client's address.
fn first_number(seq: u32) -> u32 {
    let mixed = u64::from(seq).wrapping_add(0x5674).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(kind: Kind, v6: bool) -> Segment {
        let [source, destination] = match v6 {
            true => ["[fd00::1]:40000", "[fd00::2]:80"].map(|at| at.parse().unwrap()),
            false => ["10.0.0.1:40000", "10.0.0.2:80"].map(|at| at.parse().unwrap()),
        };
        let mark = Mark { role: Role::Request, count: 1, length: 100, ahead: 5_000 };
        let (seq, ack, scaled, largest) = (u32::MAX - 9, 7, true, u16::MAX);
        Segment { source, destination, kind, seq, ack, scaled, largest, mark }
    }

    fn answer(to: &mut Return, message: &[u8]) -> Segment {
        let mut packet = Vec::new();
        to.answer(message, 1500, &mut packet).unwrap();
        match tcp::parse(&packet, packet.len(), tcp::Checksum::Check) {
            Ok(tcp::Packet::Message(segment, read)) if read == message => segment,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_request_determines_the_numbers_of_its_answers() {
        for v6 in [false, true] {
            let request = segment(Kind::Data, v6);
            let mut to = Return::of(&request).unwrap();
            let (first, second) = (answer(&mut to, b"abc"), answer(&mut to, b"d"));
            assert_eq!((first.seq, first.ack, first.kind), (5_007, 90, Kind::Data));
            assert_eq!((second.seq, second.ack, second.mark.count), (5_010, 90, 1));
            assert_eq!((first.source, first.destination), (request.destination, request.source));
        }
    }

    #[test]
    fn only_the_first_answer_to_a_syn_is_a_syn_ack() {
        let mut to = Return::of(&segment(Kind::Syn, false)).unwrap();
        let [first, second, third] = [(); 3].map(|()| answer(&mut to, b"abc"));
        assert_eq!((first.kind, first.ack, first.scaled), (Kind::SynAck, u32::MAX - 8, true));
        for later in [second, third] {
            assert_eq!((later.kind, later.seq), (Kind::Data, first.seq.wrapping_add(1)));
        }
        let again = answer(&mut Return::of(&segment(Kind::Syn, false)).unwrap(), b"other");
        assert_eq!(again.seq, first.seq);
    }

    #[test]
    fn return_paths_round_trip() {
        for v6 in [false, true] {
            let mut to = Return::of(&segment(Kind::Data, v6)).unwrap();
            answer(&mut to, b"abc");
            let udp = Return::of_datagram(to.client(), to.server());
            for way in [to, udp, Return::of(&segment(Kind::Syn, v6)).unwrap()] {
                let bytes = way.emit();
                assert_eq!(Return::parse(&bytes), Some(way));
                assert!((0..bytes.len()).all(|cut| Return::parse(&bytes[..cut]) != Some(way)));
            }
        }
        assert_eq!(Return::parse(&[8; 30]), None);
    }

    #[test]
    fn messages_that_do_not_fit_are_refused() {
        let mut to = Return::of(&segment(Kind::Data, true)).unwrap();
        let room = to.room(1280);
        assert_eq!(room, 1280 - 72);
        let (mut packet, message) = (Vec::new(), vec![1; room + 1]);
        assert_eq!(to.answer(&message, 1280, &mut packet), Err(TooLong { have: room + 1, room }));
        to.answer(&message[1..], 1280, &mut packet).unwrap();
        assert_eq!(packet.len(), 1280);
    }
}
