//! Protocol between a run and the master that it shares with other runs: records of a fixed
//! length over a `SOCK_SEQPACKET` socket. Numbers are in the machine's byte order, because both
//! ends run on the same machine.
//!
//! The run captures its program's calls and keeps the program's side of each flow; the master
//! carries the flow. Records announce the endpoints of flows and pass sockets; they carry no data
//! of flows.
//!
//! ```text
//!   run ── Hello ──────────────────▶ master     once; answered by a Welcome (`wire`)
//!       ── Call, a socket ─────────▶            a program connects; the socket is the master's end
//!       ◀── Named … Meet ───────────            the run connects the socket to the program
//!       ◀── Refuse, Gone ───────────            the connect failed; the flow has ended
//!       ── Arrival, its stream, a socket ▶      a client connects to a program
//!       ◀── Meet ───────────────────            the handlers accept the client
//!       ◀── Another ────────────────            one more flow of this client, for the same program
//!       ── Another, a socket; NoOther ─▶
//!
//!   record    magic 4 │ version 2 │ kind 1 │ why, or lent 1 │ id 8 │ of, or is_bound 8
//!             │ address 24 │ address 24 │ options
//!   options   bit mask of options set 4 │ values 4 each
//! ```

use std::net::SocketAddr;

use viaduct_wrap::record::{ADDRESS, Reader, Writer};
use viaduct_wrap::wire::VERSION;

use crate::flow::Failure;

/// Bytes of a record.
pub const RECORD: usize = 24 + 2 * ADDRESS + 4 + 4 * OPTIONS;
/// Number of socket options that a record may have.
pub const OPTIONS: usize = 11;
const MAGIC: u32 = u32::from_be_bytes(*b"vdms");

/// Record from a run. The run gives each flow a unique number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// First record: announces the run and its network namespace.
    Hello {
        /// Inode number of the namespace.
        network: u64,
    },
    /// A program connects. Attached: a socket that will be connected to the program's socket.
    Call {
        /// The flow's number.
        id: u64,
        /// Destination.
        to: SocketAddr,
        /// Address of the program's end.
        source: SocketAddr,
        /// True if a process of a user other than the sender may also hold the socket.
        lent: bool,
        /// True if the program has chosen the source port.
        is_bound: bool,
        /// Values of the socket options that the program has set, in an order known to both ends.
        options: [Option<i32>; OPTIONS],
    },
    /// A client has connected to a program. Attached: the connection, and a socket that will be
    /// connected to the program.
    Arrival {
        /// The flow's number.
        id: u64,
        /// Address of the client.
        client: SocketAddr,
        /// Original destination of the connection.
        own: SocketAddr,
        /// True if a process of a user other than the sender may also hold the sockets.
        lent: bool,
    },
    /// Opens one more flow of an arrival's client, for the same program. Attached: a socket that
    /// will be connected to the program.
    Another {
        /// The flow's number.
        id: u64,
        /// Number of the arrival.
        of: u64,
    },
    /// No further flow can be opened for the arrival's program.
    NoOther {
        /// Number of the arrival.
        of: u64,
    },
}

/// Record from the master about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Sets the local address that the program sees.
    Named {
        /// Number of the flow.
        id: u64,
        /// Local address.
        own: SocketAddr,
    },
    /// Asks the run to connect the socket of this flow to the program.
    Meet {
        /// Number of the flow.
        id: u64,
    },
    /// The connect has failed, and the program receives the error.
    Refuse {
        /// Number of the flow.
        id: u64,
        /// Reason.
        why: Failure,
    },
    /// The flow has ended at the master.
    Gone {
        /// Number of the flow.
        id: u64,
    },
    /// Asks for one more flow of this arrival's client, to the same program.
    Another {
        /// Number of the arrival.
        id: u64,
    },
}

const FAILURES: [Failure; 6] = [
    Failure::Refused,
    Failure::Unreachable,
    Failure::TimedOut,
    Failure::Reset,
    Failure::Denied,
    Failure::Full,
];

impl Up {
    /// Serializes the record.
    pub fn emit(&self) -> [u8; RECORD] {
        match *self {
            Up::Hello { network } => record(1, 0, [network, 0], [None; 2]),
            Up::Call { id, to, source, lent, is_bound, options } => {
                let ids = [id, is_bound.into()];
                let mut bytes = record(2, lent.into(), ids, [Some(to), Some(source)]);
                put_options(&mut bytes, &options);
                bytes
            }
            Up::Arrival { id, client, own, lent } => {
                record(3, lent.into(), [id, 0], [Some(client), Some(own)])
            }
            Up::Another { id, of } => record(4, 0, [id, of], [None; 2]),
            Up::NoOther { of } => record(5, 0, [0, of], [None; 2]),
        }
    }

    /// Parses a record; `None` if `bytes` are not one.
    pub fn parse(bytes: &[u8]) -> Option<Up> {
        let (kind, lent, [id, of], addresses) = parts(bytes)?;
        let lent = lent != 0;
        Some(match (kind, addresses) {
            (1, [None, None]) => Up::Hello { network: id },
            (2, [Some(to), Some(source)]) if of <= 1 => {
                let (is_bound, options) = (of == 1, options_of(bytes));
                Up::Call { id, to, source, lent, is_bound, options }
            }
            (3, [Some(client), Some(own)]) => Up::Arrival { id, client, own, lent },
            (4, [None, None]) => Up::Another { id, of },
            (5, [None, None]) => Up::NoOther { of },
            _ => return None,
        })
    }
}

