//! UDP ASSOCIATE: datagrams whose chain ends at a relay (`socks`). This module has the control
//! connections, on which relays are negotiated, and the sockets to the relays; [`Relays`] decides
//! which datagrams are sent, and when.
//!
//! ```text
//!   Action::Open ─▶ a thread: connect, negotiate ─▶ opened ─▶ Link ══ datagrams ══ relay
//!                   (may take seconds)                          └─ control connection
//! ```

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration as Wait, Instant as Clock};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::net::sockopt;
use tracing::{debug, warn};
use viaduct_proto::flow::datagrams::Ends;
use viaduct_proto::flow::relay::{Relay, RelayProgress};
use viaduct_proto::flow::relays::{Action, Bounds, Relays};
use viaduct_proto::flow::{Address, Factory};
use viaduct_proto::time::{Duration, Instant};

use super::Plan;
use super::names::{RemoteNames, target};

/// Maximum number of relays; each uses two descriptors of this process, and a port of the proxy.
const MAX_RELAYS: usize = 1024;
/// Maximum number of bytes queued for one socket of a program until its relay is open.
const MAX_EARLY: usize = 64 << 10;
/// Delay before a failed relay is opened again, if datagrams are dropped in the meantime.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before a failed relay is opened again, if datagrams go direct in the meantime.
const RETRY_DELAY_DIRECT: Duration = Duration::from_secs(30);
/// Maximum number of relays being opened. Above this number, opening fails; a later datagram of the
/// socket starts another attempt.
const MAX_OPENING: usize = 32;
/// Timeout of the connection to the proxy, and of the negotiation on it.
const PROXY_TIMEOUT: Wait = Wait::from_secs(10);
/// Maximum number of datagrams read from one relay before other relays are served.
const MAX_READS: usize = 64;
/// Maximum length of a datagram, in bytes.
const MAX_DATAGRAM: usize = 65_535;
/// Event data of newly opened relays. The event data of link `n` is 2`n` for its datagrams, and
/// 2`n` + 1 for its control connection.
const OPENED: u64 = u64::MAX;

/// The relays of a program's sockets.
#[derive(Debug)]
pub struct UdpRelays {
    relays: Relays,
    factory: Arc<dyn Factory>,
    names: Option<Arc<RemoteNames>>,
    links: HashMap<u64, Link>,
    epoll: OwnedFd,
    opening: usize,
    opened: Receiver<Opened>,
    opened_sender: Sender<Opened>,
    wake: Arc<OwnedFd>,
    buffer: Vec<u8>,
    /// Datagrams to be sent directly.
    direct: Vec<(Ends, Vec<u8>)>,
    leave: bool,
    /// Set if a warning that there is no relay has been logged.
    has_warned: bool,
}

/// Number of a relay, and the link to it or the reason of the failure.
type Opened = (u64, Result<Link>);

#[derive(Debug)]
struct Link {
    connection: TcpStream,
    /// Socket connected to the relay, so that the kernel drops datagrams from other hosts.
    relay: UdpSocket,
}

impl UdpRelays {
    /// Returns the relays at the end of the chain of `plan`; `None` if the chain does not end at a
    /// relay. Errors: this process is out of descriptors.
    pub fn new(plan: &Plan) -> io::Result<Option<UdpRelays>> {
        let Some(factory) = plan.chain.last() else { return Ok(None) };
        let Some(words) = factory.relay() else { return Ok(None) };
        let idle = plan.datagram_idle;
        let leave = !plan.rules.strict;
        let pause = if leave { RETRY_DELAY_DIRECT } else { RETRY_DELAY };
        let bounds = Bounds { relays: MAX_RELAYS, early: MAX_EARLY, idle, pause, leave };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(OPENED);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        let (opened_sender, opened) = channel();
        Ok(Some(UdpRelays {
            relays: Relays::new(words, bounds),
            factory: factory.clone(),
            names: plan.names.clone(),
            links: HashMap::new(),
            epoll,
            opening: 0,
            opened,
            opened_sender,
            wake: Arc::new(wake),
            buffer: vec![0; MAX_DATAGRAM],
            direct: Vec::new(),
            leave,
            has_warned: false,
        }))
    }

    /// Sends a datagram to `ends.peer` or, if that is a fake IP, to its name.
    pub fn send(&mut self, now: Instant, ends: Ends, data: &[u8]) {
        // A datagram to a fake IP whose name is no longer in the pool is dropped.
        if let Some(to) = target(self.names.as_deref(), ends.peer) {
            self.relays.handle_out(now, ends, &to, data);
            self.run_actions(now);
        }
    }

