//! Server side: [`ServerPort`] receives the requests of all clients and sends answers, in batches,
//! and keeps no state of clients.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use viaduct_proto::trickles::packet::icmp::{self, Why};
use viaduct_proto::trickles::packet::stats::Refusal;
use viaduct_proto::trickles::packet::tcp::{self, Checksum, Packet};
use viaduct_proto::trickles::packet::{Format, Return, Role, TooLong, mark, udp};
use viaduct_proto::wire::datagram;
use viaduct_sys::capture::filter::{OptionFilter, OptionMark, Share};
use viaduct_sys::capture::option_tap::OptionTap;
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::rst_guard::RstGuard;
use viaduct_sys::socket::mmsg::{self, Inbox, Outbox, Received};
use viaduct_sys::socket::udp::UdpBatch;

use crate::egress::{Egress, now};
use crate::gso::GsoSender;
use crate::local::Local;
use crate::stats::PortStats;
use crate::tcp_sockets::TcpSockets;
use crate::{PortError, SEND_BUFFER, check_mtu};

/// Settings of a server's port.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Addresses and ports to listen at. `0.0.0.0` and `[::]` stand for all addresses of their
    /// family, including addresses that are added later.
    pub listen: Vec<SocketAddr>,
    /// True to serve packets in TCP's format; requires root, or CAP_NET_RAW and CAP_NET_ADMIN.
    pub tcp: bool,
    /// True to serve UDP datagrams.
    pub udp: bool,
    /// Maximum length of sent packets in bytes, 576 to 65535; lower if an interface, or a router on
    /// the path, requires it.
    pub mtu: usize,
    /// True if sent packets are exempt from this host's conntrack; must be false if the host
    /// applies NAT to its own packets.
    pub untracked: bool,
    /// True if consecutive packets to one client may be sent as one GSO packet, which bypasses
    /// netfilter's output hooks.
    pub gso: bool,
    /// Directory of the journal of changed rules.
    pub run_dir: PathBuf,
    /// Share of the clients, if several [`ServerPort`]s of one process have the same addresses. A
    /// client's port number selects its share. Share 0 must be opened first and closed last,
    /// because it owns the rules.
    pub share: Option<Share>,
}

/// A server's port, used by one thread. Several processes of a host may each have a port, with
/// different port numbers or addresses; in TCP's format, `0.0.0.0` and `[::]` count as one address.
#[derive(Debug)]
pub struct ServerPort {
    listen: Vec<SocketAddr>,
    tap: Option<OptionTap>,
    inbox: Inbox,
    local: Local,
    answers: Answers,
    /// Dropped last, so that the rule is in force while packets arrive.
    _changes: Option<Changes>,
}

/// Sender of answers, which are queued until the end of the batch.
#[derive(Debug)]
pub struct Answers {
    egress: Egress,
    datagrams: Vec<Datagrams>,
    packet: Vec<u8>,
}

/// A UDP socket with its send queue.
#[derive(Debug)]
struct Datagrams {
    bound: SocketAddr,
    socket: UdpBatch,
    queue: Outbox,
}

const REQUESTS: OptionMark = OptionMark { word: mark::WORD, byte: Role::Request.byte() };

impl ServerPort {
    /// Opens the port in the calling thread's network namespace. Errors: there is no address, the
    /// MTU is invalid, privilege is missing, an address is in use, or a rule cannot be set. On an
    /// error, the rules that were changed are reverted.
    pub fn open(settings: &ServerSettings) -> Result<ServerPort, PortError> {
        check_mtu(settings.mtu)?;
        let first = settings.listen.first().ok_or(PortError::NoAddress)?;
        let mut ports: Vec<u16> = settings.listen.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        let mut tcp = TcpSockets::default();
        if settings.tcp {
            let share = settings.share;
            let filter = OptionFilter { mark: REQUESTS, ports: &ports, plain: false, share };
            let is_first = share.is_none_or(|share| share.number == 0);
            let rule = is_first.then(|| rule(settings, instance(*first)));
            tcp = TcpSockets::open(filter, rule, &settings.run_dir)?;
        }
        let TcpSockets { tap, raw, changes } = tcp;
        // The route lookup of the GSO sender ignores an interface to which the raw sockets are
        // bound, as in a VRF. So GSO is used only if they are unbound.
        let is_unbound = |raw: &RawSockets| !raw.is_bound().unwrap_or(true);
        let gso = (settings.gso && raw.as_ref().is_some_and(is_unbound))
            .then(|| GsoSender::open(SEND_BUFFER));
        let gso = gso.transpose().map_err(PortError::socket("open a packet socket", true))?;
        let udp = settings.listen.iter().filter(|_| settings.udp);
        let datagrams =
            udp.map(|&at| Datagrams::open(at, settings.share)).collect::<Result<Vec<_>, _>>()?;
        let egress = Egress::new(raw, gso, settings.mtu);
        Ok(ServerPort {
            listen: settings.listen.clone(),
            tap,
            inbox: Inbox::new(settings.mtu.max(2048)),
            local: Local::new().map_err(PortError::socket("open a netlink socket", false))?,
            answers: Answers { egress, datagrams, packet: Vec::new() },
            _changes: changes,
        })
    }