impl Down {
    /// Returns the number of the flow that the record is about.
    pub fn id(&self) -> u64 {
        match *self {
            Down::Named { id, .. }
            | Down::Meet { id }
            | Down::Refuse { id, .. }
            | Down::Gone { id }
            | Down::Another { id } => id,
        }
    }

    /// Serializes the record.
    pub fn emit(&self) -> [u8; RECORD] {
        match *self {
            Down::Named { id, own } => record(11, 0, [id, 0], [Some(own), None]),
            Down::Meet { id } => record(12, 0, [id, 0], [None; 2]),
            Down::Refuse { id, why } => {
                let why = FAILURES.iter().position(|of| *of == why).unwrap_or_default();
                record(13, why as u8, [id, 0], [None; 2])
            }
            Down::Gone { id } => record(14, 0, [id, 0], [None; 2]),
            Down::Another { id } => record(15, 0, [id, 0], [None; 2]),
        }
    }

    /// Parses a record; `None` if `bytes` are not one.
    pub fn parse(bytes: &[u8]) -> Option<Down> {
        let (kind, why, [id, _], addresses) = parts(bytes)?;
        Some(match (kind, addresses) {
            (11, [Some(own), None]) => Down::Named { id, own },
            (12, [None, None]) => Down::Meet { id },
            (13, [None, None]) => Down::Refuse { id, why: *FAILURES.get(usize::from(why))? },
            (14, [None, None]) => Down::Gone { id },
            (15, [None, None]) => Down::Another { id },
            _ => return None,
        })
    }
}

fn record(kind: u8, why: u8, ids: [u64; 2], addresses: [Option<SocketAddr>; 2]) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let mut out = Writer { bytes: &mut bytes };
    out.put(&MAGIC.to_ne_bytes());
    out.put(&VERSION.to_ne_bytes());
    out.put(&[kind, why]);
    ids.iter().for_each(|id| out.put(&id.to_ne_bytes()));
    addresses.into_iter().for_each(|address| out.address(address));
    bytes
}

/// Offset of the options in a record.
const AT: usize = RECORD - 4 * (OPTIONS + 1);

fn put_options(bytes: &mut [u8; RECORD], options: &[Option<i32>; OPTIONS]) {
    let which = options.iter().rev().fold(0u32, |bits, of| bits << 1 | u32::from(of.is_some()));
    let words = [which.cast_signed()].into_iter().chain(options.map(Option::unwrap_or_default));
    for (to, word) in bytes[AT..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
}

fn options_of(bytes: &[u8]) -> [Option<i32>; OPTIONS] {
    let words = bytes[AT..].as_chunks::<4>().0;
    let which = u32::from_ne_bytes(words[0]);
    std::array::from_fn(|n| (which >> n & 1 == 1).then(|| i32::from_ne_bytes(words[n + 1])))
}

type Parts = (u8, u8, [u64; 2], [Option<SocketAddr>; 2]);

/// Splits a record of this version into its fields, apart from the options.
fn parts(bytes: &[u8]) -> Option<Parts> {
    let mut rest = Reader { bytes };
    let ours = rest.take()? == MAGIC.to_ne_bytes() && rest.take()? == VERSION.to_ne_bytes();
    let (kind, why) = (rest.byte()?, rest.byte()?);
    let ids = [u64::from_ne_bytes(rest.take()?), u64::from_ne_bytes(rest.take()?)];
    let addresses = [rest.address()?, rest.address()?];
    (ours && rest.bytes.len() == RECORD - AT).then_some((kind, why, ids, addresses))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<[u8; 4]>().prop_map(std::net::IpAddr::from),
            // An IPv4-mapped address is read back as IPv4.
            any::<[u8; 16]>().prop_map(|ip| std::net::IpAddr::from(ip).to_canonical()),
        ];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            id: u64,
            of: u64,
            one in address(),
            other in address(),
            why in 0..6usize,
            lent: bool,
            options: [Option<i32>; OPTIONS],
        ) {
            let ups = [
                Up::Hello { network: id },
                Up::Call {
                    id,
                    to: one,
                    source: other,
                    lent,
                    is_bound: of.is_multiple_of(2),
                    options,
                },
                Up::Arrival { id, client: one, own: other, lent },
                Up::Another { id, of },
                Up::NoOther { of },
            ];
            for up in ups {
                prop_assert_eq!(Up::parse(&up.emit()), Some(up));
                prop_assert_eq!(Down::parse(&up.emit()), None);
            }
            let downs = [
                Down::Named { id, own: one },
                Down::Meet { id },
                Down::Refuse { id, why: FAILURES[why] },
                Down::Gone { id },
                Down::Another { id },
            ];
            for down in downs {
                prop_assert_eq!(Down::parse(&down.emit()), Some(down));
                prop_assert_eq!(down.id(), id);
                prop_assert_eq!(Up::parse(&down.emit()), None);
            }
        }

        #[test]
        fn other_messages_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Up::parse(&bytes).is_none() && Down::parse(&bytes).is_none());
        }

        #[test]
        fn a_record_that_was_cut_or_has_another_version_is_refused(cut in 0..RECORD, id: u64) {
            let mut bytes = Down::Meet { id }.emit();
            prop_assert!(Down::parse(&bytes[..cut]).is_none());
            bytes[4] ^= 1;
            prop_assert!(Down::parse(&bytes).is_none());
        }
    }
}
