//! A client's port: its connections' requests out, and answers in.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use slab::Slab;
use viaduct_proto::rng::Rng;
use viaduct_proto::trickles::packet::stats::Refusal;
use viaduct_proto::trickles::packet::tcp::{self, Checksum, Packet};
use viaduct_proto::trickles::packet::{
    Format, Numbers, Opening, Role, TooLong, Ways, mark, too_big, udp,
};
use viaduct_sys::filter::{MarkedFilter, TcpMark};
use viaduct_sys::journal::Changes;
use viaduct_sys::keep_out::KeepOut;
use viaduct_sys::marked::MarkedTap;
use viaduct_sys::mmsg::{Inbox, Outbox, Received};
use viaduct_sys::raw::Raw;
use viaduct_sys::tcp::TcpOptions;
use viaduct_sys::udp::UdpBatch;

use super::door::{Door, now};
use super::stats::PortStats;
use super::{PortError, SEND_BUFFER, check_mtu, journal};

/// How a client reaches servers.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The ways that are tried.
    pub ways: Ways,
    /// Bytes of the longest packet that is sent, 576 to 65535: the interface's MTU.
    pub mtu: usize,
    /// Whether what is sent is left untracked by this machine's conntrack; not where it translates its
    /// own addresses.
    pub untracked: bool,
    /// Names the rules and the journal, letters, digits and `_`: one for each client of the machine.
    pub instance: String,
    /// Where the journal of changed rules is kept.
    pub run_dir: PathBuf,
}

/// A connection of a [`ClientPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow(pub(super) usize);

/// What a connection hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// A message of the server's.
    Message(&'a [u8]),
    /// The server is a plain TCP server: its kernel has answered the SYN. This machine's kernel has reset
    /// that connection; close this one and connect as to any other server.
    PlainTcp,
    /// Nobody listens there, by none of the ways that are to be tried.
    Refused,
}

/// The port. Its connections are independent of each other.
#[derive(Debug)]
pub struct ClientPort {
    ways: Ways,
    tap: Option<MarkedTap>,
    inbox: Inbox,
    door: Door,
    flows: Slab<Connection>,
    /// By local port: those in TCP's format.
    ports: HashMap<u16, usize>,
    rng: Rng,
    packet: Vec<u8>,
    _changes: Option<Changes>,
}

#[derive(Debug)]
struct Connection {
    remote: SocketAddr,
    opening: Opening,
    tcp: Option<(Numbers, Held)>,
    udp: Option<(UdpBatch, Outbox, u8)>,
}

/// A port that the kernel gives to nobody else: bound, and neither listening nor connected.
#[derive(Debug)]
struct Held(TcpStream);

const ANSWERS: TcpMark = TcpMark { word: mark::WORD, byte: Role::Answer.byte() };

impl ClientPort {
    /// Opens it in the calling thread's network namespace. `seed`: random; first numbers are made of it.
    ///
    /// # Errors
    /// Privilege is missing where TCP's format is wanted, or a rule cannot be set; nothing is left
    /// changed.
    pub fn open(settings: &ClientSettings, seed: u64) -> Result<ClientPort, PortError> {
        check_mtu(settings.mtu)?;
        let (mut tap, mut raw, mut changes) = (None, None, None);
        if settings.ways != Ways::Only(Format::Udp) {
            changes = Some(keep_out(settings)?);
            let filter = MarkedFilter { mark: ANSWERS, ports: &[], plain: true };
            tap = Some(
                MarkedTap::open(filter).map_err(PortError::socket("open a packet socket", true))?,
            );
            let opened = Raw::open().map_err(PortError::socket("open a raw socket", true))?;
            opened.set_buffers(SEND_BUFFER).map_err(PortError::socket("size a socket", false))?;
            raw = Some(opened);
        }
        Ok(ClientPort {
            ways: settings.ways,
            tap,
            inbox: Inbox::new(settings.mtu.max(2048)),
            door: Door::new(raw, settings.mtu),
            flows: Slab::new(),
            ports: HashMap::new(),
            rng: Rng::from_seed(seed),
            packet: Vec::new(),
            _changes: changes,
        })
    }

