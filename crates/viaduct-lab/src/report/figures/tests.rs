use std::fs;
use std::path::PathBuf;

use serde_json::Map;

use super::rows::{Row, State, System};
use super::{Figures, record, rows, sheet};
use crate::experiment::{Bound, Check, Ended, Machine, Outcome};
use crate::experiments;

/// Returns a path in the repository.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn committed() -> Vec<System> {
    rows::load(&repository("figures")).unwrap()
}

#[test]
fn the_committed_sheet_matches_the_committed_rows() {
    let none = repository("figures/no-results");
    let figures = Figures::new(&repository("figures"), &none, None).unwrap();
    figures.check().unwrap();
    for system in committed() {
        let text = fs::read_to_string(system.path(&repository("figures"))).unwrap();
        assert!(
            system.to_text().unwrap() == text,
            "{}.toml is not in its normal form",
            system.name
        );
    }
}

#[test]
fn every_experiment_has_a_row_and_every_row_is_explained() {
    let systems = committed();
    for known in experiments::ALL {
        let name = known.about.name;
        let mut rows = systems.iter().flat_map(|system| &system.rows);
        assert!(rows.any(|row| row.experiment == name), "{name} has no row");
    }
    for system in &systems {
        let page = format!("docs/measurements/{}.md", system.name);
        let text = fs::read_to_string(repository(&page)).unwrap();
        for row in &system.rows {
            let known = experiments::ALL.iter().any(|e| e.about.name == row.experiment);
            let other = !row.command().starts_with("viaduct lab run ");
            assert!(known || other, "{}: no such experiment", row.name());
            let heading = format!("## {}", row.experiment);
            let explained = text.lines().any(|line| line == heading);
            assert!(explained, "{}: {page} has no {heading:?}", row.name());
        }
    }
}

#[test]
fn no_two_rows_are_the_same_check() {
    for system in committed() {
        for (n, row) in system.rows.iter().enumerate() {
            let same = |other: &Row| other.experiment == row.experiment && other.claim == row.claim;
            assert!(!system.rows[..n].iter().any(same), "{} occurs twice", row.name());
        }
    }
}

fn row(claim: &str, bound: &str) -> Row {
    Row {
        experiment: "maelstrom/split".into(),
        command: None,
        seed: "Maelstrom 4.2".into(),
        claim: claim.into(),
        checks: None,
        bound: bound.into(),
        last: "not kept".into(),
        state: State::Met,
        flags: vec!["quick".into(), "not in CI".into()],
        date: Some("2026-11-20".into()),
        commit: Some("01234567".into()),
        noted: true,
    }
}

fn check(name: &str, value: f64, bound: Bound) -> Check {
    Check { name: name.into(), value, bound, holds: bound.holds(value), raw: vec![] }
}

fn outcome(checks: Vec<Check>) -> Outcome {
    Outcome {
        experiment: "maelstrom/split".into(),
        seed: 1,
        params: Map::new(),
        series: vec![],
        checks,
        machine: Machine { date: "2026-11-21T02:47:31Z".into(), ..Machine::default() },
        command: String::new(),
        congestion_control: vec![],
        repeats: 3,
        quick: false,
        seconds: 1.0,
        ended: Ended::Complete,
    }
}

fn system(rows: Vec<Row>) -> Vec<System> {
    vec![System { name: "maelstrom".into(), rows }]
}

#[test]
fn a_row_takes_value_bound_state_day_and_commit_of_its_check() {
    let mut systems = system(vec![row("ratio", ">= 0.9")]);
    let result = outcome(vec![check("ratio", 0.8333, Bound::AtLeast(1.0 - 0.1))]);
    assert_eq!(record::record(&mut systems, &result, Some("89abcdef")), [""; 0]);
    let text = sheet::render("{{table maelstrom}}\n", &systems).unwrap();
    let line = "| [Maelstrom 4.2][maelstrom/split] | ratio | \
                `viaduct lab run maelstrom/split --repeat 3` | >= 0.9 | **0.8333** | \
                **short**, not in CI; 2026-11-21 89abcdef |";
    assert_eq!(text.lines().last(), Some(line));
    let recorded = systems.clone();
    assert_eq!(record::record(&mut systems, &result, None), [""; 0]);
    assert_eq!(systems, recorded, "a recorded result keeps its commit");
    record::record(&mut systems, &result, Some("76543210"));
    assert_eq!(systems[0].rows[0].commit.as_deref(), Some("76543210"), "equal value, later commit");
}

#[test]
fn a_result_older_than_a_row_is_ignored() {
    let later = Row { date: Some("2026-11-22".into()), ..row("ratio", ">= 0.9") };
    let mut systems = system(vec![later.clone()]);
    record::record(&mut systems, &outcome(vec![check("ratio", 0.1, Bound::AtLeast(0.9))]), None);
    assert_eq!(systems[0].rows, [later]);
}

#[test]
fn a_family_shows_its_lowest_and_highest_value_and_a_new_check_gets_a_row() {
    let family = Row { checks: Some("*: ratio".into()), ..row("each loss: ratio", "the form's") };
    let mut systems = system(vec![family, row("gone", ">= 1"), row("bound", "<= 2")]);
    let checks = vec![
        check("no loss: ratio", 1.5, Bound::AtLeast(1.0)),
        check("1 %: ratio", 1.25, Bound::AtLeast(1.1)),
        check("bound", 1.0, Bound::AtMost(3.0)),
        check("new", 2.0, Bound::Within(1.0, 3.0)),
    ];
    let notes = record::record(&mut systems, &outcome(checks), None);
    let [gone, bound] = &notes[..] else { panic!("{notes:?}") };
    assert!(gone.contains("\"gone\": the result has no such check"), "{gone}");
    assert!(bound.contains("the bound was <= 2, now it is <= 3"), "{bound}");
    let shown = |row: &Row| (row.last.clone(), row.bound.clone(), row.state);
    let rows = &systems[0].rows;
    assert_eq!(shown(&rows[0]), ("1.25 to 1.5".into(), "the form's".into(), State::Met));
    assert_eq!(rows[1], row("gone", ">= 1"));
    assert_eq!((rows[3].claim.as_str(), rows[3].seed.as_str()), ("new", "Maelstrom 4.2"));
    assert_eq!(shown(&rows[3]), ("2".into(), "1 to 3".into(), State::Met));
}

#[test]
fn a_cell_that_is_too_long_is_rejected_with_the_name_of_its_row() {
    let long = "very ".repeat(30);
    let error = sheet::render("{{table maelstrom}}\n", &system(vec![row(&long, ">= 1")]));
    let said = error.unwrap_err().to_string();
    assert!(said.contains("maelstrom/split") && said.contains("at most 100"), "{said}");
    let error = sheet::render("no table\n", &system(vec![]));
    assert!(error.unwrap_err().to_string().contains("no table for maelstrom"));
}
