//! The alerts and the dashboard of `dist/`, as Prometheus reads them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Machine, dist, text};

fn promtool(words: &[&str], file: &Path) {
    let output = Command::new("promtool").args(words).arg(file).output();
    let output = output.expect("promtool is needed: scripts/need test");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_alerts_are_valid_and_pass_their_tests() {
    promtool(
        &["check", "rules", "--lint=all", "--lint-fatal"],
        &dist("prometheus/viaduct.rules.yml"),
    );
    promtool(&["test", "rules"], &dist("prometheus/viaduct.rules.test.yml"));
    let rules = fs::read_to_string(dist("prometheus/viaduct.rules.yml")).unwrap();
    let tests = fs::read_to_string(dist("prometheus/viaduct.rules.test.yml")).unwrap();
    for alert in rules.split("- alert: ").skip(1).filter_map(|rest| rest.lines().next()) {
        let fires = |test: &str| test.lines().next() == Some(alert) && test.contains("exp_labels");
        assert!(tests.split("alertname: ").any(fires), "no test makes {alert} fire");
    }
}

#[test]
fn every_expression_of_the_dashboard_is_valid() {
    let machine = Machine::new();
    let dashboard = fs::read_to_string(dist("grafana/viaduct.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    // Rules may be JSON, because all JSON is YAML.
    let rule = |(n, expr): (usize, &str)| {
        let expr = expr.replace("$__rate_interval", "5m");
        json!({"record": format!("panel:{n}"), "expr": expr})
    };
    let rules: Vec<Value> = expressions.enumerate().map(rule).collect();
    assert!(rules.len() > 50, "{}", rules.len());
    let file = machine.0.join("dashboard.json");
    let group = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&file, group.to_string()).unwrap();
    promtool(&["check", "rules"], &file);
}
