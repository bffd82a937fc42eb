//! Setup of the paper's section 5.2: streams of timed messages, and a concurrent flow below the
//! link's rate.
//!
//! ```text
//!   a1 ── message streams, 0.1 Mb/s each ──┐                            ┌──▶ b1: how late?
//!                                          ├── 100 Mb/s, loss, delay ──┤
//!   a1 ── iperf3, TCP, 10 Mb/s ────────────┘                            └──▶ b1
//! ```
//!
//! A stream at the paper's rate has 12 messages per second: too few for a 99th percentile.
//! Several such streams, with their messages evenly interleaved, provide independent samples;
//! each stream is affected only by its own losses.

use crate::experiments::prelude::*;
use crate::topology::programs::{Carrier, Message, TimedMessages};

/// Congestion control of the messages and of the concurrent flow, as in the paper.
const CONGESTION: &str = "reno";

/// Rate of the concurrent flow, in bits per second.
const CONCURRENT_RATE: u64 = 10_000_000;

/// Bytes per write of the concurrent flow: one segment of the hosts' MTU, so that it is as
/// smooth as the paper's.
const WRITE: u32 = 1148;

/// Time that the concurrent flow runs before the messages begin.
const LEAD: Duration = Duration::from_secs(2);

/// Amount of messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// Number of parallel streams.
    pub(super) streams: u16,
    /// Duration of each stream.
    pub(super) duration: Duration,
}

/// Results of the messages and of the concurrent flow.
pub(super) struct StreamResult {
    /// All messages, ordered by stream.
    pub(super) messages: Vec<Message>,
    /// Throughput of the concurrent flow, in Mb/s.
    pub(super) concurrent: f64,
}

impl Scene {
    /// Builds two sites and a link with this delay (ms, one way) and loss (0 to 1).
    pub(super) fn world(run: &Run, delay: u32, loss: f64) -> Result<World> {
        let config = format!("rate=100M,delay={delay}ms,queue=100ms,loss={loss}");
        World::new((1200, 1500), &link(&config), run.seed(), run.journal())
    }

    /// Records the settings.
    pub(super) fn describe(&self, run: &mut Run) {
        run.param("rate_mbit_per_s", 100);
        run.param("queue_ms", 100);
        run.param("code", "(7,2) I=(1,10)");
        run.param("host_mtu", 1200);
        run.param("wan_mtu", 1500);
        run.param("message_bytes", 1024);
        run.param("stream_mbit_per_s", 0.1);
        run.param("streams", self.streams);
        run.param("seconds", self.duration.as_secs());
        run.param("flow_beside", "iperf3, one TCP flow limited to 10 Mb/s");
        run.congestion_control(CONGESTION);
    }

    /// Sends all streams without gateways, and then with the paper's code; `what` begins the
    /// names of the steps.
    pub(super) fn play_both(
        &self,
        run: &mut Run,
        world: &mut World,
        what: &str,
    ) -> Result<(StreamResult, StreamResult)> {
        run.step(&format!("{what}plain"))?;
        let plain = self.play(world)?;
        world.protect(&GatewaySpec::layered(7, &[1, 10], false).host_mtu(1200))?;
        run.step(&format!("{what}with gateways"))?;
        Ok((plain, self.play(world)?))
    }

    fn play(&self, world: &World) -> Result<StreamResult> {
        let (a1, b1) = (world.a1(), world.b1());
        let seconds = (self.duration + LEAD).as_secs() as u32 + 1;
        let concurrent = Iperf::tcp(CONGESTION, seconds, 0).paced(CONCURRENT_RATE, WRITE);
        thread::scope(|scope| {
            let concurrent = scope.spawn(|| concurrent.run(a1, b1));
            let messages = parallel(0..self.streams, |n| {
                let stream = self.stream(n);
                thread::sleep(LEAD + stream.interval() * n.into() / self.streams.into());
                Ok(stream.run(a1, b1)?)
            })?;
            Ok(StreamResult {
                messages: messages.concat(),
                concurrent: join(concurrent)?.received / 1e6,
            })
        })
    }

    fn stream(&self, n: u16) -> TimedMessages {
        let carrier = Carrier::Tcp { congestion: CONGESTION.into() };
        TimedMessages { port: 6000 + n, ..TimedMessages::paper(carrier, self.duration) }
    }
}

impl StreamResult {
    /// Returns delivery latencies in ms; infinity for messages that never arrived.
    pub(super) fn latencies(&self) -> Vec<f64> {
        self.messages.iter().map(Message::milliseconds).collect()
    }

    /// Returns the mean in ms.
    pub(super) fn mean(&self) -> f64 {
        mean(&self.latencies())
    }

    /// Returns the 99th percentile in ms.
    pub(super) fn p99(&self) -> f64 {
        quantile(&self.latencies(), 0.99)
    }
}
