//! `--via cgroup`, the interposer that sees all connects: BPF on the cgroup of the program.
//!
//! | part | |
//! |---|---|
//! | here | start; events of the BPF programs |
//! | `connects` | connects whose SYN was dropped at the rendezvous |
//! | `inbound` | connections to listening programs |
//! | `barrier` | wait for the handling of earlier events |

mod barrier;
mod connects;
mod inbound;
mod pending;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::warn;
use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::{self, Line, Transport};
use viaduct_sys::bpf::{
    DatagramMode, Group, Offload, OptionChange, Ports, Redirect, RedirectConfig, RedirectEvent,
    Resolver, Rule, RuleAction, Rules, Traffic, WaitingConnect,
};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::poll::wait;
use viaduct_sys::socket::rendezvous::Rendezvous;
use viaduct_sys::socket::tcp::Mirrored;

pub use self::barrier::EventBarrier;
use self::connects::{ConnectContext, RedirectedConnect, with_link_scope};
use self::inbound::{Inbound, listener, local_end};
use self::pending::PendingConnects;
use super::Plan;
use super::datagrams;
use super::descriptor_store;
use super::held_udp::{self, HeldUdp};
use super::names::{RemoteNames, target};
use super::negotiate::ClientFilter;
use super::report::{self, Report, ReportedConnect};
use crate::engine::aware::SocketId;
use crate::engine::wrapped::Call;
use crate::master::carrier::Carrier;

/// Attaches the BPF programs to `group`, and reports to `carrier` every connect that `plan`
/// selects. Returns the holder of datagrams, if datagrams also go through the handlers, and the
/// event loop's barrier.
pub fn start(
    group: &Group,
    plan: &Plan,
    carrier: Carrier,
    store: Option<&OwnedFd>,
) -> Result<(Option<HeldUdp>, Arc<EventBarrier>)> {
    let rendezvous = Rendezvous::open().context("cannot open the rendezvous")?;
    let negotiation = plan.negotiation.as_ref().and_then(|negotiation| negotiation.syn_options());
    let save_syn = negotiation.is_some();
    let v4 = listener(Ipv4Addr::LOCALHOST.into(), save_syn);
    let v4 = v4.context("cannot listen for connections to the program")?;
    // `None` if the machine has no IPv6.
    let v6 = listener(Ipv6Addr::LOCALHOST.into(), save_syn).ok();
    if let Some(names) = &plan.names {
        names.begin()?;
    }
    let (datagram_mode, held_udp, notice) = carry(group, plan);
    let config = RedirectConfig {
        streams: rules(&plan.rules, Transport::Tcp),
        datagrams: rules(&plan.rules, Transport::Udp),
        datagram_mode,
        v4: rendezvous.at(true).context("the rendezvous has no address")?,
        v6: rendezvous.at(false),
        listeners: [Some(v4.as_fd()), v6.as_ref().map(AsFd::as_fd)],
        ports: negotiation.map_or_else(Ports::new, |(_, ports)| Ok(ports.clone()))?,
        offload: plan.offload.map(|offload| Offload { rate: offload.rate.map(bytes) }),
        resolver: plan.names.as_ref().and_then(|names| resolver(names)),
        reports: plan.report.is_some(),
        strict: plan.rules.strict,
    };
    let divert = Redirect::attach(&config, group.as_fd())?;
    if let Some(store) = store {
        keep(store, &rendezvous, &divert, held_udp.as_ref())?;
    }
    let inbound = Arc::<Mutex<FlowTable>>::default();
    for listener in [Some(v4), v6].into_iter().flatten() {
        let Some(inside) = divert.inbound_conns() else { continue };
        let (flows, carrier, report) = (inbound.clone(), carrier.clone(), plan.report.clone());
        let filter = negotiation.map(|(terms, _)| ClientFilter::new(terms.clone(), report.clone()));
        let inbound = Inbound { inside, flows, carrier, report, filter };
        let accept = move || inbound.accept(&listener);
        thread::Builder::new().name("accept".to_owned()).spawn(accept)?;
    }
    let raw = RawSockets::open().context("cannot open raw sockets")?;
    let barrier = Arc::new(EventBarrier::new().context("cannot create an eventfd")?);
    let event_loop = EventLoop {
        barrier: barrier.clone(),
        context: Arc::new(ConnectContext { rendezvous, names: divert.names(), raw }),
        divert,
        carrier,
        rules: plan.rules,
        report: plan.report.clone(),
        names: plan.names.clone(),
        notice,
        pending: PendingConnects::default(),
        outbound: FlowTable::default(),
        inbound,
    };
    thread::Builder::new().name("connects".to_owned()).spawn(move || event_loop.run())?;
    Ok((held_udp, barrier))
}

