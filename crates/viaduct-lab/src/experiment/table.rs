//! Outcome as a text table.

use std::fmt::Write;

use super::{Ended, Outcome, Point, Series};

/// Formats the plots of `outcome` and its checks as tables, in terminal colours if `colours`.
pub fn print_table(outcome: &Outcome, colours: bool) -> String {
    let mut out = String::new();
    for (plot, series) in outcome.plots() {
        let _ = writeln!(out, "\n{plot} [{}]", series[0].y);
        out += &align(&rows_of(&series));
    }
    if !outcome.checks.is_empty() {
        let _ = writeln!(out, "\nChecks");
    }
    for check in &outcome.checks {
        let (word, colour) = if check.holds { ("holds", "32") } else { ("FAILS", "31") };
        let word = if colours { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.into() };
        let value = number(check.value);
        let _ = writeln!(out, "  {word}  {}: {value} (must be {})", check.name, check.bound);
    }
    match &outcome.ended {
        Ended::Complete => {}
        Ended::Stopped => out += "\nStopped: these results are partial.\n",
        Ended::Failed(why) => drop(writeln!(out, "\nFailed, results are partial: {why}")),
    }
    out
}

/// Maximum rows of a table; further rows appear only in the JSON and the report.
const MAX_ROWS: usize = 40;

/// Returns a header row, then a row for each x with a cell for each series.
fn rows_of(series: &[&Series]) -> Vec<Vec<String>> {
    let mut xs: Vec<&Point> = Vec::new();
    for point in series.iter().flat_map(|series| &series.points) {
        if !xs.iter().any(|known| known.x == point.x) {
            xs.push(point);
        }
    }
    xs.sort_by(|a, b| a.x.total_cmp(&b.x));
    let head = std::iter::once(series[0].x.to_string());
    let mut rows = vec![head.chain(series.iter().map(|s| s.name.clone())).collect::<Vec<_>>()];
    for at in xs.iter().take(MAX_ROWS) {
        let x = at.label.clone().unwrap_or_else(|| number(at.x));
        let cell =
            |s: &&Series| s.points.iter().find(|p| p.x == at.x).map_or("-".into(), Point::text);
        rows.push(std::iter::once(x).chain(series.iter().map(cell)).collect());
    }
    if xs.len() > MAX_ROWS {
        rows.push(vec![format!("… {} more", xs.len() - MAX_ROWS)]);
    }
    rows
}

/// Pads columns to their widest cell, numbers right-aligned.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:>width$}"));
        let _ = writeln!(out, "  {}", cells.collect::<Vec<_>>().join("   "));
    }
    out
}

/// Formats a number with about four significant digits.
pub(crate) fn number(value: f64) -> String {
    let text = match value.abs() {
        _ if !value.is_finite() => return "-".into(),
        size if size >= 1000.0 || size == 0.0 => return format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.001 => format!("{value:.4}"),
        _ => return format!("{value:.2e}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_four_significant_digits() {
        let texts = [0.0, 21_345.6, 123.46, 5.0, 1.239, 0.012_345, 0.000_001_5].map(number);
        assert_eq!(texts, ["0", "21346", "123.5", "5", "1.24", "0.0123", "1.50e-6"]);
        assert_eq!(number(f64::NAN), "-");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["loss (%)".into(), "plain".into()], vec!["1".into(), "± 3".into()]];
        assert_eq!(align(&rows), "  loss (%)   plain\n         1     ± 3\n");
    }
}
