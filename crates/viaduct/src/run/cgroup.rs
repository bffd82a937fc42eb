//! `--via cgroup`, the interposer that sees all calls: BPF on the cgroup of the program.

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
use super::datagrams;
use super::descriptor_store::DescriptorStore;
use super::held_udp::{self, HeldUdp};
use super::names::{RemoteNames, target};
use super::negotiate::ClientFilter;
use super::public_listeners::canonical;
use super::report::{self, Report, ReportedConnect, ReportedProgram};
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Call, PendingConnect, Program};
use crate::master::carrier::Carrier;

/// State shared by all redirected connects.
#[derive(Debug)]
struct ConnectContext {
    rendezvous: Rendezvous,
    names: SocketNames,
    raw: RawSockets,
}

/// A connect whose SYN was dropped at the rendezvous.
#[derive(Debug)]
struct RedirectedConnect {
    waiting: WaitingConnect,
    context: Arc<ConnectContext>,
    /// Alive while it waits. Each retransmission of its SYN is reported.
    _waits: Arc<()>,
}

/// A program that listens, for one client.
#[derive(Clone, Debug)]
struct RedirectedProgram {
    client: SocketAddr,
    own: SocketAddr,
    inside: InboundConns,
    inbound: Arc<Mutex<FlowTable>>,
}

/// Backlog of connections to programs.
const BACKLOG: u32 = 4096;
/// Pause after an error of accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Attaches the BPF programs to `group`, and reports every connect that `plan` wants to
/// `carrier`. Returns the holder of datagrams, if they pass the handlers too. Descriptors in
/// `store` outlive this process: connects fail then, and do not go around the chain.
pub fn start(
    group: &Group,
    plan: &Plan,
    carrier: Carrier,
    store: Option<&DescriptorStore>,
) -> Result<Option<HeldUdp>> {
    let rendezvous = Rendezvous::open().context("open the rendezvous")?;
    let negotiation = plan.negotiation.as_ref().and_then(|negotiation| negotiation.syn_options());
    let save_syn = negotiation.is_some();
    let v4 = listener(Ipv4Addr::LOCALHOST.into(), save_syn);
    let v4 = v4.context("listen for connections to the program")?;
    // Absent if the machine has no IPv6.
    let v6 = listener(Ipv6Addr::LOCALHOST.into(), save_syn).ok();
    let ports = negotiation.map_or_else(Ports::new, |(_, ports)| Ok(ports.clone()))?;
    let (carry, held_udp, notice) = carry(group, plan);
    let diversion = RedirectConfig {
        streams: rules(&plan.rules, Transport::Tcp),
        datagrams: rules(&plan.rules, Transport::Udp),
        datagram_mode: carry,
        v4: rendezvous.at(true).context("the rendezvous has no address")?,
        v6: rendezvous.at(false),
        listeners: [Some(v4.as_fd()), v6.as_ref().map(AsFd::as_fd)],
        ports,
        offload: plan.offload.map(|offload| Offload { rate: offload.rate.map(bytes) }),
        resolver: plan.names.as_ref().and_then(|names| resolver(names)),
        reports: plan.report.is_some(),
        strict: plan.rules.strict,
    };
    let divert = Redirect::attach(&diversion, group.as_fd())?;
    if let Some(store) = store {
        let bound_sockets = [true, false].map(|v4| rendezvous.bound_socket(v4).ok());
        let bound_sockets = bound_sockets.iter().flatten().map(AsFd::as_fd);
        let held = held_udp.as_ref().and_then(HeldUdp::rules);
        let held = held.iter().map(AsFd::as_fd);
        store.add(&bound_sockets.chain(divert.look_up()).chain(held).collect::<Vec<_>>())?;
    }
    let inbound = Arc::<Mutex<FlowTable>>::default();
    for listener in [Some(v4), v6].into_iter().flatten() {
        let Some(inside) = divert.inbound_conns() else { continue };
        let carrier = carrier.clone();
        let filter = negotiation
            .map(|(negotiation, _)| ClientFilter::new(negotiation.clone(), plan.report.clone()));
        let report = plan.report.clone();
        let inbound = inbound.clone();
        let accept = move || {
            accept_loop(&listener, (&inside, &inbound), (&carrier, report.as_ref()), filter);
        };
        thread::Builder::new().name("accept".to_owned()).spawn(accept)?;
    }
    let raw = RawSockets::open().context("open raw sockets")?;
    let context = Arc::new(ConnectContext { rendezvous, names: divert.names(), raw });
    let (rules, report, names) = (plan.rules, plan.report.clone(), plan.names.clone());
    let (pending, outbound) = (HashMap::new(), FlowTable::default());
    let mut event_loop = EventLoop {
        divert,
        context,
        carrier,
        rules,
        report,
        names,
        notice,
        pending,
        outbound,
        inbound,
    };
    let run = move || {
        if let Err(error) = event_loop.run() {
            warn!("connects are no longer handled: {error}");
        }
    };
    thread::Builder::new().name("connects".to_owned()).spawn(run)?;
    Ok(held_udp)
}