    /// Passes received datagrams to `take`, up to a limit. The descriptor stays readable if more
    /// are available.
    pub fn receive(&mut self, now: Instant, mut take: impl FnMut(Ends, &[u8])) {
        let mut events = Vec::with_capacity(MAX_READS);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&at_once)) {
            return debug!("cannot poll the relays: {error}");
        }
        for event in events {
            match event.data.u64() {
                OPENED => self.take_opened(now),
                key if key % 2 == 1 => self.read_control(now, key / 2),
                key => self.read_datagrams(now, key / 2, &mut take),
            }
        }
        self.run_actions(now);
    }

    /// Time of the next timeout of a relay.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.relays.poll_timeout()
    }

    /// Closes relays whose idle timeout has expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.relays.handle_timeout(now);
        self.run_actions(now);
    }

    /// Closes the relays of sockets for which `stay` returns false.
    pub fn retain(&mut self, now: Instant, stay: impl Fn(SocketAddr) -> bool) {
        self.relays.retain(stay);
        self.run_actions(now);
    }

    /// Returns whether datagrams in both directions go direct if there is no relay for them.
    pub fn may_go_direct(&self) -> bool {
        self.leave
    }

    /// Takes the datagrams that could not be relayed and are to be sent directly instead.
    pub fn take_direct(&mut self) -> Vec<(Ends, Vec<u8>)> {
        std::mem::take(&mut self.direct)
    }

    /// Number of datagrams that were dropped.
    pub fn dropped(&self) -> u64 {
        self.relays.stats().dropped()
    }

    fn run_actions(&mut self, now: Instant) {
        while let Some(action) = self.relays.poll_action() {
            match action {
                Action::Open(number) => {
                    if let Err(why) = self.open(number) {
                        self.fail(now, number, &why);
                    }
                }
                Action::Send(number, wrapped) => {
                    let Some(link) = self.links.get(&number) else { continue };
                    // The first call may return the error of an earlier datagram.
                    let send = || link.relay.send(&wrapped);
                    if let Err(error) = send().or_else(|_| send()) {
                        debug!("cannot send a datagram to a relay: {error}");
                    }
                }
                Action::Close(number) => drop(self.links.remove(&number)),
                Action::Leave(ends, data) => self.direct.push((ends, data)),
            }
        }
    }

    /// Starts a thread that negotiates a relay.
    fn open(&mut self, number: u64) -> Result<()> {
        let relay = self.factory.relay().context("the handler has no relay")?;
        if self.opening >= MAX_OPENING {
            bail!("{MAX_OPENING} relays are already being negotiated");
        }
        let (opened_sender, wake) = (self.opened_sender.clone(), self.wake.clone());
        let negotiate = move || {
            // The receiver may be gone.
            let _ = opened_sender.send((number, Link::open(relay)));
            let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
        };
        thread::Builder::new().name("relay".to_owned()).spawn(negotiate)?;
        self.opening += 1;
        Ok(())
    }

    fn take_opened(&mut self, now: Instant) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        while let Ok((number, opened)) = self.opened.try_recv() {
            self.opening -= 1;
            match opened.and_then(|link| self.watch(number, link)) {
                Ok(()) => self.has_warned = false,
                Err(why) => self.fail(now, number, &why),
            }
        }
    }

    fn watch(&mut self, number: u64, link: Link) -> Result<()> {
        if !self.relays.handle_open(number) {
            return Ok(());
        }
        let data = |of| epoll::EventData::new_u64(2 * number + of);
        epoll::add(&self.epoll, &link.relay, data(0), epoll::EventFlags::IN)?;
        epoll::add(&self.epoll, &link.connection, data(1), epoll::EventFlags::IN)?;
        self.links.insert(number, link);
        Ok(())
    }

    fn fail(&mut self, now: Instant, number: u64, why: &anyhow::Error) {
        self.relays.handle_failed(now, number);
        let treatment = if self.leave { "go direct" } else { "are dropped" };
        match std::mem::replace(&mut self.has_warned, true) {
            true => debug!("no relay for datagrams: {why:#}"),
            false => warn!("datagrams {treatment}: the proxy has no relay for them: {why:#}"),
        }
    }

    /// Reads the control connection. Its data is ignored; the end of the connection closes the
    /// relay.
    fn read_control(&mut self, now: Instant, number: u64) {
        let Some(link) = self.links.get(&number) else { return };
        match (&link.connection).read(&mut [0; 256]) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => {
                self.links.remove(&number);
                self.relays.handle_ended(now, number);
            }
        }
    }

    fn read_datagrams(&mut self, now: Instant, number: u64, take: &mut impl FnMut(Ends, &[u8])) {
        let Some(link) = self.links.get(&number) else { return };
        for _ in 0..MAX_READS {
            let length = match link.relay.recv(&mut self.buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // This is the error of an earlier datagram that was not delivered.
                Err(_) => continue,
            };
            let received = self.relays.handle_in(now, number, &self.buffer[..length]);
            if let Some((ends, data)) = received {
                take(ends, data);
            }
        }
    }
}

