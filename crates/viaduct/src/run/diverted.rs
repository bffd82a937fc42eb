//! The interposer that sees all: BPF on the cgroup that the program runs in.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, warn};
use viaduct_proto::flow::Failure;
use viaduct_proto::wire::refusal::Asked;
use viaduct_sys::bpf::{Divert, Diversion, Fate, Group, Names, Waiting};
use viaduct_sys::meeting::Meeting;
use viaduct_sys::raw::Raw;

use crate::proxy::calls::{Call, Held};
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

/// Attaches the programs to `group`, and has `worker` hear of every connect.
pub fn start(group: &Group, worker: ToWorker) -> Result<()> {
    let meeting = Meeting::open().context("open the meeting")?;
    let diversion = Diversion {
        rules: Vec::new(),
        otherwise: Fate::Divert,
        datagrams: true,
        v4: meeting.at(true).context("the meeting has no address")?,
        v6: meeting.at(false),
        listener: None,
    };
    let divert = Divert::attach(&diversion, group.as_fd())?;
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