    /// A connection to `remote`; nothing is sent yet.
    ///
    /// # Errors
    /// There is no way there, or no port is left.
    pub fn connect(&mut self, remote: SocketAddr) -> std::io::Result<Flow> {
        let opening = Opening::new(self.ways);
        let tcp = match &self.tap {
            None => None,
            Some(_) => {
                let (local, held) = hold_port(remote)?;
                let first = self.rng.next_u64() as u32;
                Some((Numbers::new(local, remote, first), held))
            }
        };
        let udp = match self.ways {
            Ways::Only(Format::Tcp) => None,
            _ => {
                let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpBatch::bind(any.parse().expect("an address"))?;
                socket.set_buffers(SEND_BUFFER)?;
                Some((socket, Outbox::of_datagrams(), 0))
            }
        };
        let flow = self.flows.insert(Connection { remote, opening, tcp, udp });
        if let Some((numbers, _)) = &self.flows[flow].tcp {
            self.ports.insert(numbers.local().port(), flow);
        }
        if let Err(error) = self.watch() {
            self.close(Flow(flow));
            return Err(error);
        }
        Ok(Flow(flow))
    }

    /// Ends it; nothing is sent.
    pub fn close(&mut self, flow: Flow) {
        if let Some((numbers, _)) = self.flows.try_remove(flow.0).and_then(|gone| gone.tcp) {
            self.ports.remove(&numbers.local().port());
            // What is seen for nothing is refused.
            let _ = self.watch();
        }
    }

    /// Bytes of the longest message to there now, whichever way it goes.
    ///
    /// # Panics
    /// The flow was closed.
    pub fn room(&self, flow: Flow) -> usize {
        let to = &self.flows[flow.0];
        let mtu = self.door.mtu(to.remote.ip());
        let tcp = to.tcp.iter().map(|(numbers, _)| numbers.room(mtu));
        let udp = to.udp.iter().map(|_| mtu.saturating_sub(udp::overhead(to.remote.is_ipv4())));
        tcp.chain(udp).min().unwrap_or(0)
    }

    /// Sends a request with the next [`ClientPort::flush`]. `expected`: bytes of answers that it may
    /// bring; see [`Numbers::request`].
    ///
    /// # Errors
    /// The message is longer than [`ClientPort::room`].
    ///
    /// # Panics
    /// The flow was closed.
    pub fn send(&mut self, flow: Flow, message: &[u8], expected: u32) -> Result<(), TooLong> {
        let to = &mut self.flows[flow.0];
        let ip = to.remote.ip();
        let mtu = self.door.mtu(ip);
        match (to.opening.next(now()), &mut to.tcp, &mut to.udp) {
            (Format::Tcp, Some((numbers, _)), _) => {
                numbers.request(message, expected, mtu, &mut self.packet)?;
                self.door.packet(&self.packet, ip);
            }
            (_, _, Some((socket, queue, count))) => {
                let room = mtu.saturating_sub(udp::overhead(ip.is_ipv4()));
                if message.len() > room {
                    return Err(TooLong { have: message.len(), room });
                }
                self.packet.clear();
                self.packet.extend(udp::head(Role::Request, *count));
                self.packet.extend_from_slice(message);
                *count = count.wrapping_add(1);
                queue.push(&self.packet, to.remote, None);
                if queue.is_full() {
                    self.door.flush_datagrams(queue, socket.as_fd());
                }
            }
            (Format::Tcp | Format::Udp, _, None) => {}
        }
        Ok(())
    }

    /// Sends what waits.
    pub fn flush(&mut self) {
        let flows: Vec<Flow> = self.flows.iter().map(|(flow, _)| Flow(flow)).collect();
        flows.into_iter().for_each(|flow| self.flush_flow(flow));
        self.door.flush();
    }

    /// Sends what waits of these connections, and what waits in TCP's format of all.
    pub fn flush_these(&mut self, flows: impl IntoIterator<Item = Flow>) {
        flows.into_iter().for_each(|flow| self.flush_flow(flow));
        self.door.flush();
    }

    fn flush_flow(&mut self, flow: Flow) {
        if let Some((socket, queue, _)) = self.flows.get_mut(flow.0).and_then(|to| to.udp.as_mut())
        {
            self.door.flush_datagrams(queue, socket.as_fd());
        }
    }

