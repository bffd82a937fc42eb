//! Bulk transfer over a long link, by TCP of 1999 or of today, and its stalls.
//!
//! ```text
//!   a1 ── endless data ──▶ gwa ══ 10 Mb/s, listed losses ═════▶ gwb ──▶ b1
//!                                └ captured here: sequence numbers over time
//! ```

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::net::sockopt::set_tcp_congestion;

use crate::experiments::prelude::*;
use crate::topology::TopologyError;
use crate::topology::programs::{Capture, Segment};

const PORT: u16 = 6100;

/// Rate of new data, in bits per second, below which a transfer counts as stalled: a twentieth
/// of the link's rate.
const CRAWL: f64 = 0.5e6;

/// TCP implementation of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Closest approximation of 1999 in this kernel: Reno without SACK, RACK, tail-loss probes and
    /// F-RTO, an initial window of two segments, and retransmission timeouts of at least a second.
    /// (A difference remains: after a partial acknowledgment the sender retransmits the next hole,
    /// as in NewReno.)
    Of1999,
    /// Default settings of the kernel, with this congestion control.
    Today(&'static str),
}

impl Stack {
    /// Returns the display name.
    pub(super) fn name(self) -> String {
        match self {
            Stack::Of1999 => "1999".into(),
            Stack::Today(congestion) => format!("today, {congestion}"),
        }
    }

    fn congestion(self) -> &'static str {
        match self {
            Stack::Of1999 => "reno",
            Stack::Today(congestion) => congestion,
        }
    }

    fn install(self, host: &Host) -> Result<(), TopologyError> {
        if self != Stack::Of1999 {
            return Ok(());
        }
        let off = ["sack", "dsack", "recovery", "early_retrans", "frto"];
        let keys = off.map(|key| format!("net/ipv4/tcp_{key}"));
        host.set_sysctls(&keys.each_ref().map(|key| (key.as_str(), "0")))?;
        let shown = host.run("ip", &["-4", "route", "show", "default"])?;
        host.ip(&[format!("route change {} initcwnd 2 rto_min 1s", shown.trim())])
    }
}

/// Settings of a transfer.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    /// TCP implementation of the sender.
    pub(super) stack: Stack,
    /// Link in the direction of the transfer.
    pub(super) link: LinkConfig,
    /// Maximum bytes in flight; `None` for the kernel's limit.
    pub(super) window: Option<usize>,
    /// Duration of sending.
    pub(super) duration: Duration,
}

/// Sequence numbers over time, from a capture.
pub(super) struct Trace {
    /// Points: seconds since the first byte, and the highest byte sent until then.
    pub(super) sent: Vec<(f64, f64)>,
    /// Retransmissions, in the same form.
    pub(super) again: Vec<(f64, f64)>,
    /// Acknowledgments of the receiver, in the same form.
    pub(super) acknowledged: Vec<(f64, f64)>,
}

impl Transfer {
    /// Runs the transfer in a world of its own.
    pub(super) fn run(&self, run: &Worlds) -> Result<Trace> {
        let back = LinkConfig { loss: Default::default(), ..self.link.clone() };
        let world = Dumbbell::over(back, 1, run.seed, &run.journal)?;
        for host in [world.a1(), world.b1()] {
            self.stack.install(host)?;
        }
        // The losses are configured only now, so that their list begins with the connection's
        // first packet.
        if let Some(emulator) = world.emulator() {
            emulator.set(Direction::AtoB, self.link.clone())?;
        }
        let capture = Capture::start(world.gateway_a(), "wan0", PORT)?;
        self.send(world.a1(), world.b1())?;
        Ok(Trace::of(&capture.finish()?, self.duration))
    }

    fn send(&self, from: &Host, to: &Host) -> Result<()> {
        let address = SocketAddr::new(to.v4().into(), PORT);
        let listener = to.netns().enter(|| TcpListener::bind(address))??;
        let connect = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
            set_tcp_congestion(&stream, self.stack.congestion())?;
            if let Some(window) = self.window {
                // The kernel doubles the value and uses half for its bookkeeping.
                rustix::net::sockopt::set_socket_send_buffer_size(&stream, window)?;
            }
            Ok(stream)
        };
        let stream = from.netns().enter(connect)??;
        let (incoming, _) = listener.accept()?;
        thread::scope(|scope| {
            scope.spawn(|| swallow(incoming));
            fill(stream, self.duration)
        })?;
        Ok(stop::check()?)
    }
}

/// Parts of a run that are needed to build worlds; usable from several threads.
pub(super) struct Worlds {
    seed: u64,
    journal: Journal,
}

impl Worlds {
    pub(super) fn of(run: &Run) -> Worlds {
        Worlds { seed: run.seed(), journal: run.journal().clone() }
    }
}

