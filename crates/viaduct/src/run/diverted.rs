//! The interposer that sees all calls: BPF on the cgroup of the program.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, warn};
use viaduct_proto::flow::Failure;
use viaduct_proto::wire::refusal::RejectedSyn;
use viaduct_proto::wrap::{self, Errno, Line, Transport};
use viaduct_sys::bpf::{
    DatagramMode, Group, InboundConns, Offload, OptionChange, Ports, Redirect, RedirectConfig,
    RedirectEvent, Resolver, Rule, RuleAction, Rules, SocketNames, Traffic, WaitingConnect,
};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::route::interface;
use viaduct_sys::socket::rendezvous::Rendezvous;
use viaduct_sys::socket::tcp::{self, Mirrored, TcpOptions};

use super::Plan;
use super::agree::Door;
use super::carrier::Carrier;
use super::datagrams::{self, Fares, Holder};
use super::fronts::canonical;
use super::keep::Keep;
use super::names::{Remote, place};
use super::report::{self, Report, Reported, Visited};
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Call, PendingConnect, Program};

/// State shared by all diverted connects.
#[derive(Debug)]
struct Shared {
    meeting: Rendezvous,
    names: SocketNames,
    raw: RawSockets,
}

/// A connect whose SYN was dropped at the rendezvous.
#[derive(Debug)]
struct Diverted {
    waiting: WaitingConnect,
    shared: Arc<Shared>,
    /// Alive while it waits. Each retransmission of its SYN is reported.
    _waits: Arc<()>,
}

/// A program that listens, for one client.
#[derive(Clone, Debug)]
struct Listening {
    client: SocketAddr,
    own: SocketAddr,
    inside: InboundConns,
    came: Arc<Mutex<Ends>>,
}

/// Backlog of connections to programs.
const BACKLOG: u32 = 4096;
/// Pause after an error of accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Attaches the BPF programs to `group`, and reports every connect that `plan` wants to
/// `carrier`. Returns the holder of datagrams, if they pass the handlers too. Descriptors in
/// `keep` outlive this process: connects fail then, and do not go around the chain.
pub fn start(
    group: &Group,
    plan: &Plan,
    carrier: Carrier,
    keep: Option<&Keep>,
) -> Result<Option<Holder>> {
    let meeting = Rendezvous::open().context("open the meeting")?;
    let negotiation = plan.agree.as_ref().and_then(|agree| agree.begun());
    let save_syn = negotiation.is_some();
    let v4 = listener(Ipv4Addr::LOCALHOST.into(), save_syn);
    let v4 = v4.context("listen for connections to the program")?;
    // Absent if the machine has no IPv6.
    let v6 = listener(Ipv6Addr::LOCALHOST.into(), save_syn).ok();
    let ports = negotiation.map_or_else(Ports::new, |(_, ports)| Ok(ports.clone()))?;
    let (carry, holder, why) = carry(group, plan);
    let diversion = RedirectConfig {
        streams: rules(&plan.rules, Transport::Tcp),
        datagrams: rules(&plan.rules, Transport::Udp),
        datagram_mode: carry,
        v4: meeting.at(true).context("the meeting has no address")?,
        v6: meeting.at(false),
        listeners: [Some(v4.as_fd()), v6.as_ref().map(AsFd::as_fd)],
        ports,
        offload: plan.offload.map(|offload| Offload { rate: offload.rate.map(bytes) }),
        resolver: plan.names.as_ref().and_then(|names| resolver(names)),
        reports: plan.report.is_some(),
        strict: plan.rules.strict,
    };
    let divert = Redirect::attach(&diversion, group.as_fd())?;
    if let Some(keep) = keep {
        let places = [true, false].map(|v4| meeting.bound_socket(v4).ok());
        let places = places.iter().flatten().map(AsFd::as_fd);
        let held = holder.as_ref().and_then(Holder::rules);
        let held = held.iter().map(AsFd::as_fd);
        keep.fill(&places.chain(divert.look_up()).chain(held).collect::<Vec<_>>())?;
    }
    let came = Arc::<Mutex<Ends>>::default();
    for listener in [Some(v4), v6].into_iter().flatten() {
        let Some(inside) = divert.inbound_conns() else { continue };
        let carrier = carrier.clone();
        let door =
            negotiation.map(|(negotiation, _)| Door::new(negotiation.clone(), plan.report.clone()));
        let report = plan.report.clone();
        let came = came.clone();
        let take = move || take_in(&listener, (&inside, &came), (&carrier, report.as_ref()), door);
        thread::Builder::new().name("arrivals".to_owned()).spawn(take)?;
    }
    let raw = RawSockets::open().context("open raw sockets")?;
    let shared = Arc::new(Shared { meeting, names: divert.names(), raw });
    let (rules, report, names) = (plan.rules, plan.report.clone(), plan.names.clone());
    let (known, begun) = (HashMap::new(), Ends::default());
    let mut hearing =
        Hearing { divert, shared, carrier, rules, report, names, why, known, begun, came };
    let hear = move || {
        if let Err(error) = hearing.run() {
            warn!("connects cannot be heard of any more: {error}");
        }
    };
    thread::Builder::new().name("connects".to_owned()).spawn(hear)?;
    Ok(holder)
}

