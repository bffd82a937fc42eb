//! Upgrades of a proxy under load: effects on its flows and clients, and growth of its resources.
//!
//! ```text
//!   a1 ── 500 paced flows, 200 new connections a second ──▶ gwa, proxy ──▶ b1
//!                                                            └─ upgrade ─▶ proxy ─ upgrade ─▶ …
//! ```

use viaduct_sys::process::raise_fd_limit;

use crate::experiments::prelude::*;
use crate::load::{Checked, CheckedReport, MIN_PAUSE, PACED_RATE, Traffic};
use crate::topology::{Usage, machine_time, user_and_system};
use crate::upgrade::{Adoption, ForeignProcess, upgrade};

const TRAFFIC: Traffic = Traffic { paced: 500, short_per_second: 200 };
/// Time of the traffic before the first upgrade.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time after an upgrade in which pauses still count as caused by the upgrade. For comparison, the
/// pauses in an equally long time before the upgrade are plotted.
const AROUND: Duration = Duration::from_millis(200);
/// Time within which an old process must exit.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Descriptors that the lab and each proxy need: two sockets and two ends of a pipe for each flow,
/// and a reserve.
const DESCRIPTORS: u64 = 4 * TRAFFIC.paced as u64 + 500;
/// Minimum rates of short flows and of the paced flows' bytes, relative to the configured ones.
/// Lower rates would mean that the machine is saturated.
const MIN_RATE: f64 = 0.95;
const MAX_STALL_MS: f64 = 50.0;
/// Maximum growth of the proxy over all upgrades.
const MAX_DESCRIPTORS_GROWN: f64 = 16.0;
const MAX_MEMORY_GROWN_MB: f64 = 1.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "miniproxy/upgrade",
    title: "Upgrades of a proxy under 500 flows and 200 new connections a second",
    figure: "beyond Miniproxy: upgrades without interruption",
    finding: "The paper does not discuss upgrades; HAProxy passes its listeners on, and its old \
              process continues until its last flow has ended.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (count, every) = run.choose((1_000, 1_000), (20, 600));
    run.param("upgrades", count);
    run.param("every_ms", every);
    run.param("paced_flows", TRAFFIC.paced);
    run.param("bytes_per_second_each", PACED_RATE);
    run.param("new_connections_per_second", TRAFFIC.short_per_second);
    run.congestion_control("cubic");
    let most = raise_fd_limit();
    ensure!(most >= DESCRIPTORS, "{DESCRIPTORS} open files are needed, {most} are allowed");
    run.steps(count);
    let world = World::build(&DumbbellSpec::default(), run.journal())?;
    world.dumbbell.set_congestion_control("cubic")?;
    // Closed connections keep their ports for a minute.
    let ports = [("net/ipv4/ip_local_port_range", "10000 65535")];
    for node in world.dumbbell.nodes() {
        node.set_sysctls(&ports)?;
    }
    let mut proxy = Proxy::on_path(world.dumbbell.gateway_a())?;
    let _adoption = Adoption::begin()?;
    let mut process = ForeignProcess::of(proxy.process().id())?;
    let traffic = Checked::start(world.a1(), world.b1(), TRAFFIC)?;
    stop::sleep(WARM_UP)?;
    let (begun, mut upgrades) = (Cpu::now(), Vec::new());
    for n in 0..count {
        run.step(&format!("upgrade {}", n + 1))?;
        let next = Instant::now() + Duration::from_millis(every);
        let (upgrade, new) = Upgrade::perform(proxy.directory(), &process)?;
        upgrades.push(upgrade);
        process = new;
        stop::sleep(next.saturating_duration_since(Instant::now()))?;
    }
    let cpu = begun.until(&Cpu::now());
    let report = traffic.finish()?;
    process.end()?;
    process.reap();
    draw(run, &upgrades, &report, &cpu);
    check(run, &upgrades, &report, cpu.seconds + WARM_UP.as_secs_f64());
    Ok(())
}

/// Processor time used by the whole machine, and by this process, in seconds.
struct Cpu {
    at: Instant,
    machine: f64,
    load: f64,
}

/// Processors in use over a time.
struct Busy {
    seconds: f64,
    machine: f64,
    load: f64,
}

impl Cpu {
    fn now() -> Cpu {
        let load = user_and_system(std::process::id()).unwrap_or_default().iter().sum();
        Cpu { at: Instant::now(), machine: machine_time().as_secs_f64(), load }
    }

    fn until(&self, later: &Cpu) -> Busy {
        let seconds = (later.at - self.at).as_secs_f64();
        let share = |from: f64, to: f64| (to - from) / seconds;
        let machine = share(self.machine, later.machine);
        Busy { seconds, machine, load: share(self.load, later.load) }
    }
}

/// Upgrade that has succeeded.
struct Upgrade {
    begun: Instant,
    done: Instant,
    /// Time from the end of the upgrade to the end of the old process; `None` if it did not exit
    /// with status 0 within [`END_TIMEOUT`].
    old_ended: Option<Duration>,
    /// Resources of the new process, after the old one has ended.
    usage: Usage,
}