/// Writes endless data for `duration`, and then resets the connection.
fn fill(mut stream: TcpStream, duration: Duration) -> io::Result<()> {
    let (begin, bytes) = (Instant::now(), [0x5a; 16 << 10]);
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    while begin.elapsed() < duration && !stop::is_requested() {
        match stream.write(&bytes) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    viaduct_sys::socket::tcp::reset_on_close(&stream)
}

/// Reads until the reset.
fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    // The sender resets the connection, so the last error is ignored.
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

impl Trace {
    fn of(segments: &[Segment], duration: Duration) -> Trace {
        let mut trace = Trace { sent: vec![], again: vec![], acknowledged: vec![] };
        let Some(first) = segments.iter().find(|s| s.outgoing && s.length > 0) else {
            return trace;
        };
        let offset = |number: u32| f64::from(number.wrapping_sub(first.sequence));
        let (mut highest, mut acknowledged) = (0.0, 0.0);
        for segment in segments.iter().filter(|s| s.at >= first.at) {
            let at = (segment.at - first.at).as_secs_f64();
            if at > duration.as_secs_f64() {
                break;
            }
            let end = offset(segment.sequence.wrapping_add(segment.length));
            let heard = offset(segment.acknowledged);
            if segment.outgoing && segment.length > 0 {
                let new = end > highest;
                let list = if new { &mut trace.sent } else { &mut trace.again };
                list.push((at, end));
                highest = f64::max(highest, end);
            } else if !segment.outgoing && heard > acknowledged {
                trace.acknowledged.push((at, heard));
                acknowledged = heard;
            }
        }
        trace
    }

    /// Returns the longest time with almost no new data (less than [`CRAWL`]), in seconds,
    /// starting one second before the first retransmission: the flat part of the slides' plots.
    /// Returns 0 without a retransmission.
    pub(super) fn longest_stall(&self) -> f64 {
        let Some((first_loss, _)) = self.again.first().copied() else { return 0.0 };
        let points = thinned(&self.sent, 0.05);
        let points = &points[points.partition_point(|(at, _)| *at < first_loss - 1.0)..];
        let mut longest = 0.0;
        for (n, from) in points.iter().enumerate() {
            for to in points[n..].iter().filter(|to| to.0 > first_loss) {
                let (seconds, bytes) = (to.0 - from.0, to.1 - from.1);
                if bytes * 8.0 < CRAWL * seconds {
                    longest = f64::max(longest, seconds);
                }
            }
        }
        longest
    }

    /// Returns the longest time without a new acknowledgment, starting one second before the first
    /// retransmission. The reader received nothing in that time. Returns 0 without a
    /// retransmission.
    pub(super) fn longest_silence(&self) -> f64 {
        let first_loss = self.again.first().map_or(f64::INFINITY, |(at, _)| *at);
        let from = self.acknowledged.partition_point(|(at, _)| *at < first_loss - 1.0);
        self.acknowledged[from..].windows(2).map(|p| p[1].0 - p[0].0).fold(0.0, f64::max)
    }

    /// Returns the mean rate until the last acknowledgment, in bits per second.
    pub(super) fn rate(&self) -> f64 {
        let last = self.acknowledged.last().copied().unwrap_or((1.0, 0.0));
        last.1 * 8.0 / last.0
    }
}

/// Returns the last point of each interval of `step` seconds.
pub(super) fn thinned(points: &[(f64, f64)], step: f64) -> Vec<(f64, f64)> {
    let number = |(at, _): (f64, f64)| (at / step) as u64;
    let last = |pair: &[(f64, f64)]| (number(pair[0]) != number(pair[1])).then_some(pair[0]);
    points.windows(2).filter_map(last).chain(points.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_the_longest_time_with_almost_no_new_data() {
        let ms = Duration::from_millis;
        let sent = |at, sequence| Segment {
            at: ms(at),
            outgoing: true,
            sequence,
            acknowledged: 0,
            length: 100,
        };
        let heard = |at, acknowledged| Segment {
            at: ms(at),
            outgoing: false,
            sequence: 0,
            acknowledged,
            length: 0,
        };
        // Sequence numbers wrap at 2^32; the second segment is retransmitted at 900; the last
        // one is after the end.
        let first = u32::MAX - 50;
        let n = |bytes: u32| first.wrapping_add(bytes);
        let segments = [
            sent(100, n(0)),
            sent(110, n(100)),
            heard(400, n(100)),
            sent(900, n(100)),
            heard(1200, n(200)),
            sent(1210, n(200)),
            sent(9000, n(300)),
        ];
        let trace = Trace::of(&segments, Duration::from_secs(5));
        assert_eq!((trace.sent.len(), trace.again.len()), (3, 1));
        assert!((trace.longest_stall() - 1.1).abs() < 1e-9, "{:?}", trace.sent);
        assert!((trace.longest_silence() - 0.8).abs() < 1e-9);
    }
}
