//! Hosts with the WAN's MTU: repairs are sent in fragments, at a measured cost.

use super::{describe, overhead};
use crate::experiments::prelude::*;

/// MTU of the WAN.
const WAN: u32 = 1500;
/// Compared MTUs of the hosts.
const HOSTS: [u32; 2] = [1200, WAN];
/// Maximum additional bytes of repairs and names per data byte with equal MTUs.
const MORE: f64 = 0.015;
/// Losses: single ones, and bursts, which require more repairs.
const CASES: [(&str, &str); 2] = [("1 % single", "1%"), ("1 %, bursts of 8", "1%x8")];

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/equal-mtu",
    title: "Repairs sent in fragments, because the hosts have the WAN's MTU",
    figure: "Maelstrom, section 4.1",
    finding: "The paper lowers the hosts' MTU, so that repairs fit.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (seconds, warm_up) = run.choose((20, 10), (8, 6));
    let rounds = run.choose(5, 1);
    describe(run, (seconds, warm_up), rounds);
    run.param("mtu", "hosts 1200 or 1500, WAN 1500");
    run.param("code", "auto");
    run.congestion_control("cubic");
    run.steps(CASES.len() * rounds * HOSTS.len());
    let iperf = Iperf::tcp("cubic", seconds, warm_up);
    for (x, (case, loss)) in CASES.into_iter().enumerate() {
        let link = link(&format!("rate=200M,delay=50ms,queue=100ms,loss={loss}"));
        let mut bytes = [const { Vec::new() }; HOSTS.len()];
        let mut rates = bytes.clone();
        for round in 0..rounds {
            for (at, mtu) in HOSTS.into_iter().enumerate() {
                run.step(&format!("{case}, hosts {mtu}"))?;
                let seed = run.seed() + round as u64;
                let mut world = World::new((mtu, WAN), &link, seed, run.journal())?;
                world.protect(&GatewaySpec::default())?;
                rates[at].push(world.throughput(&iperf)?);
                bytes[at].push(overhead(&SenderStats::default(), &world.sender()?));
            }
        }
        let [bytes, rates] = [bytes, rates].map(|of| of.map(|of| median(&of)));
        for (at, mtu) in HOSTS.iter().enumerate() {
            for (what, unit, value) in
                [("repair bytes", "%", 100.0 * bytes[at]), ("throughput", "Mb/s", rates[at])]
            {
                let title = format!("One cubic flow: {what}");
                let plot = Plot::histogram(&title, ("loss", ""), (what, unit));
                run.plot_bar(&plot, &format!("hosts {mtu}"), (x, case), value);
            }
        }
        let name = format!(
            "{case}: repair bytes per data byte: hosts with the link's MTU, minus hosts with \
             MTU 1200"
        );
        run.at_most(&name, bytes[1] - bytes[0], MORE);
    }
    Ok(())
}
