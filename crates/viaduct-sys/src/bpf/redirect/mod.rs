//! Redirection of wrapped programs by cgroup BPF: a connect is redirected to a rendezvous socket
//! ([`crate::socket::rendezvous`]), and this process learns the connect's intended destination. If
//! no handler needs the bytes, the connection is offloaded: the program keeps its own connection,
//! and no byte passes through this process.
//!
//! ```text
//!   connect(2) ─▶ connect: notes the destination by cookie, rewrites the address ─▶ SYN ─┐
//!                                                       sock_ops: event Connect ◀────────┘
//!   getpeername(2) ─▶ intended destination     getsockname(2) ─▶ address of SocketNames::set_own
//!   passed or refused by the rules ─▶ events Passed, Refused, if `reports` is set
//! ```
//!
//! | file | |
//! |---|---|
//! | `create` | refusal of sockets that would bypass these programs |
//! | `rules` | the user's rules |
//! | `programs` | the BPF programs for connections |
//! | `datagrams` | the BPF programs for datagrams |
//! | `dns` | DNS queries |
//! | `listeners` | connections to programs that listen |
//! | `ports` | where programs listen |
//! | `options` | socket options that programs set |
//! | `endpoints` | encoding of connection endpoints |

mod create;
mod datagrams;
mod dns;
mod endpoints;
mod listeners;
mod options;
mod ports;
mod programs;
mod rules;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use self::dns::DnsServers;
pub use self::dns::Resolver;
use self::endpoints::{BOUND, END, ENDS};
pub use self::listeners::InboundConns;
use self::listeners::ListenerRedirect;
use self::options::Options;
pub(super) use self::ports::LocalEnd;
pub use self::ports::Ports;
pub use self::rules::{Rule, RuleAction, Rules};
use super::BpfError;
use super::events::Events;
use super::kernel::{Hook, Map, attach};
use crate::netns;
use crate::socket::tcp::{MIRRORED, Mirrored};

/// Max connections whose intended destination is remembered for getpeername(2).
const SOCKETS: u32 = 65_536;
/// Bytes of the event ring. A connect event that does not fit is sent again when the kernel
/// retransmits the SYN.
const RING: usize = 256 << 10;
/// Max rules for connections, and for datagrams, that a BPF program tests.
const MAX_RULES: usize = 256;

// An event: the cookie, the destination, then fields that depend on the kind.
const EVENT: usize = 80;
const KIND: usize = 60;
/// Offset of the socket's kernel address (event `Connect`), or of the option's value (event
/// `Option`).
const VALUE: i16 = 64;

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

/// Configuration: what to redirect, and to which sockets.
#[derive(Clone, Debug)]
pub struct RedirectConfig<'a> {
    /// Rules for connections.
    pub streams: Rules,
    /// Rules for datagrams.
    pub datagrams: Rules,
    /// Handling of datagrams for which the rules say [`RuleAction::Redirect`].
    pub datagram_mode: DatagramMode,
    /// Rendezvous address for IPv4 connects.
    pub v4: SocketAddr,
    /// Rendezvous address for IPv6 connects, which are refused if `None`.
    pub v6: Option<SocketAddr>,
    /// Listeners of this process, IPv4 and IPv6, to which inbound connections to programs are
    /// redirected. Their addresses must be reachable only from this machine. Without any listener,
    /// connections reach the programs directly. If only one family has a listener, SYNs of the
    /// other family to programs are dropped.
    pub listeners: [Option<BorrowedFd<'a>>; 2],
    /// Addresses and ports that programs listen on.
    pub ports: Ports,
    /// Kernel features for offloaded connections; `None` if connections are redirected to this
    /// process.
    pub offload: Option<Offload>,
    /// Resolver for DNS queries; if `None`, queries are handled like other datagrams.
    pub resolver: Option<Resolver>,
    /// True if events are sent for connections and datagrams that pass or are refused.
    pub reports: bool,
    /// True if the only IP sockets that programs may open are TCP and UDP sockets.
    pub strict: bool,
}

