//! Combined capacity of hosts, gateways and emulator on this machine. Required: 1 Gb/s over a link
//! with a round trip of 100 ms.

use crate::emulator::{Emulator, EmulatorStats};
use crate::experiments::prelude::*;

pub(in crate::experiments) const ABOUT: About = About {
    name: "lab/link-capacity",
    title: "Capacity of the emulated link with gateways at both ends",
    figure: "Basis of Maelstrom, Figure 10",
    finding: "The paper's gigabit figures had a machine for each host, gateway and link; here they \
              all share one machine.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 8), (5, 5));
    run.param("link", LINK);
    run.param("flows", 8);
    run.param("mtu", 1500);
    run.param("seconds", seconds);
    run.param("warm_up", warm_up);
    run.congestion_control("cubic");
    run.steps(MODES.len());
    let rate = Plot::histogram("Eight flows over the link", ("", ""), ("carried", "Gb/s"));
    let core = Plot::histogram("The emulator's own work", ("", ""), ("processor", "cores"));
    for (n, (name, fec)) in MODES.into_iter().enumerate() {
        run.step(name)?;
        let mut world = World::new((1500, 1500), &link(LINK), run.seed(), run.journal())?;
        if let Some(fec) = fec {
            world.protect(&GatewaySpec::fec(fec))?;
        }
        let carried = carry(&world, seconds, warm_up)?;
        run.plot_bar(&rate, "data and repairs", (n, name), carried.bits_per_second / 1e9);
        run.plot_bar(&core, "the emulator's thread", (n, name), carried.cores);
        run.at_least(&format!("{name}: Gb/s carried"), carried.bits_per_second / 1e9, 1.0);
        run.at_most(&format!("{name}: packets dropped outside the model"), carried.dropped, 0.0);
    }
    Ok(())
}

/// Link whose rate is slightly above the required one.
const LINK: &str = "rate=1.2G,delay=50ms,queue=50ms";

/// Name of each mode, and the lines of its gateways' `[peer.fec]`; `None` means no gateways.
const MODES: [(&str, Option<&str>); 3] = [
    ("no gateways", None),
    ("gateways, no code", Some("code = \"none\"")),
    ("gateways, (8,3) I=(1,20,40)", Some("code = \"layered\"\nr = 8\ninterleave = [1, 20, 40]")),
];

struct Carried {
    bits_per_second: f64,
    /// Cores used by the emulator's thread.
    cores: f64,
    /// Packets that the TUN devices dropped or rejected since the start, usually because the
    /// emulator was too slow.
    dropped: f64,
}

/// Measures the traffic over the link while the flows run, except in their first and last second.
fn carry(world: &World, seconds: u32, warm_up: u32) -> Result<Carried> {
    let flows = Iperf { flows: 8, ..Iperf::tcp("cubic", seconds, warm_up) };
    let emulator = world.link()?;
    thread::scope(|scope| {
        let flows = scope.spawn(|| flows.run(world.a1(), world.b1()));
        thread::sleep(Duration::from_secs(u64::from(warm_up) + 1));
        let (start, before) = (Instant::now(), emulator.stats()?);
        thread::sleep(Duration::from_secs(u64::from(seconds.saturating_sub(2).max(1))));
        let (took, after) = (start.elapsed().as_secs_f64(), emulator.stats()?);
        join(flows)?;
        Ok(Carried {
            bits_per_second: (after.a_to_b.bytes - before.a_to_b.bytes) as f64 * 8.0 / took,
            cores: (after.cpu - before.cpu).as_secs_f64() / took,
            dropped: outside(emulator)? as f64,
        })
    })
}

fn outside(emulator: &Emulator) -> Result<u64> {
    let EmulatorStats { tun_a, tun_b, unwritable, .. } = emulator.stats()?;
    Ok(tun_a.unread + tun_a.refused + tun_b.unread + tun_b.refused + unwritable)
}