impl Upgrade {
    /// Upgrades the proxy in `run_dir`, whose process is `old`; returns the new process as well.
    fn perform(run_dir: &Path, old: &ForeignProcess) -> Result<(Upgrade, ForeignProcess)> {
        let begun = Instant::now();
        let new = upgrade(run_dir, &[])?;
        let done = Instant::now();
        let has_ended = || old.has_ended();
        let ended = stop::wait_until(END_TIMEOUT, Duration::from_millis(2), has_ended)?;
        // The exit status is unknown if this process is not the parent of the old one yet.
        let in_order = ended && old.reap().unwrap_or(true);
        let old_ended = in_order.then(|| done.elapsed());
        stop::sleep(AROUND.saturating_sub(done.elapsed()))?;
        Ok((Upgrade { begun, done, old_ended, usage: Usage::of(new.id()) }, new))
    }

    /// Returns the longest pause of a paced flow around the upgrade, and the longest pause that
    /// ended shortly before the upgrade, in milliseconds.
    fn stalls(&self, pauses: &[(Instant, Instant)]) -> [f64; 2] {
        let until = self.done + AROUND;
        let before = self.begun - (until - self.begun).min(AROUND);
        let longest = |is_meant: &dyn Fn(Instant, Instant) -> bool| {
            let meant = pauses.iter().filter(|(begin, end)| is_meant(*begin, *end));
            let longest = meant.map(|(begin, end)| *end - *begin).max();
            longest.unwrap_or(MIN_PAUSE).as_secs_f64() * 1e3
        };
        [
            longest(&|begin, end| begin < until && end > self.begun),
            longest(&|_, end| end > before && end <= self.begun),
        ]
    }

    fn megabytes(&self) -> f64 {
        self.usage.anonymous as f64 / 1e6
    }

    fn descriptors(&self) -> f64 {
        self.usage.descriptors as f64
    }
}

fn draw(run: &mut Run, upgrades: &[Upgrade], report: &CheckedReport, cpu: &Busy) {
    let axis = ("upgrade", "");
    let pauses = Plot::line("Longest pause of a flow", axis, ("pause", "ms"));
    let times = Plot::line("Time of an upgrade", axis, ("time", "ms"));
    let memory = Plot::line("Memory of the new process", axis, ("memory", "MB"));
    let descriptors = Plot::line("Descriptors of the new process", axis, ("descriptors", ""));
    for (n, upgrade) in upgrades.iter().enumerate() {
        let x = n as f64 + 1.0;
        let [around, before] = upgrade.stalls(&report.pauses);
        run.plot_point(&pauses, "around the upgrade", (x, around));
        run.plot_point(&pauses, "before the upgrade", (x, before));
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let command = ms(upgrade.done - upgrade.begun);
        run.plot_point(&times, "until `viaduct upgrade` returns", (x, command));
        let ended = upgrade.old_ended.map_or(f64::NAN, ms);
        run.plot_point(&times, "then, until the old process has ended", (x, ended));
        run.plot_point(&memory, "anonymous", (x, upgrade.megabytes()));
        run.plot_point(&descriptors, "all", (x, upgrade.descriptors()));
        run.plot_point(&descriptors, "ends of pipes", (x, upgrade.usage.pipes as f64));
    }
    let plot = Plot::histogram("Processors in use", ("", ""), ("processors", ""));
    run.plot_bars(&plot, "mean", [("all programs", cpu.machine), ("of which the load", cpu.load)]);
    let plot = Plot::histogram("Time of a new connection", ("", ""), ("time", "ms"));
    let times: Vec<f64> = report.times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    let quantiles = [("median", 0.5), ("99th percentile", 0.99), ("longest", 1.0)];
    run.plot_bars(&plot, "through the proxy", quantiles.map(|(of, q)| (of, quantile(&times, q))));
    for (n, fault) in report.faults.iter().enumerate() {
        run.param(&format!("fault_{}", n + 1), fault.as_str());
    }
}

fn check(run: &mut Run, upgrades: &[Upgrade], report: &CheckedReport, seconds: f64) {
    run.at_most("flows reset, refused or not served", report.broken as f64, 0.0);
    run.at_most("flows with wrong or missing bytes", report.wrong as f64, 0.0);
    let stalls: Vec<_> = upgrades.iter().map(|of| of.stalls(&report.pauses)[0]).collect();
    run.at_most("longest pause around an upgrade, p99, ms", quantile(&stalls, 0.99), MAX_STALL_MS);
    let unended = upgrades.iter().filter(|upgrade| upgrade.old_ended.is_none()).count();
    run.at_most("old processes that have not ended after 5 s", unended as f64, 0.0);
    let grown = growth_of(upgrades, Upgrade::descriptors);
    run.at_most("growth of descriptors over all upgrades", grown, MAX_DESCRIPTORS_GROWN);
    let grown = growth_of(upgrades, Upgrade::megabytes);
    run.at_most("growth of memory over all upgrades, MB", grown, MAX_MEMORY_GROWN_MB);
    let short = report.times.len() as f64 / seconds / f64::from(TRAFFIC.short_per_second);
    run.at_least("new connections, relative to those configured", short, MIN_RATE);
    let paced = report.bytes as f64 / seconds / (TRAFFIC.paced as u64 * PACED_RATE) as f64;
    run.at_least("bytes of the paced flows, relative to the pace", paced, MIN_RATE);
}

/// Returns the growth of a property over all upgrades, from its lowest values, which are the most
/// stable: the number of open short flows, and thus of descriptors, depends on the machine's load.
fn growth_of(upgrades: &[Upgrade], property: impl Fn(&Upgrade) -> f64) -> f64 {
    growth(&upgrades.iter().map(property).collect::<Vec<_>>())
}