/// Decides on datagrams that the chain is to see. Returns the decision, their holder if any,
/// and otherwise a notice for the user.
fn carry(group: &Group, plan: &Plan) -> (DatagramMode, Option<HeldUdp>, Option<String>) {
    let otherwise = if plan.rules.strict { DatagramMode::Refused } else { DatagramMode::Passed };
    if !datagrams::are_handled(plan) {
        return (otherwise, None, None);
    }
    match held_udp::start(group, plan) {
        Ok(held_udp) => (DatagramMode::Held, Some(held_udp), None),
        Err(why) => (otherwise, None, Some(datagrams::notice(plan, &why))),
    }
}

/// Addresses at which programs' DNS queries are answered.
fn resolver(names: &RemoteNames) -> Option<Resolver> {
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
fn accept_loop(
    listener: &TcpListener,
    (inside, inbound): (&InboundConns, &Arc<Mutex<FlowTable>>),
    (carrier, report): (&Carrier, Option<&Report>),
    mut filter: Option<ClientFilter>,
) {
    let here = listener.local_addr().ok();
    loop {
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("accept: {error}");
                // For example, no descriptor is left.
                thread::sleep(ACCEPT_RETRY_DELAY);
                continue;
            }
        };
        let Ok(own) = stream.local_addr() else { continue };
        if Some(own) == here || stream.set_nonblocking(true).is_err() {
            continue;
        }
        let (client, own) = (canonical(client), canonical(own));
        let handlers = match &mut filter {
            None => None,
            Some(filter) => match filter.accept(&stream, client) {
                Some(handlers) => Some(handlers),
                None => continue,
            },
        };
        let program = Box::new(RedirectedProgram {
            client,
            own,
            inside: inside.clone(),
            inbound: inbound.clone(),
        });
        let program = ReportedProgram::of(program, own, report);
        carrier.arrive(Arrival { stream: stream.into(), client, own, handlers, program });
    }
}

/// Handles BPF events of the programs.
struct EventLoop {
    divert: Redirect,
    context: Arc<ConnectContext>,
    carrier: Carrier,
    rules: wrap::Rules,
    report: Option<Report>,
    names: Option<Arc<RemoteNames>>,
    /// Notice that datagrams do not pass the handlers, until it has been logged.
    notice: Option<String>,
    /// Pending connects. Each retransmission of a SYN is reported again.
    pending: HashMap<u64, (SocketAddr, Weak<()>)>,
    /// Flows of connects, by the program's address.
    outbound: FlowTable,
    /// Flows of connections to programs, by the address of the local end.
    inbound: Arc<Mutex<FlowTable>>,
}

/// Flows of connections, and the options that programs have set on them, by the address of one
/// end. No other connection has its port at the same time.
#[derive(Debug, Default)]
struct FlowTable(HashMap<SocketAddr, (SocketId, Mirrored)>);

/// Number of entries at which all are dropped. Programs can have more only with many addresses.
const MAX_FLOWS: usize = 1 << 17;

impl FlowTable {
    fn set(&mut self, at: SocketAddr, socket_id: SocketId, mirrored: Mirrored) {
        if self.0.len() >= MAX_FLOWS {
            self.0.clear();
        }
        self.0.insert(at, (socket_id, mirrored));
    }

    fn at(&mut self, at: SocketAddr) -> Option<(SocketId, &mut Mirrored)> {
        self.0.get_mut(&at).map(|(socket_id, mirrored)| (*socket_id, mirrored))
    }
}