/// Decides on datagrams that the chain is to see. Returns the decision, their holder if any,
/// and otherwise a notice for the user.
fn carry(group: &Group, plan: &Plan) -> (DatagramMode, Option<Holder>, Option<String>) {
    let otherwise = if plan.rules.strict { DatagramMode::Refused } else { DatagramMode::Passed };
    if !datagrams::matter(plan) {
        return (otherwise, None, None);
    }
    match datagrams::start(group, plan) {
        Fares::Held(holder) => (DatagramMode::Held, Some(holder), None),
        Fares::Not(why) => (otherwise, None, Some(datagrams::notice(plan, &why))),
    }
}

/// Addresses at which programs' DNS queries are answered.
fn resolver(names: &Remote) -> Option<Resolver> {
    let [v4, v6] = names.at();
    Some(Resolver { v4: v4?, v6 })
}

/// Converts the user's rules of one transport.
fn rules(rules: &wrap::Rules, transport: Transport) -> Rules {
    let fate = |fate| match fate {
        wrap::Fate::Refuse => RuleAction::Refuse,
        wrap::Fate::Leave => RuleAction::Pass,
        wrap::Fate::Divert => RuleAction::Redirect,
    };
    let mut ours = Rules { list: Vec::new(), otherwise: fate(rules.otherwise()) };
    for line in rules.lines().iter().filter(|line| line.transport.is_none_or(|of| of == transport))
    {
        if line.is_everything() {
            // The BPF verifier rejects unreachable instructions.
            ours.otherwise = fate(line.fate);
            break;
        }
        let Line { prefix, ports: (first, last), .. } = *line;
        ours.list.push(Rule { prefix, ports: first..=last, action: fate(line.fate) });
    }
    ours
}

/// Converts bits a second to the bytes a second that the kernel takes.
fn bytes(bits: u64) -> u32 {
    u32::try_from(bits / 8).unwrap_or(u32::MAX).max(1)
}

/// Opens a listener to which connections to programs are redirected, whatever their
/// destination. Only this machine can reach its own address.
fn listener(at: IpAddr, save_syn: bool) -> io::Result<TcpListener> {
    let options = TcpOptions { inside: true, save_syn, ..TcpOptions::default() };
    let listener = tcp::listen((at, 0).into(), BACKLOG, options)?;
    listener.set_nonblocking(false)?;
    Ok(listener)
}

/// Accepts connections to programs for as long as the process runs.
fn take_in(
    listener: &TcpListener,
    (inside, came): (&InboundConns, &Arc<Mutex<Ends>>),
    (carrier, report): (&Carrier, Option<&Report>),
    mut door: Option<Door>,
) {
    let here = listener.local_addr().ok();
    loop {
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("accept: {error}");
                // For example, no descriptor is left.
                thread::sleep(PAUSE);
                continue;
            }
        };
        let Ok(own) = stream.local_addr() else { continue };
        if Some(own) == here || stream.set_nonblocking(true).is_err() {
            continue;
        }
        let (client, own) = (canonical(client), canonical(own));
        let handlers = match &mut door {
            None => None,
            Some(door) => match door.let_in(&stream, client) {
                Some(handlers) => Some(handlers),
                None => continue,
            },
        };
        let program =
            Box::new(Listening { client, own, inside: inside.clone(), came: came.clone() });
        let program = Visited::of(program, own, report);
        carrier.arrive(Arrival { stream: stream.into(), client, own, handlers, program });
    }
}