    /// Takes one batch of what waits from each socket and calls `each` for what it is; never waits. How
    /// many messages there were.
    ///
    /// # Errors
    /// The kernel's, of a socket: an interface went down, say. The port goes on.
    pub fn turn(&mut self, mut each: impl FnMut(Flow, Heard<'_>)) -> std::io::Result<usize> {
        let before = self.door.stats.received;
        self.hear_tap(&mut each)?;
        let flows: Vec<Flow> = self.flows.iter().map(|(flow, _)| Flow(flow)).collect();
        for flow in flows {
            self.hear_flow(flow, &mut each)?;
        }
        Ok((self.door.stats.received - before) as usize)
    }

    /// Takes one batch of what came in TCP's format, of whichever connection; how many packets.
    ///
    /// # Errors
    /// The kernel's; the port goes on.
    pub fn hear_tap(&mut self, mut each: impl FnMut(Flow, Heard<'_>)) -> std::io::Result<usize> {
        let Some(tap) = &self.tap else { return Ok(0) };
        let packets = self.inbox.receive(tap.as_fd())?;
        for got in self.inbox.iter() {
            let heard = hear_packet(&got, &self.ports, &mut self.flows, &mut self.door);
            if let Some((flow, heard)) = heard {
                each(Flow(flow), heard);
            }
        }
        Ok(packets)
    }

    /// Takes one batch of what came to a connection's UDP socket; how many datagrams.
    ///
    /// # Errors
    /// The kernel's; the port goes on.
    pub fn hear_flow(
        &mut self,
        flow: Flow,
        mut each: impl FnMut(Flow, Heard<'_>),
    ) -> std::io::Result<usize> {
        let Some(to) = self.flows.get_mut(flow.0) else { return Ok(0) };
        let Some((socket, ..)) = &to.udp else { return Ok(0) };
        let datagrams = self.inbox.receive(socket.as_fd())?;
        for got in self.inbox.iter() {
            match hear_datagram(&got, to.remote) {
                Ok(message) => {
                    self.door.stats.received += 1;
                    to.opening.heard(Format::Udp);
                    each(flow, Heard::Message(message));
                }
                Err(why) => self.door.stats.refuse(why),
            }
        }
        Ok(datagrams)
    }

    /// The way by which the server was heard, once it was.
    ///
    /// # Panics
    /// The flow was closed.
    pub fn format(&self, flow: Flow) -> Option<Format> {
        self.flows[flow.0].opening.decided()
    }

    /// Our address of a connection, as it is here.
    pub fn local(&self, flow: Flow) -> Option<SocketAddr> {
        let to = self.flows.get(flow.0)?;
        match (to.opening.decided(), &to.tcp, &to.udp) {
            (Some(Format::Tcp) | None, Some((numbers, _)), _) => Some(numbers.local()),
            (_, _, Some((socket, ..))) => {
                let port = socket.local_addr().ok()?.port();
                Some(SocketAddr::new(source_towards(to.remote).ok()?, port))
            }
            _ => None,
        }
    }

    /// Nothing has come for long: begins anew from another port, by all ways. What the transport knows of
    /// the connection holds still.
    ///
    /// # Errors
    /// As [`ClientPort::connect`]'s.
    pub fn reopen(&mut self, flow: Flow) -> std::io::Result<()> {
        let to = &mut self.flows[flow.0];
        to.opening.doubt();
        if let Some((numbers, held)) = &mut to.tcp {
            self.ports.remove(&numbers.local().port());
            let (local, fresh) = hold_port(to.remote)?;
            *numbers = Numbers::new(local, to.remote, self.rng.next_u64() as u32);
            *held = fresh;
            self.ports.insert(local.port(), flow.0);
        }
        self.watch()
    }

    /// What to wait for: readable when there is something to do.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let udp = self.flows.iter().filter_map(|(_, to)| to.udp.as_ref());
        self.tap.iter().map(|tap| tap.as_fd()).chain(udp.map(|(socket, ..)| socket.as_fd()))
    }

    /// The socket of [`ClientPort::hear_tap`].
    pub fn tap(&self) -> Option<BorrowedFd<'_>> {
        self.tap.as_ref().map(|tap| tap.as_fd())
    }

    /// The socket of [`ClientPort::hear_flow`].
    pub fn socket(&self, flow: Flow) -> Option<BorrowedFd<'_>> {
        self.flows.get(flow.0)?.udp.as_ref().map(|(socket, ..)| socket.as_fd())
    }

    /// Its counters.
    pub fn stats(&self) -> PortStats {
        self.door.stats
    }