impl RedirectConfig<'_> {
    /// Returns whether the intended destination of a connection is needed later. It is not needed
    /// for an offloaded connection without a pacing rate, if reports are off.
    fn needs_notes(&self) -> bool {
        self.reports || self.offload.is_none_or(|offload| offload.rate.is_some())
    }
}

/// Handling of datagrams for which the rules say [`RuleAction::Redirect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramMode {
    /// Datagrams pass this hook, and are held in a queue later ([`crate::nft::datagram_queue`]).
    Held,
    /// Datagrams cannot be handled, and pass untouched. The first datagram is reported even if
    /// [`RedirectConfig::reports`] is off.
    Passed,
    /// Datagrams cannot be handled, and are refused. The first datagram is reported even if
    /// [`RedirectConfig::reports`] is off.
    Refused,
}

/// State that the BPF programs of one redirection share.
#[derive(Clone, Copy)]
struct ProgramContext<'a> {
    map: &'a Map<ENDS>,
    events: &'a Events<EVENT>,
    config: &'a RedirectConfig<'a>,
    dns_servers: Option<&'a DnsServers>,
    /// Cookie of the network namespace that we serve.
    netns: u64,
}

/// Kernel features for an offloaded connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Max pacing rate of each connection in bytes per second.
    pub rate: Option<u32>,
}

/// Events for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirectEvent {
    /// A connect waits at the rendezvous. May be reported more than once.
    Connect(WaitingConnect),
    /// A connection, or datagrams, passed untouched.
    Passed(Traffic),
    /// A connection, or datagrams, were refused.
    Refused(Traffic),
    /// A program sets an option of a connection. The kernel may still refuse it.
    Option(OptionChange),
    /// An offloaded connection to this destination begins.
    OffloadStarted(SocketAddr),
    /// An offloaded connection has ended: destination, bytes sent, bytes received. The event may
    /// come a round-trip time or more after the program's close.
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

/// A connect that waits at the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingConnect {
    /// Socket cookie, unique in this kernel.
    pub cookie: u64,
    /// Intended destination.
    pub to: SocketAddr,
    /// Local address of the program's socket.
    pub program: SocketAddr,
    /// True if the program has bound its port.
    pub is_bound: bool,
    /// Sequence number of the SYN.
    pub syn: u32,
    /// Options that the program has set on the socket.
    pub mirrored: Mirrored,
}

/// An option that a program sets on a connection; the kernel may refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionChange {
    /// Local address of the program's socket.
    pub program: SocketAddr,
    /// Port of the other end.
    pub peer: u16,
    /// Index of the option in `MIRRORED_OPTIONS`.
    pub which: usize,
    /// Value of the option.
    pub value: i32,
}

/// Table of the addresses that getpeername(2) and getsockname(2) return to wrapped programs.
#[derive(Clone, Debug)]
pub struct SocketNames(Arc<Map<ENDS>>);

