//! Accuracy of the emulated link compared with its configuration.

use viaduct_proto::link::Loss;

use super::fates::Fates;
use super::probe::{Arrival, Probe, world};
use crate::experiments::prelude::*;

pub(in crate::experiments) const ABOUT: About = About {
    name: "lab/link",
    title: "Accuracy of the link emulator",
    figure: "Basis of all figures; the papers used links emulated by Emulab",
    finding: "The papers used Emulab's links. Our emulator must match its configured rate, delay \
              and loss as accurately.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.param("mtu", 1500);
    run.steps(RATES.len() + 2 + LOSSES.len() + 3);
    for rate in RATES {
        check_rate(run, rate)?;
    }
    for spin in [false, true] {
        check_delay(run, spin)?;
    }
    for (name, loss) in LOSSES {
        check_loss(run, name, loss)?;
    }
    check_trace(run)?;
    check_mischief(run)?;
    check_change(run)
}

/// Rates in Mb/s.
const RATES: [f64; 3] = [10.0, 100.0, 500.0];

/// Loss processes: displayed name and configuration.
const LOSSES: [(&str, &str); 3] = [
    ("independent 1 %", "1%"),
    ("1 % in bursts of 8", "1%x8"),
    ("Gilbert-Elliott", "ge:0.2%:10%:0.01%:50%"),
];

/// Maximum deviation in standard errors; a correct process exceeds it in one of a thousand checks.
const MAX_ERRORS: f64 = 3.29;

/// Checks one rate: sends at 1.25 times this rate, and measures the arrival rate. The link's queue
/// stays non-empty during pauses of the sender.
fn check_rate(run: &mut Run, rate: f64) -> Result<()> {
    run.step(&format!("rate {rate} Mb/s"))?;
    let world = world(run, link(&format!("rate={rate}M,delay=1ms,queue=300ms")), false)?;
    let duration = Duration::from_secs(run.choose(4, 2));
    let arrived = Probe::at_rate(rate * 1.25e6, 1500, duration).run(&world)?;
    let measured = bits_per_second(&arrived, 1500) / 1e6;
    let plot =
        Plot::line("Measured rate / configured rate", ("rate", "Mb/s"), ("ratio", "")).log_x();
    run.plot_point(&plot, "UDP, sent at 1.25 times the configured rate", (rate, measured / rate));
    run.at_most(&format!("rate {rate} Mb/s: error, %"), 100.0 * (measured / rate - 1.0).abs(), 1.0);
    Ok(())
}

/// Returns the receive rate, without the first fifth of the packets.
fn bits_per_second(arrived: &[Arrival], bytes: usize) -> f64 {
    let counted = &arrived[arrived.len() / 5..];
    match (counted.first(), counted.last()) {
        (Some(first), Some(last)) => {
            (counted.len() - 1) as f64 * bytes as f64 * 8.0 / (last.at - first.at)
        }
        _ => f64::NAN,
    }
}

const DELAY: f64 = 0.05;

fn check_delay(run: &mut Run, spin: bool) -> Result<()> {
    let (how, most) = if spin { ("spinning", 0.2) } else { ("sleeping", 0.3) };
    run.step(&format!("delay 50 ms, {how}"))?;
    let world = world(run, link("delay=50ms"), spin)?;
    let packets = run.choose(5000, 2000);
    let arrived = Probe::steady(packets, 1000, Duration::from_millis(1)).run(&world)?;
    let added: Vec<f64> = arrived.iter().map(|a| (a.delay - DELAY) * 1e3).collect();
    let title = "Delay in excess of the configured 50 ms";
    let plot = Plot::line(title, ("share of packets", "%"), ("delay", "ms"));
    let shares = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
    let points = shares.map(|share| (share, quantile(&added, share / 100.0)));
    run.plot_points(&plot, &format!("a packet each ms, {how}"), points);
    run.param(&format!("{how}_is_realtime"), world.link()?.stats()?.realtime);
    run.at_most(&format!("added delay, {how}: p99, ms"), quantile(&added, 0.99), most);
    run.at_least(&format!("added delay, {how}: minimum, ms"), quantile(&added, 0.0), -0.05);
    Ok(())
}

/// Sends a constant stream over a link that is configured as `config` before the first packet;
/// returns the number of packets sent, and the arrivals.
fn stream(run: &mut Run, config: &LinkConfig) -> Result<(u32, Vec<Arrival>)> {
    let world = world(run, LinkConfig::default(), false)?;
    world.link()?.set(Direction::AtoB, config.clone())?;
    let seconds = run.choose(8, 3);
    let probe = Probe::at_rate(20_000.0 * 8.0 * 200.0, 200, Duration::from_secs(seconds));
    Ok((probe.packets, probe.run(&world)?))
}

