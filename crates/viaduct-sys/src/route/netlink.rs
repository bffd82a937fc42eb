//! Netlink messages as bytes: a header, and attributes, which may be nested. Messages to
//! netfilter have a second header.
//!
//! ```text
//!   length u32 │ type u16 │ flags u16 │ number u32 │ port u32 │ family u8 │ version u8 │ what u16
//!   attributes, each: length u16 │ type u16 │ value, padded to 4 bytes
//! ```

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recv, sendto};

use crate::os;

/// Bytes of a message's header, and of netfilter's header after it.
const HEAD: usize = 16;
pub(crate) const NETFILTER_HEAD: usize = 4;
/// Max bytes of the answer to a request.
const ANSWER: usize = 16 << 10;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_ECHO: u16 = 8;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;

/// Opens a netlink socket for netfilter, in the calling thread's network namespace.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    open(libc::NETLINK_NETFILTER, 0)
}

/// A message being built.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// Begins a message to netfilter's subsystem `subsystem`; `what` is its resource ID, sent
    /// in network byte order.
    pub(crate) fn new(subsystem: u16, kind: u16, flags: u16, family: u8, what: u16) -> Message {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&(subsystem << 8 | kind).to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend([family, 0]);
        bytes.extend(what.to_be_bytes());
        Message(bytes)
    }

    /// Begins a message without netfilter's header: its payload begins with `head`.
    pub(crate) fn of_routing(kind: u16, flags: u16, head: &[u8]) -> Message {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(head);
        Message(bytes)
    }

    /// Adds an attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Message {
        attribute(&mut self.0, kind, value);
        self
    }

    /// Adds an attribute with nested attributes.
    pub(crate) fn nest(self, kind: u16, inner: &Attributes) -> Message {
        self.with(kind | NESTED, &inner.0)
    }

    /// Returns the finished message.
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// Attributes to be nested.
#[derive(Debug, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    /// Begins attributes that follow a header of their own.
    pub(crate) fn behind(head: &[u8]) -> Attributes {
        Attributes(head.to_vec())
    }

    /// Adds an attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Attributes {
        attribute(&mut self.0, kind, value);
        self
    }

    /// Adds an attribute with nested attributes.
    pub(crate) fn nest(self, kind: u16, inner: &Attributes) -> Attributes {
        self.with(kind | NESTED, &inner.0)
    }
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((value.len() as u16 + 4).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Returns the value of the attribute `kind` in `attributes`.
pub(crate) fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let found = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?) & !NESTED;
        let value = attributes.get(4..len)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Sends one or more messages in one datagram.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(socket, bytes, SendFlags::empty(), &kernel)?;
    Ok(())
}

/// Sends a request and returns the payload of the first answer of type `kind`; `None` if the
/// kernel refuses.
///
/// # Errors
/// The kernel cannot be asked.
pub(crate) fn ask(socket: impl AsFd, message: Message, kind: u16) -> io::Result<Option<Vec<u8>>> {
    send(&socket, &message.bytes())?;
    let mut answer = None;
    read(socket, &mut [0; ANSWER], |of, said| {
        if of == kind && answer.is_none() {
            answer = Some(said.to_vec());
        }
        false
    });
    Ok(answer)
}

/// Reads the answers to all messages sent so far; the kernel has answered when `send` returns.
///
/// # Errors
/// The first refusal.
pub(crate) fn read_acks(socket: impl AsFd) -> io::Result<()> {
    let (mut buffer, mut first) = ([0; 4096], Ok(()));
    loop {
        let len = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => len,
            Err(rustix::io::Errno::AGAIN) => return first,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for (kind, message) in messages(&buffer[..len]) {
            if kind == NLMSG_ERROR
                && let Some(&code) = message.first_chunk()
                && let code @ ..0 = i32::from_ne_bytes(code)
                && first.is_ok()
            {
                first = Err(io::Error::from_raw_os_error(-code));
            }
        }
    }
}

/// Returns the number of rules in `chain` of the nftables table `table`, family inet; 0 if
/// there is no such chain.
///
/// # Errors
/// The kernel has no nftables.
pub(crate) fn count_rules(table: &str, chain: &str) -> io::Result<usize> {
    const NFTABLES: u16 = 10;
    const NEW_RULE: u16 = 6;
    const GET_RULE: u16 = 7;
    const INET: u8 = 1;
    const DUMP: u16 = 0x300;
    const DONE: u16 = 3;
    let ask = Message::new(NFTABLES, GET_RULE, DUMP, INET, 0)
        .with(1, format!("{table}\0").as_bytes())
        .with(2, format!("{chain}\0").as_bytes());
    let socket = socket()?;
    send(&socket, &ask.bytes())?;
    let (mut buffer, mut rules) = (vec![0; 64 << 10], 0);
    loop {
        // The kernel fills the socket as it is read: there is nothing to wait for.
        let (len, _) = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            answer => answer?,
        };
        for (kind, message) in messages(&buffer[..len]) {
            match kind {
                DONE => return Ok(rules),
                NLMSG_ERROR => return refusal(message),
                _ => rules += usize::from(kind == NFTABLES << 8 | NEW_RULE),
            }
        }
    }
}

/// Interprets an error answer to a request for rules.
fn refusal(error: &[u8]) -> io::Result<usize> {
    let code = error.first_chunk().map_or(0, |&code| -i32::from_ne_bytes(code));
    if code == libc::ENOENT { Ok(0) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Opens a socket that receives notifications of `groups` (a bit each) of the kernel's
/// `protocol`, in the calling thread's network namespace.
pub(crate) fn open(protocol: c_int, groups: u32) -> io::Result<OwnedFd> {
    let socket = os::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Reads all that waits on such a socket. Returns whether a message, by its type and payload,
/// `matters`.
pub(crate) fn any_event(socket: impl AsFd, matters: impl FnMut(u16, &[u8]) -> bool) -> bool {
    read(socket, &mut vec![0; 64 << 10], matters)
}

fn read(socket: impl AsFd, buffer: &mut [u8], mut matters: impl FnMut(u16, &[u8]) -> bool) -> bool {
    let mut heard = false;
    loop {
        match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => {
                heard |= messages(&buffer[..len]).any(|(kind, message)| matters(kind, message));
            }
            // Messages were lost: some of them may matter.
            Err(rustix::io::Errno::NOBUFS) => heard = true,
            Err(rustix::io::Errno::INTR) => {}
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