    /// Processes one batch of packets from each socket: calls `each` for every message, and sends
    /// the queued answers. Does not block. Returns the number of messages. Errors: a socket's
    /// error, for instance because an interface went down. The port stays usable, and queued
    /// answers stay queued.
    pub fn turn(
        &mut self,
        mut each: impl FnMut(&[u8], Return, &mut Answers),
    ) -> std::io::Result<usize> {
        let before = self.answers.egress.stats.received;
        if let Some(tap) = &self.tap {
            self.inbox.receive(tap.as_fd())?;
            for got in self.inbox.iter() {
                let request = read_packet(&got, &self.listen, &mut self.local, &mut self.answers);
                if let Some((message, to)) = request {
                    each(message, to, &mut self.answers);
                }
            }
        }
        for n in 0..self.answers.datagrams.len() {
            let at = &self.answers.datagrams[n];
            let port = at.bound.port();
            self.inbox.receive(at.socket.as_fd())?;
            for got in self.inbox.iter() {
                if let Some((message, to)) = read_datagram(&got, port, &mut self.answers) {
                    each(message, to, &mut self.answers);
                }
            }
        }
        self.answers.flush();
        Ok((self.answers.egress.stats.received - before) as usize)
    }

    /// Sender for answers outside of [`ServerPort::turn`]; see [`Answers::flush`].
    pub fn answers(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// Sockets to poll: readable when there are packets to process.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let udp = self.answers.datagrams.iter().map(|at| at.socket.as_fd());
        self.tap.iter().map(|tap| tap.as_fd()).chain(udp)
    }

    /// Returns whether answers wait for [`Answers::flush`].
    pub fn has_queued(&self) -> bool {
        let Answers { egress, datagrams, .. } = &self.answers;
        egress.has_queued() || datagrams.iter().any(|at| !at.queue.is_empty())
    }

    /// Counters of the port.
    pub fn stats(&self) -> PortStats {
        self.answers.egress.stats
    }
}

impl Answers {
    /// Queues an answer. [`ServerPort::turn`] sends it at its end; outside of `turn`, call
    /// [`Answers::flush`]. Errors: the message is longer than [`Answers::room`].
    pub fn send(&mut self, message: &[u8], to: &mut Return) -> Result<(), TooLong> {
        let mtu = self.egress.mtu(to.format(), to.client().ip());
        to.answer(message, mtu, &mut self.packet)?;
        match to.format() {
            Format::Tcp => self.egress.packet(&self.packet, to.client().ip()),
            Format::Udp => self.datagram(to),
        }
        Ok(())
    }

    /// Maximum length in bytes of a message to this client, according to the current path MTU.
    pub fn room(&self, to: &Return) -> usize {
        to.room(self.egress.mtu(to.format(), to.client().ip()))
    }

    /// Sends the queued answers. [`ServerPort::turn`] calls this at its end.
    pub fn flush(&mut self) {
        self.egress.flush();
        for at in &mut self.datagrams {
            self.egress.flush_datagrams(&mut at.queue, at.socket.as_fd());
        }
    }

    /// Queues a datagram from the address to which the request was sent. If this server has no
    /// socket for that address, because the request was moved here from another server, the
    /// datagram is sent as a raw packet, or refused if there are no raw sockets.
    fn datagram(&mut self, to: &Return) {
        let (from, client) = (to.server(), to.client());
        let fits = |at: &&mut Datagrams| {
            let any = at.bound.ip().is_unspecified() && at.bound.is_ipv4() == from.is_ipv4();
            at.bound.port() == from.port() && (any || at.bound.ip() == from.ip())
        };
        let Some(at) = self.datagrams.iter_mut().find(fits) else {
            if let Some(whole) = datagram::emit(from, client, &self.packet) {
                self.egress.packet(&whole, client.ip());
            }
            return;
        };
        at.queue.push(&self.packet, client, Some(from.ip()));
        if at.queue.is_full() {
            self.egress.flush_datagrams(&mut at.queue, at.socket.as_fd());
        }
    }
}

