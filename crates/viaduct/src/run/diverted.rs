//! The interposer that sees all: BPF on the cgroup that the program runs in.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, warn};
use viaduct_proto::flow::Failure;
use viaduct_proto::wire::refusal::Asked;
use viaduct_proto::wrap::{self, Line, Transport};
use viaduct_sys::bpf::{
    Carry, Diversion, Divert, Fate, Group, Heard, Inside, Names, Offload, Passing, Rule, Rules,
    Waiting,
};
use viaduct_sys::meeting::Meeting;
use viaduct_sys::raw::Raw;
use viaduct_sys::tcp::{self, TcpOptions};

use super::Plan;
use super::datagrams::{self, Carrier, Fares};
use super::report::{self, Report, Reported};
use crate::proxy::calls::{Arrival, Call, Held, Program};
use crate::proxy::orders::{Order, ToWorker};

/// What all connects need.
#[derive(Debug)]
struct Shared {
    meeting: Meeting,
    names: Names,
    raw: Raw,
}

/// A connect whose SYN has vanished at the meeting.
#[derive(Debug)]
struct Diverted {
    waiting: Waiting,
    shared: Arc<Shared>,
    /// Alive while it waits: its SYN is told of each time it is sent.
    _waits: Arc<()>,
}

/// A program that listens.
#[derive(Debug)]
struct Listening {
    client: SocketAddr,
    own: SocketAddr,
    inside: Inside,
}

/// Connections to programs that the kernel holds ready.
const BACKLOG: u32 = 4096;
/// After an error of accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Attaches the programs to `group`, and has `worker` hear of every connect that `plan` wants; whoever
/// holds datagrams, if they pass the handlers too.
pub fn start(group: &Group, plan: &Plan, worker: ToWorker) -> Result<Option<Carrier>> {
    let meeting = Meeting::open().context("open the meeting")?;
    let v4 = listener(Ipv4Addr::LOCALHOST.into());
    let v4 = v4.context("listen for connections to the program")?;
    // Missing where the machine has no IPv6.
    let v6 = listener(Ipv6Addr::LOCALHOST.into()).ok();
    let (carry, carrier, why) = carry(group, plan);
    let diversion = Diversion {
        streams: rules(&plan.rules, Transport::Tcp),
        datagrams: rules(&plan.rules, Transport::Udp),
        carry,
        v4: meeting.at(true).context("the meeting has no address")?,
        v6: meeting.at(false),
        listeners: [Some(v4.as_fd()), v6.as_ref().map(AsFd::as_fd)],
        offload: plan.offload.map(|offload| Offload { rate: offload.rate.map(bytes) }),
        tells: plan.report.is_some(),
    };
    let divert = Divert::attach(&diversion, group.as_fd())?;
    for listener in [Some(v4), v6].into_iter().flatten() {
        let Some(inside) = divert.inside() else { continue };
        let worker = worker.clone();
        let take = move || take_in(&listener, &inside, &worker);
        thread::Builder::new().name("arrivals".to_owned()).spawn(take)?;
    }
    let raw = Raw::open().context("open raw sockets")?;
    let shared = Arc::new(Shared { meeting, names: divert.names(), raw });
    let mut hearing = Hearing {
        divert,
        shared,
        worker,
        rules: plan.rules,
        report: plan.report.clone(),
        why,
        known: HashMap::new(),
    };
    let hear = move || {
        if let Err(error) = hearing.run() {
            warn!("connects cannot be heard of any more: {error}");
        }
    };
    thread::Builder::new().name("connects".to_owned()).spawn(hear)?;
    Ok(carrier)
}

/// What becomes of datagrams that the chain is to see, who carries them, and what is said if nobody does.
fn carry(group: &Group, plan: &Plan) -> (Carry, Option<Carrier>, Option<String>) {
    let otherwise = if plan.rules.strict { Carry::Refused } else { Carry::Left };
    if !datagrams::matter(plan) {
        return (otherwise, None, None);
    }
    match datagrams::start(group, plan) {
        Fares::Carried(carrier) => (Carry::Held, Some(carrier), None),
        Fares::Not(why) => (otherwise, None, Some(datagrams::notice(plan, &why))),
    }
}

/// The user's rules of one transport.
fn rules(rules: &wrap::Rules, transport: Transport) -> Rules {
    let fate = |fate| match fate {
        wrap::Fate::Refuse => Fate::Refuse,
        wrap::Fate::Leave => Fate::Leave,
        wrap::Fate::Divert => Fate::Divert,
    };
    let mut ours = Rules { list: Vec::new(), otherwise: fate(rules.otherwise()) };
    for line in rules.lines().iter().filter(|line| line.transport.is_none_or(|of| of == transport))
    {
        if line.is_everything() {
            // The kernel takes no instruction that nothing leads to.
            ours.otherwise = fate(line.fate);
            break;
        }
        let Line { prefix, ports: (first, last), .. } = *line;
        ours.list.push(Rule { prefix, ports: first..=last, fate: fate(line.fate) });
    }
    ours
}