    /// The tap sees what comes to the connections' ports.
    fn watch(&self) -> std::io::Result<()> {
        let Some(tap) = &self.tap else { return Ok(()) };
        let ports: Vec<u16> = self.ports.keys().copied().collect();
        tap.set_filter(MarkedFilter { mark: ANSWERS, ports: &ports, plain: true })
    }
}

fn keep_out(settings: &ClientSettings) -> Result<Changes, PortError> {
    let instance = settings.instance.clone();
    let mut changes = Changes::open(&journal(&settings.run_dir, &instance))?;
    let untracked = settings.untracked.then_some(Role::Request.byte());
    let ports = Vec::new();
    changes.keep_out(KeepOut { instance, mark: ANSWERS, ports, untracked })?;
    Ok(changes)
}

/// Our address towards `remote`, with a port that nobody else gets.
fn hold_port(remote: SocketAddr) -> std::io::Result<(SocketAddr, Held)> {
    let ip = source_towards(remote)?;
    let held = Held(viaduct_sys::tcp::bound(SocketAddr::new(ip, 0), TcpOptions::default())?);
    Ok((held.0.local_addr()?, held))
}

/// Our address towards `remote`.
fn source_towards(remote: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr =
        if remote.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    // Connecting a UDP socket asks for the route, and sends nothing.
    let route = UdpSocket::bind(any)?;
    route.connect(remote)?;
    Ok(route.local_addr()?.ip())
}

/// What a packet means, and to which connection.
fn hear_packet<'a>(
    got: &Received<'a>,
    ports: &HashMap<u16, usize>,
    flows: &mut Slab<Connection>,
    door: &mut Door,
) -> Option<(usize, Heard<'a>)> {
    if let Some(said) = too_big::parse(got.bytes) {
        let flow = flows.get(*ports.get(&said.source.port())?)?;
        if flow.remote == said.destination {
            door.too_big(&said);
        }
        return None;
    }
    let checksum = if got.check { Checksum::Check } else { Checksum::Trust };
    let heard = tcp::parse(got.bytes, got.length, checksum).and_then(|packet| match packet {
        Packet::Message(answer, message) => {
            let (flow, to) = find(ports, flows, answer.destination.port())?;
            let (numbers, _) = to.tcp.as_mut().ok_or(Refusal::NotOurs)?;
            if !numbers.hear(&answer) {
                return Err(Refusal::NotOurs);
            }
            door.stats.received += 1;
            to.opening.heard(Format::Tcp);
            Ok(Some((flow, Heard::Message(message))))
        }
        Packet::Plain { source, destination, ack, reset } => {
            // With thousands of connections the tap sees what other programs' are told, too.
            let Ok((flow, to)) = find(ports, flows, destination.port()) else { return Ok(None) };
            let (numbers, _) = to.tcp.as_ref().ok_or(Refusal::NotOurs)?;
            let ours = (numbers.remote(), numbers.local()) == (source, destination);
            // A stranger does not know our number; and one who has answered is no plain TCP server.
            if !ours || !numbers.answers_syn(ack) {
                return Err(Refusal::NotOurs);
            }
            let refused = reset && !to.opening.reset();
            Ok(match (reset, refused) {
                (false, _) => Some((flow, Heard::PlainTcp)),
                (true, true) => Some((flow, Heard::Refused)),
                (true, false) => None,
            })
        }
    });
    heard.unwrap_or_else(|why| {
        door.stats.refuse(why);
        None
    })
}

fn find<'a>(
    ports: &HashMap<u16, usize>,
    flows: &'a mut Slab<Connection>,
    port: u16,
) -> Result<(usize, &'a mut Connection), Refusal> {
    let flow = *ports.get(&port).ok_or(Refusal::NotOurs)?;
    Ok((flow, flows.get_mut(flow).ok_or(Refusal::NotOurs)?))
}

fn hear_datagram<'a>(got: &Received<'a>, remote: SocketAddr) -> Result<&'a [u8], Refusal> {
    let from = got.from.map(|from| (from.ip(), from.port()));
    if got.length > got.bytes.len() {
        return Err(Refusal::Cut);
    }
    match udp::parse(got.bytes)? {
        (Role::Answer, _, message) if from == Some((remote.ip(), remote.port())) => Ok(message),
        _ => Err(Refusal::NotOurs),
    }
}
