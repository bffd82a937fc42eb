//! Forwarding rate of the kernel between four namespaces, without gateway programs.

use std::hint::black_box;

use crate::experiments::prelude::*;

pub(in crate::experiments) const ABOUT: About = About {
    name: "lab/forwarding-plain",
    title: "Rate at which the kernel alone forwards over the lab's dumbbell",
    figure: "Baseline for Maelstrom, section 4.6",
    finding: "The paper's gateways are limited by a gigabit link; here the limit is the kernel's \
              forwarding rate, which without offloads is a rate of packets of one MTU.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(8, 2);
    run.param("seconds", seconds);
    run.param("flows", 1);
    run.param("mtu", 1500);
    run.congestion_control("cubic");
    run.steps(PATHS.len() + 1);
    let plot = Plot::histogram(
        "One flow through both gateways' namespaces, without gateways",
        ("", ""),
        ("rate", "Gb/s"),
    );
    let mut rates = [0.0; PATHS.len()];
    for (n, path) in PATHS.iter().enumerate() {
        run.step(path.name)?;
        rates[n] = forwarded(run, path, seconds)?;
        run.plot_bar(&plot, "iperf3, cubic", (n, path.name), rates[n]);
    }
    run.step("memcpy of 1500-byte packets")?;
    run.param("memcpy_gbit_per_s", copied(Duration::from_millis(300)).round());
    // The link of the paper's Figure 9 carries 0.1 Gb/s; the lab's forwarding must not be
    // the bottleneck.
    run.at_least("no offload anywhere, Gb/s", rates[2], 0.1);
    run.at_least("all offloads, relative to none", rates[0] / rates[2], 1.0);
    Ok(())
}

/// Offloads along the forwarding path: which of its devices (WAN, hosts' side) have offloads
/// enabled, and therefore pass segments larger than the MTU.
struct Path {
    name: &'static str,
    wan: bool,
    hosts: bool,
}

const PATHS: [Path; 3] = [
    Path { name: "all offloads", wan: true, hosts: true },
    Path { name: "none on the WAN", wan: false, hosts: true },
    Path { name: "none anywhere", wan: false, hosts: false },
];

/// Returns the throughput in Gb/s of one TCP flow through both gateways' namespaces, where no
/// gateway process runs.
fn forwarded(run: &Run, path: &Path, seconds: u32) -> Result<f64> {
    let world = Dumbbell::build(&DumbbellSpec::default(), run.journal())?;
    for (gateway, host) in [(world.gateway_a(), world.a1()), (world.gateway_b(), world.b1())] {
        gateway.set_offloads("wan0", path.wan)?;
        gateway.set_offloads(host.name(), path.hosts)?;
        host.set_offloads("eth0", path.hosts)?;
    }
    Ok(Iperf::tcp("cubic", seconds, 1).run(world.a1(), world.b1())?.received / 1e9)
}

/// Copies packets between two cached buffers for about `time`; returns the rate in Gb/s.
fn copied(time: Duration) -> f64 {
    let (from, mut to) = ([7u8; 1500], [0u8; 1500]);
    let (start, mut packets) = (Instant::now(), 0u64);
    while start.elapsed() < time {
        for _ in 0..1000 {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        packets += 1000;
    }
    packets as f64 * 1500.0 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}
