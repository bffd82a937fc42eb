//! Messages to and from the kernel, as bytes: a head, and attributes that may hold attributes. Those
//! to netfilter have a head of its own besides.
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

/// Bytes of a message's head, and of netfilter's behind it.
const HEAD: usize = 16;
pub(crate) const NETFILTER_HEAD: usize = 4;
/// Bytes of the answer to one question, at most.
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

/// A netlink socket for netfilter, of the calling thread's network namespace.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    hear(libc::NETLINK_NETFILTER, 0)
}

/// A message in the making.
#[derive(Debug)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// To netfilter's part `subsystem`; `what` is its number in there, in the order of the network.
    pub(crate) fn new(subsystem: u16, kind: u16, flags: u16, family: u8, what: u16) -> Message {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&(subsystem << 8 | kind).to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend([family, 0]);
        bytes.extend(what.to_be_bytes());
        Message(bytes)
    }

    /// To the kernel's routing, whose messages of this kind begin with `head`.
    pub(crate) fn of_routing(kind: u16, flags: u16, head: &[u8]) -> Message {
        let mut bytes = vec![0; HEAD];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(head);
        Message(bytes)
    }

    /// With an attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Message {
        attribute(&mut self.0, kind, value);
        self
    }

    /// With an attribute that holds attributes.
    pub(crate) fn nest(self, kind: u16, inner: &Attributes) -> Message {
        self.with(kind | NESTED, &inner.0)
    }

    /// Whole.
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
    /// Those that stand behind a head of their own.
    pub(crate) fn behind(head: &[u8]) -> Attributes {
        Attributes(head.to_vec())
    }

    /// With one more.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Attributes {
        attribute(&mut self.0, kind, value);
        self
    }

    /// With one more that holds attributes.
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

/// The attribute `kind` among `attributes`.
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

/// Sends messages that belong together.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(socket, bytes, SendFlags::empty(), &kernel)?;
    Ok(())
}

/// Asks one thing: what is behind the head of the first answer of the type `kind`; none if the kernel says no.
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

/// Reads the answers to all that was sent so far: the kernel has given them when `send` returns.
///
/// # Errors
/// The first that says no.
pub(crate) fn answers(socket: impl AsFd) -> io::Result<()> {
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

/// How many nftables rules `chain` of `table`, family inet, has; none if there is no such chain.
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
        // The kernel fills it as it is read: there is nothing to wait for.
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

/// What an error means to who has asked for rules.
fn refusal(error: &[u8]) -> io::Result<usize> {
    let code = error.first_chunk().map_or(0, |&code| -i32::from_ne_bytes(code));
    if code == libc::ENOENT { Ok(0) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// A socket that hears of what `groups` (a bit each) of the kernel's `protocol` tell, in the calling
/// thread's network namespace.
pub(crate) fn hear(protocol: c_int, groups: u32) -> io::Result<OwnedFd> {
    let socket = os::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Reads all that such a socket has, and says whether a message, by its type and what is behind its
/// head, `matters`.
pub(crate) fn heard(socket: impl AsFd, matters: impl FnMut(u16, &[u8]) -> bool) -> bool {
    read(socket, &mut vec![0; 64 << 10], matters)
}

fn read(socket: impl AsFd, buffer: &mut [u8], mut matters: impl FnMut(u16, &[u8]) -> bool) -> bool {
    let mut heard = false;
    loop {
        match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => {
                heard |= messages(&buffer[..len]).any(|(kind, message)| matters(kind, message));
            }
            // More than the socket holds: some of it may matter.
            Err(rustix::io::Errno::NOBUFS) => heard = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return heard,
        }
    }
}

/// The messages in `bytes`: their types, and what is behind their heads.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let message = bytes.get(HEAD..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, message))
    })
}
