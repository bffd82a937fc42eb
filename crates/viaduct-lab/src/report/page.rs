//! The HTML page: a table of contents, then each result next to the paper's finding.

use std::fmt::Write;

use crate::experiment::{About, Check, Ended, Outcome, Series, number};
use crate::{demo, experiments};

use super::{before_after, labels, plot};

const STYLE: &str = include_str!("page.css");

/// Renders the page for `outcomes`, in the order of the list of experiments.
pub(super) fn render(outcomes: &[Outcome]) -> anyhow::Result<String> {
    let mut ordered: Vec<&Outcome> = outcomes.iter().collect();
    ordered.sort_by_key(|outcome| position(outcome));
    let mut body = String::new();
    for outcome in &ordered {
        body += &section(outcome)?;
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Viaduct: results</title>\n\
         <style>\n{STYLE}{}</style>\n</head>\n<body>\n<header><h1>Viaduct: \
         results</h1>\n{}</header>\n\
         {}{body}</body>\n</html>\n",
        colour_rules(),
        summary(&ordered),
        contents(&ordered)
    ))
}

fn position(outcome: &Outcome) -> usize {
    abouts().position(|about| about.name == outcome.experiment).unwrap_or(usize::MAX)
}

fn about(outcome: &Outcome) -> Option<About> {
    abouts().find(|about| about.name == outcome.experiment)
}

fn abouts() -> impl Iterator<Item = About> {
    let experiments = experiments::ALL.iter().map(|experiment| experiment.about);
    std::iter::once(demo::ABOUT).chain(experiments)
}

fn summary(outcomes: &[&Outcome]) -> String {
    let checks = || outcomes.iter().flat_map(|outcome| &outcome.checks);
    let (held, all) = (checks().filter(|check| check.holds).count(), checks().count());
    format!(
        "<p class=\"lead\">{} experiment{}, {held} of {all} checks hold. Every figure below was \
         measured by the command below it.</p>\n",
        outcomes.len(),
        if outcomes.len() == 1 { "" } else { "s" }
    )
}

fn contents(outcomes: &[&Outcome]) -> String {
    let mut out = String::from("<nav aria-label=\"Contents\"><ol>\n");
    for outcome in outcomes {
        let (name, verdict) = (escape(&outcome.experiment), verdict(outcome));
        let title = about(outcome).map_or("", |about| about.title);
        let _ = writeln!(
            out,
            "<li><a href=\"#{}\"><code>{name}</code> <span>{}</span></a>{verdict}</li>",
            anchor(outcome),
            escape(title)
        );
    }
    out + "</ol></nav>\n"
}

fn anchor(outcome: &Outcome) -> String {
    escape(&outcome.experiment.replace('/', "-"))
}

/// Renders the verdict in words as well as in colour.
fn verdict(outcome: &Outcome) -> String {
    let held = outcome.checks.iter().filter(|check| check.holds).count();
    let (class, text) = match &outcome.ended {
        Ended::Stopped => ("bad", "stopped: partial".to_owned()),
        Ended::Failed(_) => ("bad", "failed: partial".to_owned()),
        Ended::Complete if held < outcome.checks.len() => {
            ("bad", format!("✗ {} of {} hold", held, outcome.checks.len()))
        }
        Ended::Complete => ("good", format!("✓ {held} hold")),
    };
    format!("<span class=\"mark {class}\">{text}</span>")
}

fn section(outcome: &Outcome) -> anyhow::Result<String> {
    let known = about(outcome);
    let title = known.map_or_else(|| outcome.experiment.clone(), |about| about.title.into());
    let mut out = format!(
        "<section id=\"{}\">\n<h2>{} {}</h2>\n<p class=\"name\"><code>{}</code></p>\n",
        anchor(outcome),
        escape(&title),
        verdict(outcome),
        escape(&outcome.experiment)
    );
    out += &before_after::table(outcome);
    if let Ended::Failed(why) = &outcome.ended {
        let _ = writeln!(out, "<p class=\"failed\">The experiment failed: {}</p>", escape(why));
    }
    out += "<div class=\"beside\">\n";
    if let Some(about) = known {
        let (figure, finding) = (escape(about.figure), escape(about.finding));
        let _ = writeln!(
            out,
            "<div class=\"card\"><h3>What the paper found</h3><p>{finding}</p>\
             <p class=\"source\">{figure}</p></div>"
        );
    }
    let _ = writeln!(
        out,
        "<div class=\"card\"><h3>What we found</h3>{}</div>\n</div>",
        checks(&outcome.checks)
    );
    out += &plots(outcome)?;
    out += &facts(outcome);
    Ok(out + "</section>\n")
}

