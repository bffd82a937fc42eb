//! Programs that are wrapped: their connects wait at a meeting ([`crate::meeting`]), and this process
//! hears where they were meant to go. Where no handler needs the bytes, the kernel does all the work and
//! programs keep their connections.
//!
//! ```text
//!   connect(2) ─▶ connect: notes where to, by cookie; another address ─▶ SYN ─▶ sock_ops: Heard::Waits
//!   getpeername(2) ─▶ what was meant            getsockname(2) ─▶ what Names::set_own has said
//!   what rules leave alone or refuse ─▶ Heard::Left, Heard::Refused, if that is wanted
//! ```
//!
//! | file | |
//! |---|---|
//! | `create` | sockets that may not be |
//! | `judge` | the user's rules as instructions |
//! | `programs` | the programs |
//! | `datagrams` | those for datagrams |
//! | `names` | questions of DNS |
//! | `serve` | connections to programs that listen |
//! | `options` | socket options that programs set |
//! | `ends` | how ends of connections are written |

mod create;
mod datagrams;
mod ends;
mod judge;
mod names;
mod options;
mod programs;
mod serve;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use self::ends::{BOUND, END, ENDS};
pub use self::judge::{Fate, Rule, Rules};
use self::names::Asked;
pub use self::names::Resolver;
use self::options::Options;
use self::serve::Serve;
pub use self::serve::{Inside, Ports};
use super::BpfError;
use super::events::Events;
use super::kernel::{Hook, Map, attach};
use crate::netns;
use crate::tcp::{MIRRORED, Mirrored};

/// Connections that are remembered, so that programs are told whom they meant.
const SOCKETS: u32 = 65_536;
/// Bytes of events that wait to be read; one that finds no room comes again with its SYN.
const RING: usize = 256 << 10;
/// Rules that a program tests.
const MOST: usize = 256;

// An event: the cookie, the destination, then what the kind says.
const EVENT: usize = 80;
const KIND: usize = 60;
/// Where the socket of a connect that waits stands, by its address in the kernel, or the value of an option.
const VALUE: i16 = 64;

/// What an event is about, in its last word.
#[derive(Clone, Copy)]
enum Kind {
    Waits = 0,
    LeftStream = 1,
    RefusedStream = 2,
    LeftDatagram = 3,
    RefusedDatagram = 4,
    Offloaded = 5,
    OffloadBegun = 6,
    Option = 7,
}

/// Which connects are ours, and where they wait.
#[derive(Clone, Debug)]
pub struct Diversion<'a> {
    /// For connections.
    pub streams: Rules,
    /// For datagrams.
    pub datagrams: Rules,
    /// What becomes of those that are to be diverted.
    pub carry: Carry,
    /// Where connects wait, by IPv4.
    pub v4: SocketAddr,
    /// The same by IPv6; without it those are refused.
    pub v6: Option<SocketAddr>,
    /// The listeners that take connections to programs: of IPv4, and of IPv6, at addresses that only this
    /// machine reaches. Without one they go there by themselves.
    pub listeners: [Option<BorrowedFd<'a>>; 2],
    /// Where programs that listen are noted.
    pub ports: Ports,
    /// Connections stay the programs', and the kernel does this for them; `None`: they come here.
    pub offload: Option<Offload>,
    /// Where questions of DNS are answered, if they are.
    pub resolver: Option<Resolver>,
    /// Whether what is left alone or refused is told of.
    pub tells: bool,
    /// Whether sockets that carry neither connections nor datagrams may not be opened.
    pub strict: bool,
}

impl Diversion<'_> {
    /// Whether it matters later where a connection was meant to go. If it is the program's own, and the
    /// kernel does nothing for it, nobody asks.
    fn takes_notes(&self) -> bool {
        self.tells || self.offload.is_none_or(|offload| offload.rate.is_some())
    }
}

/// What becomes of datagrams that are to be diverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// Nothing here: they are held on their way ([`crate::datagrams`]).
    Held,
    /// They cannot be; they go by themselves. The first is told of in any case.
    Left,
    /// They cannot be; they are refused. The first is told of in any case.
    Refused,
}

