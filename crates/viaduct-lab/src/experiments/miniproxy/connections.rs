//! Table 1: set-up time of concurrent connections to the first byte through the proxy, compared
//! with HAProxy; and the cost of idle connections.

use viaduct_sys::process::raise_fd_limit;

use super::contenders::{CONGESTION_CONTROL, Contender, Testbed};
use crate::experiments::prelude::*;
use crate::load::Crowd;
use crate::topology::programs::Software;
use crate::topology::{Usage, socket_memory};

/// Number of concurrent connections, and the paper's mean set-up time in milliseconds.
const TABLE: [(usize, f64); 6] =
    [(30, 0.1), (70, 1.0), (110, 2.0), (150, 2.0), (190, 3.0), (230, 3.0)];
/// Maximum time to the first byte in the last row: the paper's mean set-up time.
const MAX_MS: f64 = 3.0;
/// Maximum ratio of this time to that of HAProxy: the median over pairs of runs.
const MAX_OF_HAPROXY: f64 = 1.05;
const CONTENDERS: [Contender; 2] = [Contender::Viaduct, Contender::Other(Software::Haproxy)];
/// Maximum number of concurrent connects of idle relays: less than a listener's backlog.
const AT_ONCE: usize = 250;
/// Time limit for opening all idle relays.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of pipe ends that a proxy keeps for further flows, regardless of the number of
/// idle relays.
const POOLED: f64 = 128.0;
/// Descriptors in addition to those of the relays, in the lab and in the measured proxy.
const SPARE: u64 = 600;

pub(in crate::experiments) const ABOUT: About = About {
    name: "miniproxy/connections",
    title: "Set-up time of many concurrent connections, and the memory of idle ones",
    figure: "Miniproxy, Table 1",
    finding: "The mean set-up time of a connection is 0.1 ms with 30 concurrent ones, and 3 ms \
              with 230.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (times, idle) = (run.choose(31, 11), run.choose(9_000, 2_000));
    run.param("volleys_each", times);
    run.param("idle_relays", idle);
    run.congestion_control(CONGESTION_CONTROL);
    let most = raise_fd_limit();
    ensure!(
        most >= 2 * idle as u64 + SPARE,
        "{idle} relays need {} open files, and {most} are allowed (ulimit -n)",
        2 * idle as u64 + SPARE
    );
    run.steps(TABLE.len() + CONTENDERS.len());
    let testbeds = [
        Testbed::build(CONTENDERS[0], run.journal())?,
        Testbed::build(CONTENDERS[1], run.journal())?,
    ];
    set_up(run, &testbeds, times)?;
    let mut found = Vec::new();
    for (n, (contender, testbed)) in CONTENDERS.into_iter().zip(&testbeds).enumerate() {
        run.step(&format!("{}, {idle} idle relays", contender.name()))?;
        found.push(idle_relays(run, n, contender, testbed, idle)?);
    }
    let ratio = found[0] / found[1];
    run.at_most("memory of an idle relay, relative to HAProxy", ratio, 1.0);
    Ok(())
}

/// Measures the rows of the table. Checks the time to the first byte of the server's answer. The
/// time of the handshake is only plotted, because the kernel completes it without the proxy. The
/// contenders alternate, and swap their order in each round.
fn set_up(run: &mut Run, testbeds: &[Testbed; 2], times: usize) -> Result<()> {
    let (count, time) = (("connections at once", ""), ("mean time", "ms"));
    let handshake = Plot::line("Handshake with the kernel in front of the proxy", count, time);
    let first_byte = Plot::line("Set-up, to the first byte through the proxy", count, time);
    run.plot_points(&first_byte, "the paper", TABLE.map(|(n, ms)| (n as f64, ms)));
    for (count, _) in TABLE {
        run.step(&format!("{count} at once"))?;
        let mut found: [Vec<[f64; 2]>; 2] = [vec![], vec![]];
        for round in 0..times {
            for who in [round % 2, 1 - round % 2] {
                found[who].push(volley(&testbeds[who], count)?);
            }
        }
        let middle = |who: usize, n: usize| median_of(&found[who], |volley| volley[n]);
        for (who, contender) in CONTENDERS.into_iter().enumerate() {
            for (n, plot) in [&handshake, &first_byte].into_iter().enumerate() {
                run.plot_point(plot, contender.name(), (count as f64, middle(who, n)));
            }
        }
        if count == TABLE[TABLE.len() - 1].0 {
            let check = format!("mean time to the first byte with {count} at once, ms");
            run.at_most(&check, middle(0, 1), MAX_MS);
            let pairs = found[0].iter().zip(&found[1]);
            let ratios: Vec<_> = pairs.map(|(ours, theirs)| ours[1] / theirs[1]).collect();
            let check = format!("time to the first byte with {count} at once, relative to HAProxy");
            run.at_most(&check, median(&ratios), MAX_OF_HAPROXY);
        }
    }
    Ok(())
}

/// Returns the mean times of `count` concurrent connections in milliseconds: to the end of the
/// handshake, and to the first byte of the server's answer.
fn volley(testbed: &Testbed, count: usize) -> Result<[f64; 2]> {
    let crowd = Crowd::open(&testbed.pair.load, testbed.address, count, count, OPEN_TIMEOUT)?;
    let ms = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    let times = crowd.times();
    Ok([mean_of(&times, |times| ms(times.open)), mean_of(&times, |times| ms(times.answered))])
}

/// Opens `idle` relays, each of which carries one answer and is then idle; returns the growth of
/// the proxy's own memory per relay, in bytes.
fn idle_relays(
    run: &mut Run,
    n: usize,
    contender: Contender,
    testbed: &Testbed,
    idle: usize,
) -> Result<f64> {
    let now = || (Usage::of(testbed.pid), socket_memory());
    let before = now();
    let crowd = Crowd::open(&testbed.pair.load, testbed.address, idle, AT_ONCE, OPEN_TIMEOUT)?;
    let after = now();
    drop(crowd);
    let each = |bytes: u64| bytes as f64 / idle as f64;
    let own = each(after.0.anonymous.saturating_sub(before.0.anonymous));
    // Each relay has four sockets on this machine, two of them the proxy's.
    let kernel = each(after.1.saturating_sub(before.1)) / 2.0;
    let plot = Plot::histogram("Memory of an idle relay", ("", ""), ("memory", "bytes"));
    for (name, value) in [("its own", own), ("its sockets in the kernel", kernel)] {
        run.plot_bar(&plot, name, (n, contender.name()), value);
    }
    let plot = Plot::histogram("Resident memory", ("", ""), ("memory", "MB"));
    let name = format!("with {idle} idle relays");
    for (name, usage) in [("at rest", before.0), (&name, after.0)] {
        run.plot_bar(&plot, name, (n, contender.name()), usage.resident as f64 / 1e6);
    }
    if contender == Contender::Viaduct {
        // A few sockets are listeners or control sockets; each idle relay has two.
        let relays = (after.0.sockets / 2) as f64;
        run.at_least("idle relays open at once", relays, idle as f64);
        let pipes = after.0.pipes as f64;
        run.at_most("pipe ends held meanwhile", pipes, POOLED);
    }
    Ok(own)
}
