//! Printed text of the demo: introduction, table, lesson.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::findings::{Counters, Figure, Findings, Phase, Program, Setup};
use super::programs::Size;
use super::settings::{DemoArgs, rounded};
use crate::experiment::{Ended, Outcome, number};

/// Returns the introduction: a drawing of the link and a description of the runs.
pub(super) fn introduction(args: &DemoArgs) -> String {
    let rtt = rounded(args.rtt.as_secs_f64() * 1e3);
    let link = format!("{}, {rtt} ms round trip", rate(args.rate as f64));
    let loss = match (args.loss, args.burst) {
        (0.0, _) => "loses nothing".to_owned(),
        (share, 1) => format!("loses {} % of all packets, at random", percent(share)),
        (share, n) => format!("loses {} % of all packets, {n} in a row", percent(share)),
    };
    let wire = format!("  programs ── gateway ══ {link} ══ gateway ── programs");
    let width = wire.chars().count();
    let loss = format!("{loss:^width$}");
    let loss = loss.trim_end();
    let time = if args.quick { "a minute and a half" } else { "five minutes" };
    let sites = format!("  site A{:>1$}", "site B", width - 8);
    format!(
        "\n{sites}\n{wire}\n{loss}\n\n\
         Four unmodified programs cross this link: first with the kernel alone, then with a\n\
         Viaduct gateway at each site, which sends repairs in addition to the packets and\n\
         rebuilds lost packets. Then the demo shows the cost: on a link without loss, with long\n\
         loss bursts, and shared with another flow. It takes about {time}; Ctrl-C ends it.\n\n"
    )
}

/// Returns the main table, and below it its interpretation and the cost.
pub(super) fn table(args: &DemoArgs, findings: &Findings, colours: bool) -> String {
    let size = Size::new(args);
    let mut rows = vec![["", "plain", "with Viaduct", "factor"].map(str::to_owned)];
    for program in Program::ALL {
        let cell = |setup| findings.figure(program, setup).map_or("-".into(), text);
        let factor = findings.factor(program).map_or("-".into(), |factor| {
            let gave_up = |setup| findings.has_given_up(program, setup);
            let bound = match (gave_up(Setup::Plain), gave_up(Setup::Viaduct)) {
                (true, _) => "> ",
                (_, true) => "< ",
                _ => "",
            };
            format!("{bound}x {}", short(factor))
        });
        rows.push([program.name(&size), cell(Setup::Plain), cell(Setup::Viaduct), factor]);
    }
    let mut out = aligned(&rows, colours) + "\n";
    for setup in [Setup::Plain, Setup::Viaduct] {
        for program in Program::ALL {
            if let Some(Figure::None(why)) = findings.figure(program, setup) {
                let _ = writeln!(out, "{}, {}: {why}", program.name(&size), setup.name());
            }
        }
    }
    out += &others(findings, &size, colours);
    out += &lesson(findings);
    out + &price(findings, args.code())
}

fn others(findings: &Findings, size: &Size, colours: bool) -> String {
    let mut rows = vec![["the link ...", "plain", "with Viaduct", "repairs"].map(str::to_owned)];
    for phase in Phase::OTHERS {
        for &program in phase.programs() {
            let cell = |setup| findings.figure_of(phase, program, setup).map_or("-".into(), text);
            let mut counters = findings.counters(phase).filter(|(of, _)| *of == program);
            let repairs = counters.next().map_or("-".into(), |(_, counters)| {
                format!("{} %", short(100.0 * counters.overhead()))
            });
            let name = format!("{}: {}", phase.name().unwrap_or_default(), program.name(size));
            rows.push([name, cell(Setup::Plain), cell(Setup::Viaduct), repairs]);
        }
    }
    if rows.iter().skip(1).all(|row| row[1] == "-") {
        return String::new();
    }
    aligned(&rows, colours) + "\n"
}

/// Returns the closing lines: failed checks and the path of the report.
pub(super) fn ending(outcome: &Outcome, page: &Path) -> String {
    let mut out = String::new();
    for check in outcome.checks.iter().filter(|check| !check.holds) {
        let (value, bound) = (number(check.value), &check.bound);
        let _ = writeln!(out, "Check failed: {} is {value}, must be {bound}.", check.name);
    }
    if outcome.ended == Ended::Stopped {
        out += "Stopped: the table is partial.\n";
    }
    let (page, seconds) = (page.display(), outcome.seconds.round());
    let _ = writeln!(out, "\nReport: {page}  (one run of {seconds} s on this machine)");
    out
}

fn lesson(findings: &Findings) -> String {
    let words = |program, setup| findings.figure(program, setup).map(text);
    let change = |program| {
        let (plain, ours) = (words(program, Setup::Plain)?, words(program, Setup::Viaduct)?);
        Some(format!("{plain} -> {ours}"))
    };
    let (Some(cubic), Some(factor)) = (change(Program::Cubic), findings.factor(Program::Cubic))
    else {
        return String::new();
    };
    if factor < 1.3 {
        return format!(
            "On this link, loss hardly slows TCP down (cubic: {cubic}), so there is little for\n\
            Viaduct to gain, and its repairs use a part of the link's rate.\n"
        );
    }
    let faster = findings.factor(Program::Download).is_some_and(|factor| factor > 1.1);
    let download = change(Program::Download)
        .filter(|_| faster)
        .map_or(String::new(), |d| format!(", a download {d}"));
    let bbr = match findings.factor(Program::Bbr) {
        Some(factor) if factor < 1.0 => {
            "bbr does not slow down on loss, so it gains nothing from repairs.\n"
        }
        _ => "",
    };
    let cubics =
        findings.counters(Phase::Requested).find(|(program, _)| *program == Program::Cubic);
    // A sender that overfills the queue loses most packets in the queue, not on the link.
    let mostly = |counters: &(Program, Counters)| counters.1.recovered * 2 >= counters.1.lost;
    let saw = cubics.filter(mostly).map_or(String::new(), |(_, counters)| {
        format!(": of {} lost packets {} were", counters.lost, counters.recovered)
    });
    format!(
        "Cubic, most systems' TCP, treats every lost packet as congestion and slows down. With\n\
        Viaduct it sees only the losses that could not be rebuilt{saw}.\n\
         cubic {cubic}{download}.\n{bbr}\
         No program, host or server was changed; if a gateway dies, packets flow on without it.\n"
    )
}

