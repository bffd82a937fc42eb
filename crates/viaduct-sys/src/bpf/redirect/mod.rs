//! Redirection of wrapped programs by cgroup BPF: a connect is redirected to a rendezvous
//! socket ([`crate::socket::rendezvous`]), and this process learns its intended destination. Where
//! no handler needs the bytes, the kernel does all the work and programs keep their connections.
//!
//! ```text
//!   connect(2) ─▶ connect: notes the destination by cookie, rewrites the address ─▶ SYN ─┐
//!                                                       sock_ops: event Connect ◀────────┘
//!   getpeername(2) ─▶ intended destination     getsockname(2) ─▶ address of SocketNames::set_own
//!   left alone or refused by the rules ─▶ events Passed, Refused, if `reports` is set
//! ```
//!
//! | file | |
//! |---|---|
//! | `create` | types of sockets that are refused |
//! | `rules` | the user's rules as instructions |
//! | `programs` | the programs for connections |
//! | `datagrams` | the programs for datagrams |
//! | `dns` | DNS queries |
//! | `listeners` | connections to programs that listen |
//! | `options` | socket options that programs set |
//! | `endpoints` | encoding of connection endpoints |

mod create;
mod datagrams;
mod dns;
mod endpoints;
mod listeners;
mod options;
mod programs;
mod rules;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use self::dns::DnsServers;
pub use self::dns::Resolver;
use self::endpoints::{BOUND, END, ENDS};
use self::listeners::ListenerRedirect;
pub use self::listeners::{InboundConns, Ports};
use self::options::Options;
pub use self::rules::{Rule, RuleAction, Rules};
use super::BpfError;
use super::events::Events;
use super::kernel::{Hook, Map, attach};
use crate::netns;
use crate::socket::tcp::{MIRRORED, Mirrored};

/// Max connections whose intended destination is remembered for getpeername(2).
const SOCKETS: u32 = 65_536;
/// Bytes of the event ring. An event that does not fit is sent again with its SYN's
/// retransmission.
const RING: usize = 256 << 10;
/// Max rules that a program tests.
const MAX_RULES: usize = 256;

// An event: the cookie, the destination, then fields that depend on the kind.
const EVENT: usize = 80;
const KIND: usize = 60;
/// Offset of a pending connect's socket, by its kernel address, or of an option's value.
const VALUE: i16 = 64;

/// Kind of an event, in its last word.
#[derive(Clone, Copy)]
enum EventKind {
    Connect = 0,
    PassedStream = 1,
    RefusedStream = 2,
    PassedDatagram = 3,
    RefusedDatagram = 4,
    OffloadEnded = 5,
    OffloadStarted = 6,
    Option = 7,
}

/// Connects to redirect, and the sockets to redirect them to.
#[derive(Clone, Debug)]
pub struct RedirectConfig<'a> {
    /// Rules for connections.
    pub streams: Rules,
    /// Rules for datagrams.
    pub datagrams: Rules,
    /// Handling of datagrams that are to be redirected.
    pub datagram_mode: DatagramMode,
    /// Rendezvous address for IPv4 connects.
    pub v4: SocketAddr,
    /// Rendezvous address for IPv6 connects; without it they are refused.
    pub v6: Option<SocketAddr>,
    /// Listeners that take connections to programs, IPv4 and IPv6, at addresses that only this
    /// machine reaches. Without one, connections reach the programs directly.
    pub listeners: [Option<BorrowedFd<'a>>; 2],
    /// Addresses and ports that programs listen at.
    pub ports: Ports,
    /// Offload: connections stay the programs' own, and the kernel does this for them. `None`:
    /// they are redirected to this process.
    pub offload: Option<Offload>,
    /// Resolver for DNS queries; without one they are handled like other datagrams.
    pub resolver: Option<Resolver>,
    /// True if events are sent for what is left alone or refused.
    pub reports: bool,
    /// True if IP sockets other than TCP and UDP ones are refused.
    pub strict: bool,
}

impl RedirectConfig<'_> {
    /// Returns whether the intended destination of a connection is needed later. It is not if
    /// no events are wanted and the connection stays the program's own without a pacing rate.
    fn needs_notes(&self) -> bool {
        self.reports || self.offload.is_none_or(|offload| offload.rate.is_some())
    }
}

/// Handling of datagrams that are to be redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramMode {
    /// Pass here, and are held on their way ([`crate::nft::datagram_queue`]).
    Held,
    /// Cannot be handled, and pass untouched. The first one is reported in any case.
    Passed,
    /// Cannot be handled, and are refused. The first one is reported in any case.
    Refused,
}