/// Adds to `store` the descriptors that must outlive this process, so that connects fail after this
/// process has ended instead of bypassing the chain.
fn keep(
    store: &OwnedFd,
    rendezvous: &Rendezvous,
    divert: &Redirect,
    held_udp: Option<&HeldUdp>,
) -> Result<()> {
    let bound_sockets = [true, false].map(|v4| rendezvous.bound_socket(v4).ok());
    let bound_sockets = bound_sockets.iter().flatten().map(AsFd::as_fd);
    let held = held_udp.and_then(HeldUdp::rules);
    let held = held.iter().map(AsFd::as_fd);
    let all: Vec<_> = bound_sockets.chain(divert.inbound_link()).chain(held).collect();
    descriptor_store::add(store, &all)?;
    Ok(())
}

/// Selects the treatment of datagrams. Returns the treatment; the holder of datagrams, if they go
/// through the handlers; and a notice for the user, if they should go through the handlers but
/// cannot.
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

/// Addresses to which programs' DNS queries are redirected.
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
            // Later rules have no effect; their instructions would be unreachable, which the BPF
            // verifier rejects.
            ours.otherwise = fate(line.fate);
            break;
        }
        let Line { prefix, ports: (first, last), .. } = *line;
        ours.list.push(Rule { prefix, ports: first..=last, action: fate(line.fate) });
    }
    ours
}

/// Converts bits per second to the bytes per second that the kernel expects.
fn bytes(bits: u64) -> u32 {
    u32::try_from(bits / 8).unwrap_or(u32::MAX).max(1)
}

/// Handles the events that the BPF programs report.
struct EventLoop {
    barrier: Arc<EventBarrier>,
    divert: Redirect,
    context: Arc<ConnectContext>,
    carrier: Carrier,
    rules: wrap::Rules,
    report: Option<Report>,
    names: Option<Arc<RemoteNames>>,
    /// Notice that datagrams do not go through the handlers; `None` once the notice has been
    /// logged.
    notice: Option<String>,
    /// Pending connects, by socket cookie, because the BPF programs also report retransmitted SYNs,
    /// which must not begin another flow.
    pending: PendingConnects,
    /// Flows of connects, by the program's address.
    outbound: FlowTable,
    /// Flows of connections to programs, by the address of the local end.
    inbound: Arc<Mutex<FlowTable>>,
}

/// Flows, and the options that programs have set on their sockets, by the address of one end of the
/// program's connection. That address is unique among open connections.
#[derive(Debug, Default)]
struct FlowTable(HashMap<SocketAddr, (SocketId, Mirrored)>);

/// Number of entries at which the table is cleared. Only programs with many local addresses can
/// have so many connections.
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

/// Maximum sleep of the event loop; no timing depends on this value.
const MAX_SLEEP: Duration = Duration::from_secs(3_600);

impl EventLoop {
    /// Runs the event loop until the process ends.
    fn run(mut self) {
        loop {
            let requested = self.barrier.requested();
            while let Some(event) = self.divert.poll() {
                self.handle(event);
            }
            self.barrier.release(requested);
            wait(&[&self.divert], &self.barrier.waker, MAX_SLEEP);
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
            // Refused connects to fake IPs are not counted: resolvers connect datagram sockets to
            // all addresses of a name to learn which ones are reachable.
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
        let Some(pending) = self.pending.add(waiting) else { return };
        self.outbound.set(program, SocketId::Cookie(cookie), mirrored);
        let held = Box::new(RedirectedConnect { waiting, context: self.context.clone(), pending });
        let mut held = ReportedConnect::of(held, to, self.report.as_ref());
        match target(self.names.as_deref(), to) {
            Some(to) => self.carrier.call(Call { to, source: program, is_bound, mirrored, held }),
            None => held.refuse(Failure::Unreachable),
        }
    }
}