impl AsFd for UdpRelays {
    /// Descriptor that is readable when there is a datagram or an event to handle.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Link {
    /// Negotiates a relay. Blocks until the negotiation has ended, or until [`PROXY_TIMEOUT`].
    fn open(mut relay: Box<dyn Relay + Send>) -> Result<Link> {
        let via = relay.via().clone();
        let mut connection = connect(&via).with_context(|| format!("cannot connect to {via}"))?;
        let proxy = connection.peer_addr()?;
        let at = negotiate(&mut connection, &mut *relay)
            .with_context(|| format!("cannot negotiate with {via}"))?;
        let at = relay_at(&at, proxy).with_context(|| format!("cannot use the relay {at}"))?;
        let any: IpAddr = match at {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let relay = UdpSocket::bind((any, 0))?;
        relay.connect(at).with_context(|| format!("cannot connect to the relay {at}"))?;
        relay.set_nonblocking(true)?;
        connection.set_nonblocking(true)?;
        // With keepalives, the loss of the proxy is detected even if the connection is idle.
        sockopt::set_socket_keepalive(&connection, true)?;
        Ok(Link { connection, relay })
    }
}

fn connect(via: &Address) -> Result<TcpStream> {
    let all = match via {
        Address::Ip(at) => vec![*at],
        Address::Name(name, port) => (&name[..], *port).to_socket_addrs()?.collect(),
    };
    let mut why = anyhow!("it has no address");
    for at in all {
        match TcpStream::connect_timeout(&at, PROXY_TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(error) => why = error.into(),
        }
    }
    Err(why)
}

/// Negotiates on `connection`; returns the relay's address, as announced by the proxy.
fn negotiate(connection: &mut TcpStream, relay: &mut dyn Relay) -> Result<Address> {
    let until = Clock::now() + PROXY_TIMEOUT;
    connection.set_nodelay(true)?;
    connection.set_write_timeout(Some(PROXY_TIMEOUT))?;
    let (mut message, mut answer) = (relay.begin(), [0; 512]);
    loop {
        connection.write_all(&message)?;
        let wait = until.saturating_duration_since(Clock::now());
        if wait.is_zero() {
            bail!("it does not answer");
        }
        connection.set_read_timeout(Some(wait))?;
        let length = connection.read(&mut answer).context("it does not answer")?;
        if length == 0 {
            bail!("it has ended the connection");
        }
        match relay.handle_bytes(&answer[..length]).map_err(anyhow::Error::msg)? {
            RelayProgress::Send(more) => message = more,
            RelayProgress::Done(at) => return Ok(at),
        }
    }
}

/// Returns the address of the relay that the proxy announces as `at`. The proxy's own IP address
/// replaces an empty name, an unspecified address, and a loopback address if the proxy is on
/// another host.
fn relay_at(at: &Address, proxy: SocketAddr) -> Result<SocketAddr> {
    let at = match at {
        Address::Ip(at) => *at,
        Address::Name(name, port) if name.is_empty() => SocketAddr::new(proxy.ip(), *port),
        Address::Name(name, port) => {
            (&name[..], *port).to_socket_addrs()?.next().context("it has no address")?
        }
    };
    let ip = at.ip().to_canonical();
    let foreign = ip.is_loopback() && !proxy.ip().to_canonical().is_loopback();
    if at.port() == 0 || ip.is_multicast() {
        bail!("a relay cannot have this address");
    }
    let ip = if ip.is_unspecified() || foreign { proxy.ip() } else { ip };
    Ok(SocketAddr::new(ip, at.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_at_the_announced_address_or_at_the_proxys() {
        let proxy = "192.0.2.1:1080".parse().unwrap();
        let at = |text: &str, proxy| relay_at(&Address::Ip(text.parse().unwrap()), proxy).ok();
        let is = |text: &str| text.parse().ok();
        assert_eq!(at("198.51.100.7:4000", proxy), is("198.51.100.7:4000"));
        assert_eq!(at("0.0.0.0:4000", proxy), is("192.0.2.1:4000"));
        assert_eq!(at("[::]:4000", proxy), is("192.0.2.1:4000"));
        assert_eq!(at("127.0.0.1:4000", proxy), is("192.0.2.1:4000"), "not this host's loopback");
        assert_eq!(at("127.0.0.1:4000", "[::1]:1080".parse().unwrap()), is("127.0.0.1:4000"));
        assert_eq!(at("192.0.2.1:0", proxy), None);
        assert_eq!(at("224.0.0.1:9", proxy), None);
        let nameless = Address::Name(String::new(), 4000);
        assert_eq!(relay_at(&nameless, proxy).ok(), is("192.0.2.1:4000"));
    }
}