fn price(findings: &Findings, code: &str) -> String {
    let counters = findings.counters(Phase::Requested);
    let Some(all) = counters.clone().map(|(_, counters)| counters).reduce(|a, b| a + b) else {
        return String::new();
    };
    let mut out = format!(
        "\nPrice: {:.2} bytes of repairs for each byte of data, by {code}.\n\
         Data packets lost, and how many of them were rebuilt:\n",
        all.overhead(),
    );
    for (program, counters) in counters {
        let Counters { lost, recovered, overfilled, .. } = counters;
        let _ = write!(out, "  {:9} {lost:6} {recovered:6}", program.word());
        if overfilled * 10 > lost {
            let _ = write!(out, "   (its sender filled the queue, which dropped {overfilled},");
            let _ = write!(out, " repairs included)");
        }
        out.push('\n');
    }
    out
}

fn text(figure: &Figure) -> String {
    match figure {
        Figure::Throughput(bits) => rate(*bits),
        Figure::Pair(first, second) => format!("{} + {}", short(first / 1e6), rate(*second)),
        Figure::Took(time) => format!("{:.1} s", time.as_secs_f64()),
        Figure::GaveUp(after) => format!("over {:.0} s", after.as_secs_f64()),
        Figure::Delays { median, p99 } => format!("{} / {} ms", millis(*median), millis(*p99)),
        Figure::None(_) => "failed".into(),
    }
}

impl Phase {
    /// Returns a short description of the phase; `None` for the requested link.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Phase::Requested => None,
            Phase::Clean => Some("loses nothing"),
            Phase::Bursts => Some("loses 1 %, 30 in a row"),
            Phase::Shared => Some("is shared, the second flow not protected"),
        }
    }
}

fn rate(bits: f64) -> String {
    format!("{} Mb/s", short(bits / 1e6))
}

/// Formats a value with two or three digits.
fn short(value: f64) -> String {
    if value < 10.0 { format!("{:.1}", value) } else { format!("{value:.0}") }
        .trim_end_matches(".0")
        .to_owned()
}

fn millis(time: Duration) -> String {
    format!("{:.0}", time.as_secs_f64() * 1e3)
}

fn percent(share: f64) -> f64 {
    rounded(share * 100.0)
}

/// Formats the table: names left-aligned, figures right-aligned, Viaduct's figures in bold.
fn aligned(rows: &[[String; 4]], colours: bool) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let line = |cells: &[String; 4]| {
        let [name, plain, ours, factor] = cells;
        let [w0, w1, w2, w3] = widths;
        let (on, off) = if colours { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        format!("  {name:w0$}   {plain:>w1$}   {on}{ours:>w2$}{off}   {factor:>w3$}\n")
    };
    let rule = format!("  {}\n", "─".repeat(widths.iter().sum::<usize>() + 9));
    line(&rows[0]) + &rule + &rows[1..].iter().map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::super::settings::tests::args;
    use super::*;

    fn findings(plain: f64, ours: f64) -> Findings {
        let mut findings = Findings::default();
        findings.add(Phase::Requested, Program::Cubic, Setup::Plain, Figure::Throughput(plain));
        findings.add(Phase::Requested, Program::Cubic, Setup::Viaduct, Figure::Throughput(ours));
        findings
    }

    #[test]
    fn the_table_and_the_lesson_show_the_gain() {
        let said = table(&args("").unwrap(), &findings(0.7e6, 135e6), false);
        let row: Vec<&str> = said.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(row[3..], ["0.7", "Mb/s", "135", "Mb/s", "x", "193"], "{said}");
        assert!(said.contains("cubic 0.7 Mb/s -> 135 Mb/s"), "{said}");
        assert!(!said.contains('\x1b'));
        assert!(table(&args("").unwrap(), &findings(1.0, 9.0), true).contains("\x1b[1m"));
    }

    #[test]
    fn a_run_without_gain_is_reported_as_such() {
        let said = table(&args("--loss 0").unwrap(), &findings(180e6, 140e6), false);
        assert!(said.contains("little for\nViaduct to gain"), "{said}");
    }

    #[test]
    fn a_program_that_did_not_run_shows_a_dash_or_the_reason() {
        let mut partial = Findings::default();
        partial.add(
            Phase::Requested,
            Program::Bbr,
            Setup::Plain,
            Figure::None("bbr is not there".into()),
        );
        let said = table(&args("").unwrap(), &partial, false);
        assert!(said.contains("iperf3 (TCP bbr), plain kernel: bbr is not there"), "{said}");
        assert_eq!(said.matches("failed").count(), 1);
    }

    #[test]
    fn the_introduction_draws_the_configured_link() {
        let said = introduction(&args("--loss 0.5% --burst 8 --rtt 30ms").unwrap());
        assert!(said.contains("200 Mb/s, 30 ms round trip"), "{said}");
        assert!(said.contains("loses 0.5 % of all packets, 8 in a row"), "{said}");
    }
}