fn check_loss(run: &mut Run, name: &str, text: &str) -> Result<()> {
    run.step(&format!("loss: {name}"))?;
    let config = link(&format!("delay=1ms,loss={text}"));
    let (sent, arrived) = stream(run, &config)?;
    let fates = Fates::of(sent, &arrived);
    let plot = Plot::histogram("Burst lengths", ("packets", ""), ("share of bursts", "%"));
    let shares = fates.shares_of_lengths().into_iter();
    run.plot_points(&plot, name, shares.map(|(length, share)| (f64::from(length), share * 100.0)));
    let expected = config.loss.mean();
    run.param(&format!("loss, {name}"), format!("{:.4} of {expected:.4}", fates.rate()));
    let errors = fates.errors_of_rate(&config.loss);
    let check = format!("loss, {name}: deviation of the rate, standard errors");
    run.check(&check, errors, at_most_errors());
    let errors = fates.errors_of_length(&config.loss);
    let check = format!("loss, {name}: deviation of the burst length, standard errors");
    run.check(&check, errors, at_most_errors());
    Ok(())
}

fn at_most_errors() -> Bound {
    Bound::AtMost(MAX_ERRORS)
}

/// Checks packet by packet that the link replays a loss trace.
fn check_trace(run: &mut Run) -> Result<()> {
    run.step("loss: a trace")?;
    let config = link("delay=1ms,loss=trace:100:3:50:1:7:30:1000:2");
    let Loss::Trace(trace) = &config.loss else { unreachable!("it is a trace") };
    let (sent, arrived) = stream(run, &config)?;
    let lost = trace.runs.iter().enumerate();
    let lost = lost.flat_map(|(n, &run)| std::iter::repeat_n(n % 2 == 1, run as usize));
    let fates = Fates::of(sent, &arrived);
    let wrong = fates.lost.iter().zip(lost.cycle()).filter(|(is, should)| **is != *should).count();
    run.at_most("loss, a trace: packets whose fate differs from the trace", wrong as f64, 0.0);
    Ok(())
}

/// Checks reordering, duplication and corruption. A corrupted packet counts as lost, because UDP's
/// checksum detects the flipped bit.
fn check_mischief(run: &mut Run) -> Result<()> {
    run.step("reordering, duplication, corruption")?;
    let share = 0.01;
    let config = link("delay=1ms,reorder=1%:10ms,duplicate=1%,corrupt=1%");
    let (sent, arrived) = stream(run, &config)?;
    let fates = Fates::of(sent, &arrived);
    let whole = f64::from(sent) * (1.0 - share);
    let rates = [
        ("reordering", fates.overtaken(&arrived) as f64, whole),
        ("duplication", (arrived.len() - fates.arrived()) as f64, whole),
        ("corruption", fates.lost.iter().filter(|lost| **lost).count() as f64, sent.into()),
    ];
    for (what, count, of) in rates {
        let errors = (count - of * share).abs() / (of * share * (1.0 - share)).sqrt();
        run.param(&format!("{what}_percent"), format!("{:.3} of 1", 100.0 * count / of));
        run.check(&format!("{what} 1 %: deviation, standard errors"), errors, at_most_errors());
    }
    Ok(())
}

/// Checks that a delay raised during a stream takes effect.
fn check_change(run: &mut Run) -> Result<()> {
    run.step("a change of the delay during a stream")?;
    let world = world(run, link("delay=10ms"), false)?;
    let probe = Probe::steady(1000, 1000, Duration::from_millis(1));
    let arrived = thread::scope(|scope| -> Result<Vec<Arrival>> {
        let arrived = scope.spawn(|| probe.run(&world));
        thread::sleep(Duration::from_millis(500));
        world.link()?.set(Direction::AtoB, link("delay=30ms"))?;
        join(arrived)
    })?;
    let strayed =
        |a: &&Arrival| [0.010, 0.030].iter().all(|d| !(-1e-4..2e-3).contains(&(a.delay - d)));
    let delays = |part: &[Arrival]| median_of(part, |a| a.delay * 1e3);
    let quarter = arrived.len() / 4;
    let rise = delays(&arrived[3 * quarter..]) - delays(&arrived[..quarter]);
    run.within("delay raised by 20 ms: measured increase, ms", rise, 19.8, 20.2);
    let share = arrived.iter().filter(strayed).count() as f64 / arrived.len() as f64;
    run.at_most("packets with neither delay, %", 100.0 * share, 1.0);
    Ok(())
}
