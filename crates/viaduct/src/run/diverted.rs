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
use viaduct_sys::bpf::{Diversion, Divert, Fate, Group, Inside, Names, Waiting};
use viaduct_sys::meeting::Meeting;
use viaduct_sys::raw::Raw;
use viaduct_sys::tcp::{self, TcpOptions};

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

/// Attaches the programs to `group`, and has `worker` hear of every connect.
pub fn start(group: &Group, worker: ToWorker) -> Result<()> {
    let meeting = Meeting::open().context("open the meeting")?;
    let listener = listener().context("listen for connections to the program")?;
    let diversion = Diversion {
        rules: Vec::new(),
        otherwise: Fate::Divert,
        datagrams: true,
        v4: meeting.at(true).context("the meeting has no address")?,
        v6: meeting.at(false),
        listener: Some(listener.as_fd()),
    };
    let divert = Divert::attach(&diversion, group.as_fd())?;
    if let Some(inside) = divert.inside() {
        let worker = worker.clone();
        let take = move || take_in(&listener, &inside, &worker);
        thread::Builder::new().name("arrivals".to_owned()).spawn(take)?;
    }
    let raw = Raw::open().context("open raw sockets")?;
    let shared = Arc::new(Shared { meeting, names: divert.names(), raw });
    let hear = move || {
        if let Err(error) = hear(divert, &shared, &worker) {
            warn!("connects cannot be heard of any more: {error}");
        }
    };
    thread::Builder::new().name("connects".to_owned()).spawn(hear)?;
    Ok(())
}

/// The listener that connections to programs are led to, wherever they were meant to go: nobody can
/// reach it by its own address but from this machine.
fn listener() -> io::Result<TcpListener> {
    let anywhere = tcp::listen((Ipv6Addr::LOCALHOST, 0).into(), BACKLOG, TcpOptions::default());
    let listener = anywhere.or_else(|_| {
        tcp::listen((Ipv4Addr::LOCALHOST, 0).into(), BACKLOG, TcpOptions::default())
    })?;
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

/// Hears of connects for as long as the process runs.
fn hear(mut divert: Divert, shared: &Arc<Shared>, worker: &ToWorker) -> io::Result<()> {
    let mut known: HashMap<u64, (SocketAddr, Weak<()>)> = HashMap::new();
    let mut most = 1024;
    loop {
        while let Some(waiting) = divert.poll() {
            let Waiting { cookie, to, program, .. } = waiting;
            let before = known.get(&cookie).filter(|(at, _)| *at == program);
            if before.is_some_and(|(_, waits)| waits.strong_count() > 0) {
                continue;
            }
            let waits = Arc::new(());
            known.insert(cookie, (program, Arc::downgrade(&waits)));
            let held = Box::new(Diverted { waiting, shared: shared.clone(), _waits: waits });
            let call = Call { to: to.into(), source: program, held };
            worker.tell(Order::Call(Box::new(call)));
        }
        if known.len() > most {
            known.retain(|_, (_, waits)| waits.strong_count() > 0);
            most = 1024.max(2 * known.len());
        }
        match poll(&mut [PollFd::new(&divert, PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
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
        tcp::connect_from(own, loopback, TcpOptions::default(), note)
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