/// The attached BPF programs, with their maps and events.
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
    /// Attaches the programs to the cgroup `directory` until the cgroup is removed. If this process
    /// ends before the wrapped programs, their connects are redirected to a rendezvous address
    /// without a listener, and do not bypass the chain. Errors: a privilege is missing, the kernel
    /// is too old, or there are too many rules.
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
        // The hooks for names and `sock_ops` come first: they must be in place before any connect
        // is redirected.
        let notes = notes.iter().filter(|_| config.needs_notes());
        for (hook, program) in notes.chain(&verdicts) {
            attach(*hook, program, directory)?;
        }
        Ok(Redirect { map, events, listener_redirect, options, have_options: false })
    }

    /// Returns the next event, if there is one.
    pub fn poll(&mut self) -> Option<RedirectEvent> {
        loop {
            let event = self.events.poll()?;
            let Some(mut heard) = read(&event) else { continue };
            if let RedirectEvent::Connect(waiting) = &mut heard {
                let [socket, rights] = [64, 72].map(|at| u64_at(&event, at));
                let rights = [rights as u32, (rights >> 32) as u32];
                if self.have_options || rights != [0; 2] {
                    waiting.mirrored = self.options.get(socket, rights);
                }
            }
            self.have_options |= matches!(heard, RedirectEvent::Option(_));
            return Some(heard);
        }
    }

    /// Returns the table of addresses that programs see.
    pub fn names(&self) -> SocketNames {
        SocketNames(self.map.clone())
    }

    /// Returns the link of the BPF program that redirects inbound connections to this process;
    /// `None` if they are not redirected. The BPF program stays attached while any process holds
    /// the link. Once this process has ended, the BPF program drops the SYNs.
    pub fn inbound_link(&self) -> Option<BorrowedFd<'_>> {
        self.listener_redirect.as_ref().map(|listener_redirect| listener_redirect.link.as_fd())
    }

    /// Returns the table of the connections that this process opens to wrapped programs; `None` if
    /// inbound connections are not redirected.
    pub fn inbound_conns(&self) -> Option<InboundConns> {
        self.listener_redirect.as_ref().map(|listener_redirect| listener_redirect.inside.clone())
    }
}

impl SocketNames {
    /// Sets the local address of the socket `cookie` that getsockname(2) returns from now on.
    pub fn set_own(&self, cookie: u64, own: SocketAddr) {
        let Some(mut value) = self.0.get(cookie) else { return };
        value[END as usize..].copy_from_slice(&endpoints::write(own));
        // If this fails, the program sees the socket's real address.
        let _ = self.0.set(cookie, &value);
    }
}

impl AsFd for Redirect {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn u64_at(event: &[u8; EVENT], at: usize) -> u64 {
    u64::from_ne_bytes(event[at..at + 8].try_into().expect("eight"))
}

fn read(event: &[u8; EVENT]) -> Option<RedirectEvent> {
    let u32_at = |at: usize| u32::from_ne_bytes(event[at..at + 4].try_into().expect("four"));
    let u64_at = |at: usize| u64_at(event, at);
    let to = endpoints::read_meant(&event[8..32]);
    let stream = Traffic { to, datagrams: false };
    let datagram = Traffic { to, datagrams: true };
    let kind = u32_at(KIND);
    Some(match kind {
        _ if kind == EventKind::Connect as u32 => {
            let mut program = endpoints::read(&event[32..56]);
            // sock_ops has local ports in host byte order.
            program.set_port(u32_at(52) as u16);
            let at = 8 + BOUND as usize;
            let is_bound = event[at..at + 2] != [0; 2];
            let (cookie, syn, mirrored) = (u64_at(0), u32_at(56), Mirrored::default());
            RedirectEvent::Connect(WaitingConnect { cookie, to, program, is_bound, syn, mirrored })
        }
        _ if kind == EventKind::Option as u32 => {
            let mut program = endpoints::read(&event[32..56]);
            program.set_port(u32_at(52) as u16);
            let (which, value) = (u32_at(68) as usize % MIRRORED, u32_at(64).cast_signed());
            RedirectEvent::Option(OptionChange { program, peer: to.port(), which, value })
        }
        _ if kind == EventKind::PassedStream as u32 => RedirectEvent::Passed(stream),
        _ if kind == EventKind::RefusedStream as u32 => RedirectEvent::Refused(stream),
        _ if kind == EventKind::PassedDatagram as u32 => RedirectEvent::Passed(datagram),
        _ if kind == EventKind::RefusedDatagram as u32 => RedirectEvent::Refused(datagram),
        _ if kind == EventKind::OffloadStarted as u32 => RedirectEvent::OffloadStarted(to),
        // The kernel counts our SYN and our FIN as one sent byte each, and the peer's FIN as one
        // received byte.
        _ if kind == EventKind::OffloadEnded as u32 => RedirectEvent::OffloadEnded(
            to,
            u64_at(32).saturating_sub(2),
            u64_at(40).saturating_sub(1),
        ),
        _ => return None,
    })
}
