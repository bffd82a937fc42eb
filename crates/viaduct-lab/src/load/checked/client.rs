//! Client of the checked flows: one thread.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use viaduct_sys::socket::tcp;

use super::content::Content;
use super::{CheckedReport, MIN_PAUSE, SHORT, State, TICK, Traffic};

/// Time in which a short flow must be served, and in which all flows must end.
const FLOW_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of the search for flows that are not served in time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Client<'a> {
    to: SocketAddr,
    traffic: Traffic,
    state: &'a State,
    epoll: OwnedFd,
    /// Open flows by number; paced ones have the lowest numbers.
    flows: HashMap<u64, Flow>,
    /// Number of flows begun.
    begun: u64,
    report: CheckedReport,
    buffer: Vec<u8>,
}

struct Flow {
    stream: TcpStream,
    content: Content,
    /// Bytes requested; 0 for a paced flow.
    length: u64,
    got: u64,
    has_asked: bool,
    begun: Instant,
    /// Time of the last bytes.
    last: Option<Instant>,
}

enum Fault {
    Wrong(u64),
    Broken(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Broken(error.to_string())
    }
}

impl<'a> Client<'a> {
    /// Prepares the clients, which connect to `to` from this thread's namespace.
    pub(super) fn new(to: SocketAddr, traffic: Traffic, state: &'a State) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (flows, report) = Default::default();
        let buffer = vec![0; 64 << 10];
        Ok(Client { to, traffic, state, epoll, flows, begun: 0, report, buffer })
    }

    /// Runs until a stop, and then until all flows have ended or [`FLOW_TIMEOUT`] has passed.
    pub(super) fn run(mut self) -> io::Result<CheckedReport> {
        let paced = self.traffic.paced as u64;
        while self.begun < paced {
            self.begin(0)?;
            self.turn(Duration::ZERO)?;
        }
        let (mut short_from, mut stopped, mut swept) = (None, None, Instant::now());
        loop {
            let now = Instant::now();
            if self.state.stop.load(Relaxed) {
                let stopped = *stopped.get_or_insert(now);
                if self.flows.len() as u64 <= paced {
                    self.state.end.store(true, Relaxed);
                }
                if self.flows.is_empty() || now - stopped > FLOW_TIMEOUT {
                    break;
                }
            } else if self.state.open.load(Relaxed) as u64 >= paced {
                let passed = now - *short_from.get_or_insert(now);
                let due = passed.as_secs_f64() * f64::from(self.traffic.short_per_second);
                while self.begun - paced < due as u64 {
                    self.begin(SHORT)?;
                }
            }
            self.turn(TICK)?;
            if now - swept > SWEEP_INTERVAL {
                self.sweep(now);
                swept = now;
            }
        }
        let left: Vec<u64> = self.flows.keys().copied().collect();
        left.into_iter().for_each(|number| self.fail(number, "has not ended"));
        Ok(self.report)
    }

    fn begin(&mut self, length: u64) -> io::Result<()> {
        let number = self.begun;
        self.begun += 1;
        let stream = tcp::connect(self.to, None, tcp::TcpOptions::default())?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number), flags)?;
        let (content, begun) = (Content::of(number), Instant::now());
        let flow = Flow { stream, content, length, got: 0, has_asked: false, begun, last: None };
        self.flows.insert(number, flow);
        Ok(())
    }

    /// Waits for events, for at most `limit`, and handles them.
    fn turn(&mut self, limit: Duration) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => {}
        }
        events.iter().for_each(|event| self.handle_event(event.data.u64()));
        Ok(())
    }

    fn handle_event(&mut self, number: u64) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let was_silent = flow.got == 0;
        let before = flow.got;
        let ended = flow.handle_event(number, &mut self.buffer, &mut self.report.pauses);
        if flow.length == 0 {
            self.report.bytes += flow.got - before;
            if was_silent && flow.got > 0 {
                self.state.open.fetch_add(1, Relaxed);
            }
        }
        match ended {
            Ok(false) => {}
            Ok(true) => self.end(number),
            Err(Fault::Broken(why)) => self.fail(number, &why),
            Err(Fault::Wrong(at)) => {
                self.flows.remove(&number);
                self.report.wrong += 1;
                self.report.fault(|| format!("flow {number}: wrong bytes starting at byte {at}"));
            }
        }
    }

    /// Handles the end of a flow.
    fn end(&mut self, number: u64) {
        let Some(flow) = self.flows.get(&number) else { return };
        let (got, length) = (flow.got, flow.length);
        if length == 0 && self.state.end.load(Relaxed) {
            self.report.ended.insert(number, got);
            self.flows.remove(&number);
        } else if length > 0 && got == length {
            self.report.times.push(flow.begun.elapsed());
            self.flows.remove(&number);
        } else {
            self.fail(number, &format!("has ended after {got} bytes"));
        }
    }

    fn fail(&mut self, number: u64, why: &str) {
        let Some(flow) = self.flows.remove(&number) else { return };
        let (kind, age) = (if flow.length == 0 { "paced" } else { "short" }, flow.begun.elapsed());
        self.report.broken += 1;
        self.report.fault(|| format!("{kind} flow {number}: {why}, {age:.1?} after its connect"));
    }

    /// Fails the short flows that are not served in time.
    fn sweep(&mut self, now: Instant) {
        let is_late = |flow: &Flow| flow.length > 0 && now - flow.begun > FLOW_TIMEOUT;
        let late = self.flows.iter().filter(|(_, flow)| is_late(flow)).map(|(number, _)| *number);
        let late: Vec<u64> = late.collect();
        late.into_iter().for_each(|number| self.fail(number, "is not served"));
    }
}

impl Flow {
    /// Performs the steps that are possible without blocking. Returns true at the end of the flow.
    fn handle_event(
        &mut self,
        number: u64,
        buffer: &mut [u8],
        pauses: &mut Vec<(Instant, Instant)>,
    ) -> Result<bool, Fault> {
        if !self.has_asked {
            let request = ((u128::from(number) << 64) | u128::from(self.length)).to_be_bytes();
            match self.stream.write(&request) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // A new socket's buffer takes the whole request.
                sent => {
                    sent?;
                }
            }
            self.has_asked = true;
        }
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(true),
                Ok(count) => self.handle_bytes(&buffer[..count], pauses)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn handle_bytes(
        &mut self,
        bytes: &[u8],
        pauses: &mut Vec<(Instant, Instant)>,
    ) -> Result<(), Fault> {
        let now = Instant::now();
        let last = self.last.replace(now).filter(|last| now - *last > MIN_PAUSE);
        if self.length == 0 {
            pauses.extend(last.map(|last| (last, now)));
        }
        if !self.content.matches(bytes) {
            return Err(Fault::Wrong(self.got));
        }
        self.got += bytes.len() as u64;
        Ok(())
    }
}