/// Returns the local end of a connection to a program at this address.
fn local_end(program: SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = match program {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => (*at.ip()).into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    (ip, port).into()
}

/// Number of connects from which on those that are no longer pending are removed.
const MIN_CONNECTS_CLEANUP: usize = 1024;

impl EventLoop {
    /// Runs the event loop for as long as the process runs.
    fn run(&mut self) -> io::Result<()> {
        let mut cleanup_at = MIN_CONNECTS_CLEANUP;
        loop {
            while let Some(event) = self.divert.poll() {
                self.handle(event);
            }
            if self.pending.len() > cleanup_at {
                self.pending.retain(|_, (_, waits)| waits.strong_count() > 0);
                cleanup_at = MIN_CONNECTS_CLEANUP.max(2 * self.pending.len());
            }
            match poll(&mut [PollFd::new(&self.divert, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn handle(&mut self, event: RedirectEvent) {
        if let RedirectEvent::Passed(passing) | RedirectEvent::Refused(passing) = event
            && passing.datagrams
            && self.rules.fate(Transport::Udp, passing.to) == wrap::Fate::Divert
            && let Some(notice) = self.notice.take()
        {
            warn!("{notice}");
        }
        let transport = |passing: Traffic| if passing.datagrams { "udp" } else { "tcp" };
        match (event, &self.report) {
            (RedirectEvent::Connect(waiting), _) => self.call(waiting),
            (RedirectEvent::Option(option), _) => self.mirror(option),
            // Resolvers connect datagram sockets to all addresses of a name, to learn which are
            // reachable.
            (RedirectEvent::Refused(passing), _) if self.is_fake_ip(passing) => {}
            (RedirectEvent::Passed(passing), Some(report)) => {
                report.count(report::FlowOutcome::Direct, transport(passing), passing.to);
            }
            (RedirectEvent::Refused(passing), Some(report)) => {
                report.count(report::FlowOutcome::Refused, transport(passing), passing.to);
            }
            (RedirectEvent::OffloadStarted(to), Some(report)) => report.offload_begun(to),
            (RedirectEvent::OffloadEnded(to, out, back), Some(report)) => {
                report.offloaded(to, out, back);
            }
            (_, None) => {}
        }
    }

    /// Mirrors an option that a program has set on a connection, outbound or inbound.
    fn mirror(&mut self, option: OptionChange) {
        let OptionChange { program, peer, which, value } = option;
        let at = self.context.rendezvous.at(program.is_ipv4());
        let mut inbound = self.inbound.lock().unwrap_or_else(PoisonError::into_inner);
        let flow = match at.is_some_and(|at| at.port() == peer) {
            true => self.outbound.at(program),
            false => inbound.at(local_end(program, peer)),
        };
        if let Some((socket_id, mirrored)) = flow {
            mirrored.0[which] = Some(value);
            self.carrier.mirror(socket_id, *mirrored);
        }
    }

    fn is_fake_ip(&self, passing: Traffic) -> bool {
        passing.datagrams && self.names.as_ref().is_some_and(|names| names.is_fake_ip(passing.to))
    }

    fn call(&mut self, waiting: WaitingConnect) {
        let WaitingConnect { cookie, to, program, is_bound, mirrored, .. } = waiting;
        let to = with_link_scope(to);
        let before = self.pending.get(&cookie).filter(|(at, _)| *at == program);
        if before.is_some_and(|(_, waits)| waits.strong_count() > 0) {
            return;
        }
        let waits = Arc::new(());
        self.pending.insert(cookie, (program, Arc::downgrade(&waits)));
        self.outbound.set(program, SocketId::Cookie(cookie), mirrored);
        let held =
            Box::new(RedirectedConnect { waiting, context: self.context.clone(), _waits: waits });
        let mut held = ReportedConnect::of(held, to, self.report.as_ref());
        match target(self.names.as_deref(), to) {
            Some(to) => self.carrier.call(Call { to, source: program, is_bound, mirrored, held }),
            None => held.refuse(Failure::Unreachable),
        }
    }
}

/// Adds the interface to a link-local address: the one that the program has bound its socket
/// to, or else the only one with such addresses. The scope in the program's address is not
/// visible here.
fn with_link_scope(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V6(mut at) if at.ip().is_unicast_link_local() && at.scope_id() == 0 => {
            at.set_scope_id(interface::only_link().unwrap_or(0));
            at.into()
        }
        to => to,
    }
}

impl Program for RedirectedProgram {
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

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let ours = bound_socket.local_addr()?;
        self.inside.note(ours.port(), self.client, self.own)?;
        let socket_id = SocketId::Ends(self.client, self.own);
        let mut inbound = self.inbound.lock().unwrap_or_else(PoisonError::into_inner);
        inbound.set(local_end(self.own, ours.port()), socket_id, Mirrored::default());
        drop(inbound);
        tcp::connect_bound(bound_socket, self.own)
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        Some(Box::new(self.clone()))
    }
}

impl PendingConnect for RedirectedConnect {
    fn socket_id(&self) -> Option<SocketId> {
        Some(SocketId::Cookie(self.waiting.cookie))
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        self.context.names.set_own(self.waiting.cookie, own);
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.context.rendezvous.bound_socket(self.waiting.program.is_ipv4()).map(FlowSocket::from)
    }

    fn complete(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        tcp::connect_bound(bound_socket, self.waiting.program)
    }

    fn refuse(&mut self, why: Failure) {
        self.refuse_as(why, 0);
    }

    fn refuse_as(&mut self, why: Failure, errno: i32) {
        let WaitingConnect { program, syn, .. } = self.waiting;
        let Some(to) = self.context.rendezvous.at(program.is_ipv4()) else { return };
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
        if let Err(error) = self.context.raw.send(&packet, program.ip()) {
            debug!("refuse a connect: {error}");
        }
    }
}