impl Datagrams {
    fn open(bound: SocketAddr, share: Option<Share>) -> Result<Datagrams, PortError> {
        let failed = || PortError::socket(format!("listen at UDP {bound}"), false);
        let socket = UdpBatch::bind_one_family(bound, share).map_err(failed())?;
        mmsg::report_destination(socket.as_fd(), bound.is_ipv4()).map_err(failed())?;
        socket.set_buffers(SEND_BUFFER).map_err(failed())?;
        let bound = socket.local_addr().map_err(failed())?;
        Ok(Datagrams { bound, socket, queue: Outbox::of_datagrams() })
    }
}

/// Instance name for the rules of a server whose first address is `first`. Servers with the same
/// port at different addresses have different names, except at `0.0.0.0` and `[::]`.
fn instance(first: SocketAddr) -> String {
    let port = first.port();
    match first.ip() {
        IpAddr::V6(any) if any.is_unspecified() => format!("trickles_{port}_v6"),
        any if any.is_unspecified() => format!("trickles_{port}"),
        IpAddr::V4(ip) => format!("trickles_{port}_{:08x}", ip.to_bits()),
        IpAddr::V6(ip) => {
            let words = ip.to_bits();
            let folded = (words >> 64) as u64 ^ words as u64;
            format!("trickles_{port}_{folded:016x}")
        }
    }
}

/// The rule that hides requests from the kernel's TCP.
fn rule(settings: &ServerSettings, instance: String) -> RstGuard {
    let untracked = settings.untracked.then_some(Role::Answer.byte());
    RstGuard { instance, mark: REQUESTS, at: settings.listen.clone(), untracked }
}

/// The message of a packet in TCP's format, and the return path of its answers.
fn read_packet<'a>(
    got: &Received<'a>,
    listen: &[SocketAddr],
    local: &mut Local,
    answers: &mut Answers,
) -> Option<(&'a [u8], Return)> {
    if let Some(said) = icmp::parse(got.bytes) {
        if let Why::TooBig(mtu) = said.why
            && is_ours(said.source, listen, local)
        {
            // The ICMP error may be forged, so the MTU has a minimum: 1,280 bytes, for IPv4 as
            // well.
            answers.egress.too_big(said.destination.ip(), mtu.max(icmp::MIN_MTU_V6));
        }
        return None;
    }
    let checksum = if got.check { Checksum::Check } else { Checksum::Trust };
    let read = match tcp::parse(got.bytes, got.length, checksum) {
        Ok(Packet::Message(segment, message)) => {
            // Forwarded packets are not counted.
            let to = is_ours(segment.destination, listen, local).then(|| Return::of(&segment))?;
            to.map(|to| (message, to)).ok_or(Refusal::NotOurs)
        }
        Ok(Packet::Plain { .. }) => Err(Refusal::Unmarked),
        Err(why) => Err(why),
    };
    answers.egress.stats.count(read)
}

fn is_ours(at: SocketAddr, listen: &[SocketAddr], local: &mut Local) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified() && ip.is_ipv4() == at.is_ipv4();
    let same_port = |listener: &&SocketAddr| listener.port() == at.port();
    listen.iter().filter(same_port).any(|listener| listener.ip() == at.ip() || any(listener.ip()))
        && local.is(now(), at.ip())
}

fn read_datagram<'a>(
    got: &Received<'a>,
    port: u16,
    answers: &mut Answers,
) -> Option<(&'a [u8], Return)> {
    let (from, to) = (got.from?, got.to?);
    let read = if got.length > got.bytes.len() { Err(Refusal::Cut) } else { udp::parse(got.bytes) };
    let read = match read {
        Ok((Role::Request, _, message)) if from.port() != 0 => {
            Ok((message, Return::of_datagram(canonical(from), SocketAddr::new(to, port))))
        }
        Ok(_) => Err(Refusal::NotOurs),
        Err(why) => Err(why),
    };
    answers.egress.stats.count(read)
}

/// Removes flow label and scope, except for the scope that a link-local address needs.
fn canonical(from: SocketAddr) -> SocketAddr {
    let link_local = |ip: &Ipv6Addr| ip.segments()[0] & 0xffc0 == 0xfe80;
    match from {
        SocketAddr::V6(v6) if link_local(v6.ip()) => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => SocketAddr::new(other.ip(), other.port()),
    }
}