/// What the programs of one diversion share.
#[derive(Clone, Copy)]
struct Ours<'a> {
    map: &'a Map<ENDS>,
    events: &'a Events<EVENT>,
    diversion: &'a Diversion<'a>,
    asked: Option<&'a Asked>,
    /// The network namespace that we serve.
    netns: u64,
}

/// What the kernel does for connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Sends at most so many bytes a second on each.
    pub rate: Option<u32>,
}

/// What this process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A connect waits. It may be told of more than once.
    Waits(Waiting),
    /// A connection, or datagrams, went by itself.
    Left(Passing),
    /// It was refused.
    Refused(Passing),
    /// An option of a connection was set.
    Option(Optioned),
    /// A connection begins that is the program's own: where to.
    OffloadBegun(SocketAddr),
    /// A connection that was the program's own has ended: where to, bytes sent, bytes received. Over a long path that is
    /// after the program has closed it.
    Offloaded(SocketAddr, u64, u64),
}

/// What did not come here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing {
    /// Where to.
    pub to: SocketAddr,
    /// Whether it is datagrams.
    pub datagrams: bool,
}

/// A connect that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The socket's name among all of this kernel's.
    pub cookie: u64,
    /// Where it is meant to go.
    pub to: SocketAddr,
    /// The program's end of it.
    pub program: SocketAddr,
    /// Whether the program has chosen its port.
    pub is_bound: bool,
    /// The SYN's sequence number.
    pub syn: u32,
    /// Options that the program has set on the socket.
    pub mirrored: Mirrored,
}

/// An option that a program sets on a connection; the kernel may refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optioned {
    /// The program's end.
    pub program: SocketAddr,
    /// The other end's port.
    pub peer: u16,
    /// Which of [`MIRRORED`].
    pub which: usize,
    /// Its value.
    pub value: i32,
}

/// What wrapped programs are told of the ends of their connections.
#[derive(Clone, Debug)]
pub struct Names(Arc<Map<ENDS>>);

/// The programs at work.
#[derive(Debug)]
pub struct Divert {
    map: Arc<Map<ENDS>>,
    events: Events<EVENT>,
    serve: Option<Serve>,
    options: Options,
    /// Programs set some.
    have_options: bool,
}

impl Divert {
    /// For what runs in the cgroup `directory`, for as long as that is there: should this process end
    /// before them, connects lead to a meeting where nobody is, and not around the chain.
    ///
    /// # Errors
    /// A right is missing, the kernel is too old, or there are too many rules.
    pub fn attach(
        diversion: &Diversion<'_>,
        directory: BorrowedFd<'_>,
    ) -> Result<Divert, BpfError> {
        let given = diversion.streams.list.len().max(diversion.datagrams.list.len());
        if given > MOST {
            return Err(BpfError::TooMany { given, most: MOST });
        }
        let (map, events) = (Arc::new(Map::new(SOCKETS)?), Events::new(RING)?);
        let serve = Serve::new(diversion.listeners, &diversion.ports)?;
        let netns = netns::cookie().map_err(BpfError::Socket)?;
        // Names first, and those who tell us: nobody may be sent away without them.
        let options = Options::new()?;
        let tell =
            programs::tell(&map, &events, &options, serve.as_ref(), diversion.offload, netns);
        let asked = diversion.resolver.map(Asked::new).transpose()?;
        let ours = Ours { map: &map, events: &events, diversion, asked: asked.as_ref(), netns };
        let connect = |v4| programs::connect(&ours, v4);
        let message = |v4| datagrams::message(&ours, v4);
        if let Some(asked) = &asked {
            attach(Hook::Received4, &asked.answer(true), directory)?;
            attach(Hook::Received6, &asked.answer(false), directory)?;
        }
        let notes = [
            (Hook::SockOps, tell),
            (Hook::PeerName4, programs::name(&map, 0, true)),
            (Hook::PeerName6, programs::name(&map, 0, false)),
            (Hook::SocketName4, programs::name(&map, END, true)),
            (Hook::SocketName6, programs::name(&map, END, false)),
        ];
        let judges = [
            (Hook::Message4, message(true)),
            (Hook::Message6, message(false)),
            (Hook::SocketCreate, create::program(diversion.strict, &options)),
            (Hook::Connect4, connect(true)),
            (Hook::Connect6, connect(false)),
        ];
        if diversion.offload.is_none() {
            attach(Hook::SetOption, &options.program(&events), directory)?;
        }
        let notes = notes.iter().filter(|_| diversion.takes_notes());
        for (hook, program) in notes.chain(&judges) {
            attach(*hook, program, directory)?;
        }
        Ok(Divert { map, events, serve, options, have_options: false })
    }

