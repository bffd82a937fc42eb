//! Netlink sockets, messages, and their attributes. The module `rtnetlink` builds the bodies of
//! most routing messages with the crate `netlink-packet-route`.
//!
//! ```text
//!   length u32 │ type u16 │ flags u16 │ number u32 │ port u32 │ family u8 │ version u8 │ what u16
//!   attributes, each: length u16 │ type u16 │ value, padded to 4 bytes
//! ```
//!
//! The last three fields of the header are netfilter's.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use netlink_packet_core::{
    NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NlasIterator,
};
pub(crate) use netlink_packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_REPLACE,
};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recv, sendto};

use crate::os;

/// Bytes of a message's header.
const HEAD: usize = 16;
/// Bytes of netfilter's header, which follows the message's header.
pub(crate) const NETFILTER_HEAD: usize = 4;
/// Max bytes that one read returns.
const MAX_READ: usize = 64 << 10;

/// Opens a netlink socket for netfilter, in the calling thread's network namespace.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    open(libc::NETLINK_NETFILTER, 0)
}

#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Begins a message to netfilter's `subsystem`; `what` is the resource ID, which is sent in
    /// network order.
    pub(crate) fn new(subsystem: u16, kind: u16, flags: u16, family: u8, what: u16) -> Message {
        let [high, low] = what.to_be_bytes();
        Message::with_head(subsystem << 8 | kind, flags, &[family, 0, high, low])
    }

    /// Begins a message without netfilter's header: its payload begins with `head`.
    pub(crate) fn with_head(kind: u16, flags: u16, head: &[u8]) -> Message {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(head);
        Message(bytes)
    }

    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Message {
        attribute(&mut self.0, kind, value);
        self
    }

    pub(crate) fn nest(self, kind: u16, inner: &Attributes) -> Message {
        self.with(kind | NLA_F_NESTED, &inner.0)
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn parse(bytes: &[u8]) -> Attributes {
        Attributes(bytes.to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Attributes {
        attribute(&mut self.0, kind, value);
        self
    }

    pub(crate) fn nest(self, kind: u16, inner: &Attributes) -> Attributes {
        self.with(kind | NLA_F_NESTED, &inner.0)
    }
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((value.len() as u16 + 4).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Returns the value of the attribute `kind` in `attributes`.
pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = NlasIterator::new(attributes).map_while(Result::ok);
    let found = all.find(|attribute| attribute.kind() == kind)?;
    found.into_inner().get(NLA_HEADER_SIZE..usize::from(found.length()))
}

/// Sends one or more messages in one datagram.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(socket, bytes, SendFlags::empty(), &kernel)?;
    Ok(())
}

/// Sends a request, which has the flag `NLM_F_ACK` or `NLM_F_DUMP`, and passes each answer's type
/// and payload to `answer`. Returns `Ok(Err(_))` if the kernel refuses the request. Errors: the
/// socket cannot be written or read. No read blocks: the kernel answers before `send` returns, and
/// continues a dump whenever the socket is read.
pub(crate) fn exchange(
    socket: impl AsFd,
    request: &[u8],
    mut answer: impl FnMut(u16, &[u8]),
) -> io::Result<io::Result<()>> {
    send(&socket, request)?;
    let mut buffer = vec![0; MAX_READ];
    loop {
        let (len, _) = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        for (kind, payload) in messages(&buffer[..len]) {
            match kind {
                NLMSG_DONE | NLMSG_ERROR => return Ok(status(payload)),
                _ => answer(kind, payload),
            }
        }
    }
}

/// Interprets an acknowledgement, or the end of a dump.
fn status(payload: &[u8]) -> io::Result<()> {
    match payload.first_chunk().map_or(0, |&code| i32::from_ne_bytes(code)) {
        code @ ..0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Ok(()),
    }
}

/// Returns the answer in `bytes` to a request of type `kind`, if there is one.
pub(crate) fn answer_to(bytes: &[u8], kind: u16) -> Option<io::Result<()>> {
    messages(bytes).find_map(|(of, payload)| {
        // The answer contains the header of the request: its length, and then its type.
        let request = payload.get(8..10)?.try_into().map(u16::from_ne_bytes).ok()?;
        (of == NLMSG_ERROR && request == kind).then(|| status(payload))
    })
}

/// Sends a request with the flag `NLM_F_ACK` and returns the payload of the first answer of type
/// `kind`; `None` if the kernel refuses. Errors: the socket cannot be written or read.
pub(crate) fn ask(socket: impl AsFd, message: Message, kind: u16) -> io::Result<Option<Vec<u8>>> {
    let mut first = None;
    let accepted = exchange(socket, &message.bytes(), |of, payload| {
        if of == kind && first.is_none() {
            first = Some(payload.to_vec());
        }
    })?;
    Ok(first.filter(|_| accepted.is_ok()))
}

/// Reads the answers to all messages sent so far; the kernel has answered when `send` returns.
/// Errors: the first error with which the kernel has refused a message.
pub(crate) fn read_acks(socket: impl AsFd) -> io::Result<()> {
    let (mut buffer, mut first) = ([0; 4096], Ok(()));
    loop {
        let len = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => len,
            Err(Errno::AGAIN) => return first,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for (kind, message) in messages(&buffer[..len]) {
            if kind == NLMSG_ERROR && first.is_ok() {
                first = status(message);
            }
        }
    }
}

/// Opens a netlink socket of `protocol` in the calling thread's network namespace. The socket
/// receives the notifications of `groups` (one bit each).
pub(crate) fn open(protocol: c_int, groups: u32) -> io::Result<OwnedFd> {
    let socket = os::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Reads all messages queued on a socket of [`open`]. Returns true if `matters` is true for the
/// type and payload of any of them, or if messages were lost.
pub(crate) fn any_event(socket: impl AsFd, mut matters: impl FnMut(u16, &[u8]) -> bool) -> bool {
    let (mut buffer, mut heard) = (vec![0; MAX_READ], false);
    loop {
        match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => {
                heard |= messages(&buffer[..len]).any(|(kind, message)| matters(kind, message));
            }
            // Messages were lost: some of them may matter.
            Err(Errno::NOBUFS) => heard = true,
            Err(Errno::INTR) => {}
            Err(_) => return heard,
        }
    }
}

/// Iterates over the messages in `bytes`: type and payload.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let message = bytes.get(HEAD..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    })
}