/// State that the programs of one redirection share.
#[derive(Clone, Copy)]
struct ProgramContext<'a> {
    map: &'a Map<ENDS>,
    events: &'a Events<EVENT>,
    config: &'a RedirectConfig<'a>,
    dns_servers: Option<&'a DnsServers>,
    /// Cookie of the network namespace that we serve.
    netns: u64,
}

/// Kernel features for a connection that stays the program's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Pacing rate of each connection, at most, in bytes per second.
    pub rate: Option<u32>,
}

/// Events for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectEvent {
    /// A connect waits. May be reported more than once.
    Connect(WaitingConnect),
    /// A connection, or datagrams, passed untouched.
    Passed(Traffic),
    /// A connection, or datagrams, were refused.
    Refused(Traffic),
    /// An option of a connection was set.
    Option(OptionChange),
    /// A connection that stays the program's own begins: its destination.
    OffloadStarted(SocketAddr),
    /// A connection that was the program's own has ended: destination, bytes sent, bytes
    /// received. Over a long path this comes after the program's close.
    OffloadEnded(SocketAddr, u64, u64),
}

/// Traffic that was not redirected to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Destination.
    pub to: SocketAddr,
    /// True for datagrams, false for a connection.
    pub datagrams: bool,
}

/// A connect that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingConnect {
    /// Socket cookie, unique in this kernel.
    pub cookie: u64,
    /// Intended destination.
    pub to: SocketAddr,
    /// The program's end of the connection.
    pub program: SocketAddr,
    /// True if the program has bound its port.
    pub is_bound: bool,
    /// The SYN's sequence number.
    pub syn: u32,
    /// Options that the program has set on the socket.
    pub mirrored: Mirrored,
}

/// An option that a program sets on a connection; the kernel may refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionChange {
    /// The program's end.
    pub program: SocketAddr,
    /// The other end's port.
    pub peer: u16,
    /// Index into [`MIRRORED`].
    pub which: usize,
    /// Value of the option.
    pub value: i32,
}

/// Addresses that wrapped programs see for the ends of their connections.
#[derive(Clone, Debug)]
pub struct SocketNames(Arc<Map<ENDS>>);

/// The attached programs.
#[derive(Debug)]
pub struct Redirect {
    map: Arc<Map<ENDS>>,
    events: Events<EVENT>,
    listener_redirect: Option<ListenerRedirect>,
    options: Options,
    /// True once a program has set an option.
    have_options: bool,
}

impl Redirect {
    /// Attaches to the cgroup `directory`, for as long as the cgroup exists. If this process
    /// ends before the wrapped programs, their connects lead to a rendezvous address without a
    /// listener and do not bypass the chain.
    ///
    /// # Errors
    /// A right is missing, the kernel is too old, or there are too many rules.
    pub fn attach(
        config: &RedirectConfig<'_>,
        directory: BorrowedFd<'_>,
    ) -> Result<Redirect, BpfError> {
        let given = config.streams.list.len().max(config.datagrams.list.len());
        if given > MAX_RULES {
            return Err(BpfError::TooMany { given, most: MAX_RULES });
        }
        let (map, events) = (Arc::new(Map::new(SOCKETS)?), Events::new(RING)?);
        let listener_redirect = ListenerRedirect::new(config.listeners, &config.ports)?;
        let netns = netns::cookie().map_err(BpfError::Socket)?;
        // The name hooks and `sock_ops` are attached first: no connect may be redirected without
        // them.
        let options = Options::new()?;
        let sock_ops = programs::sock_ops_program(
            &map,
            &events,
            &options,
            listener_redirect.as_ref(),
            config.offload,
            netns,
        );
        let dns_servers = config.resolver.map(DnsServers::new).transpose()?;
        let context = ProgramContext {
            map: &map,
            events: &events,
            config,
            dns_servers: dns_servers.as_ref(),
            netns,
        };
        let connect = |v4| programs::connect(&context, v4);
        let message = |v4| datagrams::message(&context, v4);
        if let Some(dns_servers) = &dns_servers {
            attach(Hook::Received4, &dns_servers.answer(true), directory)?;
            attach(Hook::Received6, &dns_servers.answer(false), directory)?;
        }
        let notes = [
            (Hook::SockOps, sock_ops),
            (Hook::PeerName4, programs::sock_name(&map, 0, true)),
            (Hook::PeerName6, programs::sock_name(&map, 0, false)),
            (Hook::SocketName4, programs::sock_name(&map, END, true)),
            (Hook::SocketName6, programs::sock_name(&map, END, false)),
        ];
        let verdicts = [
            (Hook::Message4, message(true)),
            (Hook::Message6, message(false)),
            (Hook::SocketCreate, create::program(config.strict, &options)),
            (Hook::Connect4, connect(true)),
            (Hook::Connect6, connect(false)),
        ];
        if config.offload.is_none() {
            attach(Hook::SetOption, &options.program(&events), directory)?;
        }
        let notes = notes.iter().filter(|_| config.needs_notes());
        for (hook, program) in notes.chain(&verdicts) {
            attach(*hook, program, directory)?;
        }
        Ok(Redirect { map, events, listener_redirect, options, have_options: false })
    }

