//! Recording: updates the rows of an experiment from the result of a full run.

use super::rows::{NOT_CHECKED, QUICK, Row, State, System, run_command};
use crate::experiment::{Bound, Check, Outcome, number};
use crate::experiments;

/// Records the checks of `outcome`, and adds a row for each check without one. Rows that were
/// measured later than `outcome` are not changed. `commit` is used if the result does not name its
/// commit. Returns notes on the decisions left to the user.
pub(super) fn record(
    systems: &mut Vec<System>,
    outcome: &Outcome,
    commit: Option<&str>,
) -> Vec<String> {
    let rows = rows_of(systems, &outcome.experiment);
    for check in &outcome.checks {
        if place_of(rows, &outcome.experiment, &check.name).is_none() {
            insert(rows, outcome, check);
        }
    }
    let place = |check: &Check| place_of(rows, &outcome.experiment, &check.name);
    let places: Vec<Option<usize>> = outcome.checks.iter().map(place).collect();
    let mut notes = Vec::new();
    for (index, row) in rows.iter_mut().enumerate() {
        if row.experiment != outcome.experiment {
            continue;
        }
        let pairs = outcome.checks.iter().zip(&places);
        let of_row = pairs.filter(|(_, place)| **place == Some(index));
        let checks: Vec<&Check> = of_row.map(|(check, _)| check).collect();
        if !checks.is_empty() {
            notes.extend(update(row, &checks, outcome, commit));
        } else if !row.flags.iter().any(|flag| flag == NOT_CHECKED) {
            notes.push(format!("{}: the result has no such check", row.name()));
        }
    }
    notes
}

fn rows_of<'a>(systems: &'a mut Vec<System>, experiment: &str) -> &'a mut Vec<Row> {
    let name = experiment.split('/').next().unwrap_or(experiment);
    let index = systems.iter().position(|system| system.name == name).unwrap_or_else(|| {
        systems.push(System { name: name.to_owned(), rows: Vec::new() });
        systems.len() - 1
    });
    &mut systems[index].rows
}

/// Returns the index of the row of a check: the row whose claim is the name of the check; otherwise
/// the family with the longest pattern that matches the name.
fn place_of(rows: &[Row], experiment: &str, check: &str) -> Option<usize> {
    let own = || rows.iter().enumerate().filter(move |(_, row)| row.experiment == experiment);
    let family = || {
        let families = own().filter(|(_, row)| row.has_in_family(check));
        families.max_by_key(|(_, row)| row.checks.as_ref().map_or(0, String::len))
    };
    let same = own().find(|(_, row)| row.claim == check);
    same.or_else(family).map(|(index, _)| index)
}

/// Adds a row for a new check after the other rows of its experiment.
fn insert(rows: &mut Vec<Row>, outcome: &Outcome, check: &Check) {
    let last = rows.iter().rposition(|row| row.experiment == outcome.experiment);
    let seed = match last {
        Some(index) => rows[index].seed.clone(),
        None => paper_of(&outcome.experiment),
    };
    let row = Row {
        experiment: outcome.experiment.clone(),
        command: None,
        seed,
        claim: check.name.clone(),
        checks: None,
        bound: written(check.bound),
        last: "not measured".into(),
        state: State::Pending,
        flags: Vec::new(),
        date: None,
        commit: None,
        noted: false,
    };
    let at = last.map_or(rows.len(), |index| index + 1);
    rows.insert(at, row);
}

/// Returns the paper and figure of an experiment.
fn paper_of(experiment: &str) -> String {
    let mut abouts = experiments::ALL.iter().map(|known| known.about);
    let about = abouts.find(|about| about.name == experiment);
    about.map_or_else(String::new, |about| about.figure.to_owned())
}

/// Updates a row; a row that already has the result, or a later one, is not changed. Returns a note
/// if the bound has changed.
fn update(
    row: &mut Row,
    checks: &[&Check],
    outcome: &Outcome,
    commit: Option<&str>,
) -> Option<String> {
    let date = outcome.machine.date.split('T').next().unwrap_or_default();
    let (bound, last) = (bound_of(checks, &row.bound), span(checks));
    let later = row.date.as_deref().is_some_and(|known| known > date);
    let commit = outcome.machine.commit.clone().or_else(|| commit.map(str::to_owned));
    let same = row.date.as_deref() == Some(date) && row.last == last && row.bound == bound;
    if later || (same && (commit.is_none() || row.commit == commit)) {
        return None;
    }
    let measured = matches!(row.state, State::Met | State::Short);
    let note = (measured && row.bound != bound).then(|| {
        format!(
            "{}: the bound was {}, now it is {bound}; is it \"changed after a result\"?",
            row.name(),
            row.bound
        )
    });
    let holds = checks.iter().all(|check| check.holds);
    row.command = command_of(outcome);
    row.bound = bound;
    row.last = last;
    row.state = if holds { State::Met } else { State::Short };
    row.flags.retain(|flag| flag != QUICK);
    row.date = Some(date.to_owned());
    row.commit = commit;
    row.noted = false;
    note
}

/// Returns the command of a result, if it has options.
fn command_of(outcome: &Outcome) -> Option<String> {
    let mut options = String::new();
    if outcome.seed != 1 {
        options += &format!(" --seed {}", outcome.seed);
    }
    if outcome.repeats > 1 {
        options += &format!(" --repeat {}", outcome.repeats);
    }
    (!options.is_empty()).then(|| run_command(&outcome.experiment) + &options)
}

/// Returns the common bound of `checks`; `known` if it is a description instead of a bound, or if
/// the bounds of the checks differ.
fn bound_of(checks: &[&Check], known: &str) -> String {
    let described = Bound::try_from(known.to_owned()).is_err();
    let bounds: Vec<String> = checks.iter().map(|check| written(check.bound)).collect();
    match bounds.first() {
        Some(first) if !described && bounds.iter().all(|bound| bound == first) => first.clone(),
        _ => known.to_owned(),
    }
}

/// Formats a bound, rounded to hide binary noise in its last digits.
fn written(bound: Bound) -> String {
    match bound {
        Bound::AtLeast(least) => format!(">= {}", number(least)),
        Bound::AtMost(most) => format!("<= {}", number(most)),
        Bound::Within(least, most) => format!("{} to {}", number(least), number(most)),
    }
}

/// Formats the value of a check, or the lowest and the highest of a family.
fn span(checks: &[&Check]) -> String {
    let values = || checks.iter().map(|check| check.value);
    let least = number(values().fold(f64::INFINITY, f64::min));
    let most = number(values().fold(f64::NEG_INFINITY, f64::max));
    if least == most { least } else { format!("{least} to {most}") }
}