/// Handles BPF events of the programs.
struct Hearing {
    divert: Redirect,
    shared: Arc<Shared>,
    carrier: Carrier,
    rules: wrap::Rules,
    report: Option<Report>,
    names: Option<Arc<Remote>>,
    /// Notice that datagrams do not pass the handlers, until it has been logged.
    why: Option<String>,
    /// Connects that wait. Each retransmission of a SYN is reported again.
    known: HashMap<u64, (SocketAddr, Weak<()>)>,
    /// Flows of connects, by the program's address.
    begun: Ends,
    /// Flows of connections to programs, by the address of the local end.
    came: Arc<Mutex<Ends>>,
}

/// Flows of connections, and the options that programs have set on them, by the address of one
/// end. No other connection has its port at the same time.
#[derive(Debug, Default)]
struct Ends(HashMap<SocketAddr, (SocketId, Mirrored)>);

/// Entries that are kept before all are dropped. Programs can have more only with many addresses.
const ENDS: usize = 1 << 17;

impl Ends {
    fn set(&mut self, at: SocketAddr, whose: SocketId, mirrored: Mirrored) {
        if self.0.len() >= ENDS {
            self.0.clear();
        }
        self.0.insert(at, (whose, mirrored));
    }

    fn at(&mut self, at: SocketAddr) -> Option<(SocketId, &mut Mirrored)> {
        self.0.get_mut(&at).map(|(whose, mirrored)| (*whose, mirrored))
    }
}

