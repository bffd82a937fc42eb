//! How much the kernel forwards between four namespaces, without any gateway of ours.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::topology::programs::Iperf;
use crate::topology::{Dumbbell, DumbbellSpec};

/// The experiment.
pub(in crate::experiments) struct ForwardingPlain;

impl Experiment for ForwardingPlain {
    fn about(&self) -> About {
        About {
            name: "lab/forwarding-plain",
            title: "What the kernel alone forwards over the lab's dumbbell",
            figure: "none: the ground that Maelstrom's section 4.6 is measured on",
            finding: "Maelstrom's gateways were held against a gigabit link; here the limit is \
                      the kernel's forwarding, packet by packet.",
        }
    }

    fn run(&self, run: &mut Run) -> anyhow::Result<()> {
        let seconds = run.choose(8, 2);
        run.param("seconds", seconds);
        run.param("flows", 1);
        run.param("mtu", 1500);
        run.congestion_control("cubic");
        run.steps(3);
        let plot = Plot::histogram("Throughput of one flow", ("path", ""), ("rate", "Gb/s"));
        let series = run.series(&plot, "iperf3, cubic");
        let mut rates = [0.0; 2];
        for (n, (on, label)) in [(true, "offloads on"), (false, "offloads off")].iter().enumerate()
        {
            run.step(label)?;
            rates[n] = forwarded(run, *on, seconds)?;
            run.labelled_point(series, n as f64, rates[n], label);
        }
        run.step("memcpy")?;
        let memcpy = run.series(&plot, "memcpy of 1500-byte packets");
        run.labelled_point(memcpy, 2.0, copied(Duration::from_millis(300)), "memory");
        run.check("packet by packet, Gb/s", rates[1], Bound::AtLeast(1.0));
        run.check("offloads on over offloads off", rates[0] / rates[1], Bound::AtLeast(1.0));
        Ok(())
    }
}

/// Gb/s of one TCP flow through both gateways.
fn forwarded(run: &Run, offloads: bool, seconds: u32) -> anyhow::Result<f64> {
    let world = Dumbbell::build(&DumbbellSpec::default(), run.journal())?;
    for host in [world.a1(), world.b1()] {
        host.set_offloads("eth0", offloads)?;
    }
    for (gateway, host) in [(world.gateway_a(), "a1"), (world.gateway_b(), "b1")] {
        gateway.set_offloads(host, offloads)?;
        gateway.set_offloads("wan0", offloads)?;
    }
    Ok(Iperf::tcp("cubic", seconds, 1).run(world.a1(), world.b1())?.received / 1e9)
}

/// Gb/s of packets copied from one warm buffer to another, for about `time`.
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