    /// Next event, if there is one.
    pub fn poll(&mut self) -> Option<RedirectEvent> {
        loop {
            let event = self.events.poll()?;
            let Some(mut heard) = read(&event) else { continue };
            if let RedirectEvent::Connect(waiting) = &mut heard {
                let [socket, rights] = [64, 72].map(|at| double(&event, at));
                let rights = [rights as u32, (rights >> 32) as u32];
                if self.have_options || rights != [0; 2] {
                    waiting.mirrored = self.options.get(socket, rights);
                }
            }
            self.have_options |= matches!(heard, RedirectEvent::Option(_));
            return Some(heard);
        }
    }

    /// Address table that programs see.
    pub fn names(&self) -> SocketNames {
        SocketNames(self.map.clone())
    }

    /// Link of the program that redirects connections to wrapped programs to this process, if
    /// they are redirected. It works while this process, or another holder of the link, lives,
    /// and refuses connections once this process has ended.
    pub fn look_up(&self) -> Option<BorrowedFd<'_>> {
        self.listener_redirect.as_ref().map(|listener_redirect| listener_redirect.link.as_fd())
    }

    /// Table of connections that this process makes to wrapped programs, if they are
    /// redirected.
    pub fn inbound_conns(&self) -> Option<InboundConns> {
        self.listener_redirect.as_ref().map(|listener_redirect| listener_redirect.inside.clone())
    }
}

impl SocketNames {
    /// Sets the program's own address of the socket `cookie`, as getsockname(2) shows it from
    /// now on.
    pub fn set_own(&self, cookie: u64, own: SocketAddr) {
        let Some(mut value) = self.0.get(cookie) else { return };
        value[END as usize..].copy_from_slice(&endpoints::write(own));
        // The entry may have been evicted since; the program then sees its real address.
        let _ = self.0.set(cookie, &value);
    }
}

impl AsFd for Redirect {
    /// Readable when an event waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn double(event: &[u8; EVENT], at: usize) -> u64 {
    u64::from_ne_bytes(event[at..at + 8].try_into().expect("eight"))
}

fn read(event: &[u8; EVENT]) -> Option<RedirectEvent> {
    let word = |at: usize| u32::from_ne_bytes(event[at..at + 4].try_into().expect("four"));
    let double = |at: usize| double(event, at);
    let to = endpoints::read_meant(&event[8..32]);
    let stream = Traffic { to, datagrams: false };
    let datagram = Traffic { to, datagrams: true };
    let kind = word(KIND);
    Some(match kind {
        _ if kind == EventKind::Connect as u32 => {
            let mut program = endpoints::read(&event[32..56]);
            // sock_ops gives local ports in host byte order.
            program.set_port(word(52) as u16);
            let at = 8 + BOUND as usize;
            let is_bound = event[at..at + 2] != [0; 2];
            let (cookie, syn, mirrored) = (double(0), word(56), Mirrored::default());
            RedirectEvent::Connect(WaitingConnect { cookie, to, program, is_bound, syn, mirrored })
        }
        _ if kind == EventKind::Option as u32 => {
            let mut program = endpoints::read(&event[32..56]);
            program.set_port(word(52) as u16);
            let (which, value) = (word(68) as usize % MIRRORED, word(64).cast_signed());
            RedirectEvent::Option(OptionChange { program, peer: to.port(), which, value })
        }
        _ if kind == EventKind::PassedStream as u32 => RedirectEvent::Passed(stream),
        _ if kind == EventKind::RefusedStream as u32 => RedirectEvent::Refused(stream),
        _ if kind == EventKind::PassedDatagram as u32 => RedirectEvent::Passed(datagram),
        _ if kind == EventKind::RefusedDatagram as u32 => RedirectEvent::Refused(datagram),
        _ if kind == EventKind::OffloadStarted as u32 => RedirectEvent::OffloadStarted(to),
        // The kernel's counters include one byte each for SYN and FIN.
        _ if kind == EventKind::OffloadEnded as u32 => RedirectEvent::OffloadEnded(
            to,
            double(32).saturating_sub(2),
            double(40).saturating_sub(1),
        ),
        _ => return None,
    })
}