/// Returns the local end of a connection to a program at this address.
fn our_end(program: SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = match program {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => (*at.ip()).into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    (ip, port).into()
}

/// Connects that are kept before those that no longer wait are dropped.
const KNOWN: usize = 1024;

impl Hearing {
    /// Runs the event loop for as long as the process runs.
    fn run(&mut self) -> io::Result<()> {
        let mut most = KNOWN;
        loop {
            while let Some(heard) = self.divert.poll() {
                self.hear(heard);
            }
            if self.known.len() > most {
                self.known.retain(|_, (_, waits)| waits.strong_count() > 0);
                most = KNOWN.max(2 * self.known.len());
            }
            match poll(&mut [PollFd::new(&self.divert, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn hear(&mut self, heard: RedirectEvent) {
        if let RedirectEvent::Passed(passing) | RedirectEvent::Refused(passing) = heard
            && passing.datagrams
            && self.rules.fate(Transport::Udp, passing.to) == wrap::Fate::Divert
            && let Some(why) = self.why.take()
        {
            warn!("{why}");
        }
        let transport = |passing: Traffic| if passing.datagrams { "udp" } else { "tcp" };
        match (heard, &self.report) {
            (RedirectEvent::Connect(waiting), _) => self.call(waiting),
            (RedirectEvent::Option(option), _) => self.mirror(option),
            // Resolvers connect datagram sockets to all addresses of a name, to learn which are
            // reachable.
            (RedirectEvent::Refused(passing), _) if self.is_fake_ip(passing) => {}
            (RedirectEvent::Passed(passing), Some(report)) => {
                report.count(report::Fate::Direct, transport(passing), passing.to);
            }
            (RedirectEvent::Refused(passing), Some(report)) => {
                report.count(report::Fate::Refused, transport(passing), passing.to);
            }
            (RedirectEvent::OffloadStarted(to), Some(report)) => report.offload_begun(to),
            (RedirectEvent::OffloadEnded(to, out, back), Some(report)) => {
                report.offloaded(to, out, back)
            }
            (_, None) => {}
        }
    }

    /// Mirrors an option that a program has set on a connection, outbound or inbound.
    fn mirror(&mut self, option: OptionChange) {
        let OptionChange { program, peer, which, value } = option;
        let at = self.shared.meeting.at(program.is_ipv4());
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        let flow = match at.is_some_and(|at| at.port() == peer) {
            true => self.begun.at(program),
            false => came.at(our_end(program, peer)),
        };
        if let Some((whose, mirrored)) = flow {
            mirrored.0[which] = Some(value);
            self.carrier.mirror(whose, *mirrored);
        }
    }

    fn is_fake_ip(&self, passing: Traffic) -> bool {
        passing.datagrams && self.names.as_ref().is_some_and(|names| names.holds(passing.to))
    }

    fn call(&mut self, waiting: WaitingConnect) {
        let WaitingConnect { cookie, to, program, is_bound, mirrored, .. } = waiting;
        let to = on_a_link(to);
        let before = self.known.get(&cookie).filter(|(at, _)| *at == program);
        if before.is_some_and(|(_, waits)| waits.strong_count() > 0) {
            return;
        }
        let waits = Arc::new(());
        self.known.insert(cookie, (program, Arc::downgrade(&waits)));
        self.begun.set(program, SocketId::Cookie(cookie), mirrored);
        let held = Box::new(Diverted { waiting, shared: self.shared.clone(), _waits: waits });
        let mut held = Reported::of(held, to, self.report.as_ref());
        match place(self.names.as_deref(), to) {
            Some(to) => self.carrier.call(Call { to, source: program, is_bound, mirrored, held }),
            None => held.refuse(Failure::Unreachable),
        }
    }
}

/// Adds the interface to a link-local address: the one that the program has bound its socket
/// to, or else the only one with such addresses. The scope in the program's address is not
/// visible here.
fn on_a_link(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V6(mut at) if at.ip().is_unicast_link_local() && at.scope_id() == 0 => {
            at.set_scope_id(interface::only_link().unwrap_or(0));
            at.into()
        }
        to => to,
    }
}

impl Program for Listening {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let from = match self.own {
            SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
            // With its interface, which the program sees.
            SocketAddr::V6(own) if own.ip().is_unicast_link_local() => {
                SocketAddrV6::new(*own.ip(), 0, 0, own.scope_id()).into()
            }
            SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
        };
        let options = TcpOptions { inside: true, ..TcpOptions::default() };
        tcp::bound(from, options).map(FlowSocket::from)
    }

    fn connect(&mut self, place: &TcpStream) -> io::Result<()> {
        let ours = place.local_addr()?;
        self.inside.note(ours.port(), self.client, self.own)?;
        let whose = SocketId::Ends(self.client, self.own);
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        came.set(our_end(self.own, ours.port()), whose, Mirrored::default());
        drop(came);
        tcp::connect_bound(place, self.own)
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        Some(Box::new(self.clone()))
    }
}

impl PendingConnect for Diverted {
    fn socket_id(&self) -> Option<SocketId> {
        Some(SocketId::Cookie(self.waiting.cookie))
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        self.shared.names.set_own(self.waiting.cookie, own);
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.shared.meeting.bound_socket(self.waiting.program.is_ipv4()).map(FlowSocket::from)
    }

    fn complete(&mut self, place: &TcpStream) -> io::Result<()> {
        tcp::connect_bound(place, self.waiting.program)
    }

    fn refuse(&mut self, why: Failure) {
        self.refuse_as(why, 0);
    }

    fn refuse_as(&mut self, why: Failure, errno: i32) {
        let WaitingConnect { program, syn, .. } = self.waiting;
        let Some(to) = self.shared.meeting.at(program.is_ipv4()) else { return };
        let asked = RejectedSyn { from: program, to, number: syn };
        let packet = match why {
            _ if errno == Errno::NETUNREACH.0 => asked.without_route(),
            // No ICMP message of IPv4 makes the kernel return this error.
            _ if errno == Errno::ACCES.0 && program.is_ipv6() => asked.prohibited(),
            // Its SYNs are dropped: it gives up at its own timeout.
            Failure::TimedOut => return,
            // No ICMP message says that there is no room.
            Failure::Unreachable | Failure::Full => asked.unreachable(),
            Failure::Refused | Failure::Reset | Failure::Denied => asked.refused(),
        };
        if let Err(error) = self.shared.raw.send(&packet, program.ip()) {
            debug!("tell a program: {error}");
        }
    }
}