    /// What this process is told next, if there is something.
    pub fn poll(&mut self) -> Option<Heard> {
        loop {
            let event = self.events.poll()?;
            let Some(mut heard) = read(&event) else { continue };
            if let Heard::Waits(waiting) = &mut heard {
                let [socket, rights] = [64, 72].map(|at| double(&event, at));
                let rights = [rights as u32, (rights >> 32) as u32];
                if self.have_options || rights != [0; 2] {
                    waiting.mirrored = self.options.get(socket, rights);
                }
            }
            self.have_options |= matches!(heard, Heard::Option(_));
            return Some(heard);
        }
    }

    /// What programs are told.
    pub fn names(&self) -> Names {
        Names(self.map.clone())
    }

    /// What leads connections to programs here, if they come here: it is at work while this process, or
    /// another that has it, is there, and refuses them once this one has ended.
    pub fn look_up(&self) -> Option<BorrowedFd<'_>> {
        self.serve.as_ref().map(|serve| serve.link.as_fd())
    }

    /// What is said of connections to programs, if they come here.
    pub fn inside(&self) -> Option<Inside> {
        self.serve.as_ref().map(|serve| serve.inside.clone())
    }
}

impl Names {
    /// What the program is told of its own end of the socket `cookie`, from now on.
    pub fn set_own(&self, cookie: u64, own: SocketAddr) {
        let Some(mut value) = self.0.get(cookie) else { return };
        value[END as usize..].copy_from_slice(&ends::write(own));
        // It may have been forgotten since: then it is told the truth.
        let _ = self.0.set(cookie, &value);
    }
}

impl AsFd for Divert {
    /// Readable when there is something to be told.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn double(event: &[u8; EVENT], at: usize) -> u64 {
    u64::from_ne_bytes(event[at..at + 8].try_into().expect("eight"))
}

fn read(event: &[u8; EVENT]) -> Option<Heard> {
    let word = |at: usize| u32::from_ne_bytes(event[at..at + 4].try_into().expect("four"));
    let double = |at: usize| double(event, at);
    let to = ends::read_meant(&event[8..32]);
    let stream = Passing { to, datagrams: false };
    let datagram = Passing { to, datagrams: true };
    let kind = word(KIND);
    Some(match kind {
        _ if kind == Kind::Waits as u32 => {
            let mut program = ends::read(&event[32..56]);
            // Ports of our own are told in this machine's order.
            program.set_port(word(52) as u16);
            let at = 8 + BOUND as usize;
            let is_bound = event[at..at + 2] != [0; 2];
            let (cookie, syn, mirrored) = (double(0), word(56), Mirrored::default());
            Heard::Waits(Waiting { cookie, to, program, is_bound, syn, mirrored })
        }
        _ if kind == Kind::Option as u32 => {
            let mut program = ends::read(&event[32..56]);
            program.set_port(word(52) as u16);
            let (which, value) = (word(68) as usize % MIRRORED, word(64).cast_signed());
            Heard::Option(Optioned { program, peer: to.port(), which, value })
        }
        _ if kind == Kind::LeftStream as u32 => Heard::Left(stream),
        _ if kind == Kind::RefusedStream as u32 => Heard::Refused(stream),
        _ if kind == Kind::LeftDatagram as u32 => Heard::Left(datagram),
        _ if kind == Kind::RefusedDatagram as u32 => Heard::Refused(datagram),
        _ if kind == Kind::OffloadBegun as u32 => Heard::OffloadBegun(to),
        // The kernel counts a SYN, and an end, for a byte each.
        _ if kind == Kind::Offloaded as u32 => {
            Heard::Offloaded(to, double(32).saturating_sub(2), double(40).saturating_sub(1))
        }
        _ => return None,
    })
}