fn checks(checks: &[Check]) -> String {
    if checks.is_empty() {
        return "<p>Nothing was checked.</p>".into();
    }
    let mut out = String::from(
        "<table class=\"checks\"><thead><tr><th>Check</th><th class=\"n\">Measured</th>\
         <th class=\"n\">Must be</th><th></th></tr></thead><tbody>",
    );
    for check in checks {
        let (class, word) =
            if check.holds { ("good", "✓ holds") } else { ("bad", "✗ does not") };
        let bound = check.bound.to_string().replace(">=", "≥").replace("<=", "≤");
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{bound}</td>\
             <td class=\"mark {class}\">{word}</td></tr>",
            escape(&check.name),
            number(check.value)
        );
    }
    out + "</tbody></table>"
}

fn plots(outcome: &Outcome) -> anyhow::Result<String> {
    let mut out = String::new();
    for (title, series) in outcome.plots() {
        let svg = plot::render(&series)?;
        if svg.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "<figure><figcaption>{}</figcaption>\n{}<div class=\"scroll\">{svg}</div>\n{}</figure>",
            escape(title),
            legend(&series),
            numbers(&series)
        );
    }
    Ok(out)
}

fn legend(series: &[&Series]) -> String {
    if let [only] = series {
        return format!("<p class=\"only\">{}</p>\n", escape(&only.name));
    }
    let entry = |(index, series): (usize, &&Series)| {
        let name = escape(&series.name);
        format!("<li><i class=\"c{}\"></i>{name}</li>", index % plot::COLOURS)
    };
    format!(
        "<ul class=\"legend\">{}</ul>\n",
        series.iter().enumerate().map(entry).collect::<String>()
    )
}

/// Renders the numbers behind a plot, collapsed.
fn numbers(series: &[&Series]) -> String {
    let (x, y) = (&series[0].x, &series[0].y);
    let mut out = format!(
        "<details><summary>Numbers</summary><div class=\"scroll\"><table><thead><tr><th>Series</th>\
         <th class=\"n\">{}</th><th class=\"n\">{}</th></tr></thead><tbody>",
        escape(&if x.label.is_empty() { "x".into() } else { x.to_string() }),
        escape(&y.to_string())
    );
    for series in series {
        for point in series.points.iter().take(500) {
            let _ = write!(
                out,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                escape(&series.name),
                escape(&point.label.clone().unwrap_or_else(|| number(point.x))),
                point.text()
            );
        }
    }
    out + "</tbody></table></div></details>\n"
}

/// Renders parameters, machine and command.
fn facts(outcome: &Outcome) -> String {
    let machine = &outcome.machine;
    let mut rows: Vec<(String, String)> = Vec::new();
    if !outcome.congestion_control.is_empty() {
        rows.push(("Congestion control".into(), outcome.congestion_control.join(", ")));
    }
    let params = outcome.params.iter().filter(|(key, _)| !before_after::shows(key));
    rows.extend(params.map(|(key, value)| (labels::name(key), labels::value(value))));
    rows.push(("Seed".into(), outcome.seed.to_string()));
    rows.push(("Repeats".into(), outcome.repeats.to_string()));
    let cores = if machine.cores == 1 { "core" } else { "cores" };
    rows.push((
        "Machine".into(),
        format!(
            "{}, {} {cores}, {} GiB, Linux {}",
            machine.cpu, machine.cores, machine.memory_gib, machine.kernel
        ),
    ));
    rows.push(("Measured".into(), format!("{}, in {} s", machine.date, outcome.seconds)));
    rows.extend(machine.commit.iter().map(|commit| ("Commit".into(), commit.clone())));
    let row = |(k, v): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>", escape(k), escape(v));
    format!(
        "<dl>{}</dl>\n<pre><code>{}</code></pre>\n",
        rows.iter().map(row).collect::<String>(),
        escape(&outcome.command)
    )
}

/// Returns the style rules that give each series its colour in plots and legends.
fn colour_rules() -> String {
    let rule = |n: usize| {
        format!(
            "svg [fill=\"#01010{n}\" i]{{fill:var(--c{n})}}svg [stroke=\"#01010{n}\" i]\
             {{stroke:var(--c{n})}}.legend .c{n}{{background:var(--c{n})}}\n"
        )
    };
    (0..plot::COLOURS).map(rule).collect()
}

/// Escapes text for HTML.
pub(super) fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;")
}
