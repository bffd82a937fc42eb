//! Section 4.6: forwarding throughput with gateways, and the share of the packets that they
//! protect.

use rustix::process::{Signal, kill_process};

use crate::experiments::prelude::*;

/// Rate of the paced load, in bits of payload per second.
const PACE: u64 = 3_000_000_000;
/// Interleaves of the layers; c layers use the first c.
const INTERLEAVES: [u16; MAX_LAYERS] = [1, 20, 40, 61, 83];
const MAX_LAYERS: usize = 5;
/// Minimum throughput of an unpaced sender with a code that covers every packet, relative to the
/// throughput without gateways.
const UNPACED: f64 = 0.45;
/// The same with code `auto`, which sends only names on a link without losses.
const UNPACED_AUTO: f64 = 0.75;
/// MTU of the hosts, and of a WAN that leaves room for repairs (section 4.1).
const MTU: (u32, u32) = (1500, 1700);

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/forwarding",
    title: "Forwarding through the gateways, by code",
    figure: "Maelstrom, section 4.6",
    finding: "The kernel module saturates a gigabit card with data and repairs up to (8,4); at \
              (8,5) the processor is overloaded.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(8, 3);
    let layers: &[usize] = run.choose(&[1, 2, 3, 4, 5], &[3]);
    run.param("seconds", seconds);
    run.param("mtu", "hosts 1500, WAN 1700: a veth pair, offloads off");
    run.param("paced_gbit", PACE as f64 / 1e9);
    run.congestion_control("cubic");
    run.steps(5 + 2 * layers.len());
    let plain = measure(run, (0, "gateways off"), None, seconds)?;
    for &c in layers {
        let found = measure(run, (c, &format!("(8,{c})")), Some(&code(c)), seconds)?;
        if c == 3 {
            checks(run, "(8,3)", UNPACED, &plain, &found);
        }
    }
    let auto = measure(run, (MAX_LAYERS + 1, "auto"), Some(&GatewaySpec::default()), seconds)?;
    checks(run, "auto", UNPACED_AUTO, &plain, &auto);
    throttled(run, &plain, seconds)
}

/// Results with one code, or without gateways.
struct Found {
    /// Gb/s of the paced flow.
    paced: f64,
    /// Gb/s of the unpaced flow.
    unpaced: f64,
    /// Share of the packets of the paced flow that the gateway has processed; see [`counts`].
    protected: f64,
    /// The same for the unpaced flow.
    unpaced_protected: f64,
}

fn world(run: &Run) -> Result<World> {
    let (host_mtu, wan_mtu) = MTU;
    let spec = DumbbellSpec { host_mtu, wan_mtu, ..DumbbellSpec::default() };
    let world = World::build(&spec, run.journal())?;
    for gateway in [world.dumbbell.gateway_a(), world.dumbbell.gateway_b()] {
        gateway.set_offloads("wan0", false)?;
    }
    Ok(world)
}

fn code(c: usize) -> GatewaySpec {
    GatewaySpec::layered(8, &INTERLEAVES[..c], false).host_mtu(MTU.0)
}

/// Measures with these gateways, or without any, and draws the result at this position.
fn measure(
    run: &mut Run,
    (x, label): (usize, &str),
    spec: Option<&GatewaySpec>,
    seconds: u32,
) -> Result<Found> {
    let mut world = world(run)?;
    if let Some(spec) = spec {
        world.protect(spec)?;
    }
    run.step(&format!("{label}, paced"))?;
    let paced = world.throughput(&flow(seconds, Some(PACE)))? / 1e3;
    let before = counts(&world)?;
    run.step(&format!("{label}, unpaced"))?;
    let unpaced = world.throughput(&flow(seconds, None))? / 1e3;
    let after = counts(&world)?;
    let found = Found {
        paced,
        unpaced,
        protected: share(before.0, before.1),
        unpaced_protected: share(after.0 - before.0, after.1 - before.1),
    };
    draw(run, x, label, &found);
    Ok(found)
}

fn flow(seconds: u32, pace: Option<u64>) -> Iperf {
    let flow = Iperf::tcp("cubic", seconds, 1);
    pace.map_or(flow.clone(), |bits| flow.paced(bits, 128 << 10))
}

/// Returns the number of packets that A's gateway has processed, and the number that it should have
/// processed. Both include packets that no repair covers: those of classes without repairs,
/// acknowledgements that are not announced, and packets that `auto` only names.
fn counts(world: &World) -> Result<(u64, u64)> {
    let Ok(gateways) = world.running() else { return Ok((0, 0)) };
    // Counters are published a few times per second.
    thread::sleep(Duration::from_millis(250));
    let sender = gateways.a.status()?.peer().sender;
    Ok((sender.packets - sender.unprotected, sender.packets))
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn draw(run: &mut Run, x: usize, label: &str, found: &Found) {
    let rates = Plot::histogram("Throughput by code", ("code", ""), ("throughput", "Gb/s"));
    let shares = Plot::histogram("Packets protected", ("code", ""), ("protected", "%"));
    for (name, value) in [("paced", found.paced), ("unpaced", found.unpaced)] {
        run.plot_bar(&rates, name, (x, label), value);
    }
    if x > 0 {
        for (name, value) in [("paced", found.protected), ("unpaced", found.unpaced_protected)] {
            run.plot_bar(&shares, name, (x, label), value * 100.0);
        }
    }
}

fn checks(run: &mut Run, code: &str, unpaced: f64, plain: &Found, found: &Found) {
    let paced = format!("{code} paced: delivery, relative to gateways off");
    run.at_least(&paced, found.paced / plain.paced, 0.98);
    run.at_least(&format!("{code} paced: packets protected"), found.protected, 0.999);
    let name = format!("{code} unpaced: throughput, relative to gateways off");
    run.at_least(&name, found.unpaced / plain.unpaced, unpaced);
}

/// Checks that stopping a gateway's process costs protection, but never data.
fn throttled(run: &mut Run, plain: &Found, seconds: u32) -> Result<()> {
    let mut world = world(run)?;
    world.protect(&code(3))?;
    run.step("(8,3), paced, the encoder stopped half of the time")?;
    let done = AtomicBool::new(false);
    let pid = world.running()?.a.pid().expect("it runs");
    let delivered = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for signal in [Signal::STOP, Signal::CONT] {
                    let _ = kill_process(pid, signal);
                    thread::sleep(HALF_PERIOD);
                }
            }
        });
        let delivered = world.throughput(&flow(seconds, Some(PACE)));
        done.store(true, Ordering::Relaxed);
        delivered
    })?;
    let delivered = delivered / 1e3;
    let (_, packets) = counts(&world)?;
    let sender = world.sender()?;
    let (protected, counted) = (sender.protected, sender.unprotected);
    run.at_least("throttled: delivery, relative to gateways off", delivered / plain.paced, 0.98);
    run.within("throttled: packets protected", share(protected, packets), 0.05, 0.95);
    let all_counted = share(protected + counted, packets);
    run.within("throttled: packets counted, as protected or as unprotected", all_counted, 1.0, 1.0);
    Ok(())
}

/// Time for which the encoder is stopped, and for which it then runs, in turn.
const HALF_PERIOD: Duration = Duration::from_millis(100);