/// Bits a second as the kernel takes them.
fn bytes(bits: u64) -> u32 {
    u32::try_from(bits / 8).unwrap_or(u32::MAX).max(1)
}

/// A listener that connections to programs are led to, wherever they were meant to go: nobody can
/// reach it by its own address but from this machine.
fn listener(at: IpAddr) -> io::Result<TcpListener> {
    let options = TcpOptions { inside: true, ..TcpOptions::default() };
    let listener = tcp::listen((at, 0).into(), BACKLOG, options)?;
    listener.set_nonblocking(false)?;
    Ok(listener)
}

/// Takes connections to programs in for as long as the process runs.
fn take_in(listener: &TcpListener, inside: &Inside, worker: &ToWorker) {
    let here = listener.local_addr().ok();
    loop {
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("accept: {error}");
                // Without a descriptor, say.
                thread::sleep(PAUSE);
                continue;
            }
        };
        let Ok(own) = stream.local_addr() else { continue };
        if Some(own) == here || stream.set_nonblocking(true).is_err() {
            continue;
        }
        let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        let (client, own) = (canonical(client), canonical(own));
        let program = Box::new(Listening { client, own, inside: inside.clone() });
        worker.tell(Order::Arrive(Box::new(Arrival { stream, client, own, program })));
    }
}

/// Hears of what the program does.
struct Hearing {
    divert: Divert,
    shared: Arc<Shared>,
    worker: ToWorker,
    rules: wrap::Rules,
    report: Option<Report>,
    /// Why datagrams do not pass the handlers, until it has been said.
    why: Option<String>,
    /// Connects that wait: a SYN is told of each time it is sent.
    known: HashMap<u64, (SocketAddr, Weak<()>)>,
}

/// Connects that are known before those that wait no more are forgotten.
const KNOWN: usize = 1024;

impl Hearing {
    /// For as long as the process runs.
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

    fn hear(&mut self, heard: Heard) {
        if let Heard::Left(passing) | Heard::Refused(passing) = heard
            && passing.datagrams
            && self.rules.fate(Transport::Udp, passing.to) == wrap::Fate::Divert
            && let Some(why) = self.why.take()
        {
            warn!("{why}");
        }
        let transport = |passing: Passing| if passing.datagrams { "udp" } else { "tcp" };
        match (heard, &self.report) {
            (Heard::Waits(waiting), _) => self.call(waiting),
            (Heard::Left(passing), Some(report)) => {
                report.count(report::Fate::Direct, transport(passing), passing.to);
            }
            (Heard::Refused(passing), Some(report)) => {
                report.count(report::Fate::Refused, transport(passing), passing.to);
            }
            (Heard::Offloaded(to, out, back), Some(report)) => report.offloaded(to, out, back),
            (_, None) => {}
        }
    }

    fn call(&mut self, waiting: Waiting) {
        let Waiting { cookie, to, program, .. } = waiting;
        let before = self.known.get(&cookie).filter(|(at, _)| *at == program);
        if before.is_some_and(|(_, waits)| waits.strong_count() > 0) {
            return;
        }
        let waits = Arc::new(());
        self.known.insert(cookie, (program, Arc::downgrade(&waits)));
        let mut held: Box<dyn Held> =
            Box::new(Diverted { waiting, shared: self.shared.clone(), _waits: waits });
        if let Some(report) = &self.report {
            held = Box::new(Reported { held, to, report: report.clone() });
        }
        self.worker.tell(Order::Call(Box::new(Call { to: to.into(), source: program, held })));
    }
}

impl Program for Listening {
    fn connect(&mut self) -> io::Result<TcpStream> {
        let Listening { client, own, ref inside } = *self;
        let loopback: IpAddr = match own {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let note = |port| inside.note(port, client, own);
        let options = TcpOptions { inside: true, ..TcpOptions::default() };
        tcp::connect_from(own, loopback, options, note)
    }
}

impl Held for Diverted {
    fn named(&mut self, own: SocketAddr) {
        self.shared.names.set_own(self.waiting.cookie, own);
    }

    fn meet(&mut self) -> io::Result<TcpStream> {
        self.shared.meeting.meet(self.waiting.program)
    }

    fn refuse(&mut self, why: Failure) {
        let Waiting { program, syn, .. } = self.waiting;
        let Some(to) = self.shared.meeting.at(program.is_ipv4()) else { return };
        let asked = Asked { from: program, to, number: syn };
        let packet = match why {
            // Its SYNs vanish: it gives up when it would have.
            Failure::TimedOut => return,
            Failure::Unreachable => asked.unreachable(),
            Failure::Refused | Failure::Reset | Failure::Denied => asked.refused(),
        };
        if let Err(error) = self.shared.raw.send(&packet, program.ip()) {
            debug!("tell a program: {error}");
        }
    }
}
