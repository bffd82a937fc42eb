//! Table of the demo: each program without and with Viaduct, and the cost.

use std::fmt::Write;

use serde_json::Value;

use super::page::escape;
use crate::experiment::{Outcome, number};

/// Programs by the prefix of their parameters, with the label shown.
const PROGRAMS: [(&str, &str); 4] = [
    ("cubic", "iperf3, TCP cubic: throughput"),
    ("bbr", "iperf3, TCP bbr: throughput"),
    ("download", "Download with curl: time"),
    ("messages", "Messages: 99th percentile of the delay"),
];

/// Figures by the suffix of their parameters: unit, and whether higher is better.
const FIGURES: [(&str, &str, bool); 3] =
    [("mbps", "Mb/s", true), ("seconds", "s", false), ("p99_ms", "ms", false)];

/// Renders the table; empty if `outcome` has none of the parameters.
pub(super) fn table(outcome: &Outcome) -> String {
    let rows: String =
        PROGRAMS.iter().filter_map(|(key, words)| row(outcome, key, words)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = "<table class=\"before-after\"><thead><tr><th></th><th class=\"n\">Without</th>\
                <th class=\"n\">With Viaduct</th><th class=\"n\">Better \
                by</th></tr></thead><tbody>";
    format!("<div class=\"card scroll\">{head}{rows}</tbody></table>{}</div>\n", price(outcome))
}

/// True if the table shows a parameter, so that the page need not list it again.
pub(super) fn shows(key: &str) -> bool {
    let of_program = PROGRAMS.iter().find_map(|(program, _)| key.strip_prefix(program));
    of_program.is_some_and(|rest| {
        ["_plain_", "_viaduct_"].iter().any(|way| rest.starts_with(way))
            || ["_packets_lost", "_packets_rebuilt", "_queue_drops"].contains(&rest)
            || rest == "_repair_bytes_per_data_byte"
    })
}

fn row(outcome: &Outcome, key: &str, words: &str) -> Option<String> {
    let figure = |way: &str| {
        FIGURES.iter().find_map(|&(suffix, unit, more)| {
            Some((param(outcome, &format!("{key}_{way}_{suffix}"))?, unit, more))
        })
    };
    let cell = |figure: Option<(f64, &str, bool)>| {
        figure.map_or("not finished".to_owned(), |(value, unit, _)| {
            format!("{} {unit}", digits(value))
        })
    };
    let (plain, ours) = (figure("plain"), figure("viaduct"));
    if plain.is_none() && ours.is_none() {
        return None;
    }
    let factor = match (plain, ours) {
        (Some((plain, _, more)), Some((ours, ..))) if plain > 0.0 && ours > 0.0 => {
            let factor = if more { ours / plain } else { plain / ours };
            format!("x {}", digits(factor))
        }
        _ => "-".to_owned(),
    };
    Some(format!(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\"><b>{}</b></td><td \
            class=\"n\">{factor}</td></tr>",
        escape(words),
        cell(plain),
        cell(ours)
    ))
}

/// Renders the repairs sent in addition to the packets, and the share of lost packets rebuilt.
fn price(outcome: &Outcome) -> String {
    let sum = |suffix: &str| {
        let values =
            PROGRAMS.iter().filter_map(|(key, _)| param(outcome, &format!("{key}_{suffix}")));
        values.fold(None, |sum: Option<f64>, value| Some(sum.unwrap_or_default() + value))
    };
    let mut out = String::new();
    if let (Some(lost), Some(rebuilt)) = (sum("packets_lost"), sum("packets_rebuilt")) {
        // The two counters are read at different moments: a few of the last packets may count
        // as rebuilt but not yet as lost.
        let rebuilt = rebuilt.min(lost);
        let share = if lost > 0.0 { rebuilt / lost * 100.0 } else { 100.0 };
        let _ = write!(
            out,
            "<p class=\"source\">Of {} packets that the link lost, {} ({} %) were rebuilt.",
            number(lost),
            number(rebuilt),
            share.round()
        );
        if let Some(drops) = sum("queue_drops").filter(|drops| *drops > 0.0) {
            let _ = write!(
                out,
                " Senders overfilled the link, whose queue dropped {} packets, repairs among them.",
                number(drops)
            );
        }
        if let Some(price) = param(outcome, "cubic_repair_bytes_per_data_byte") {
            let _ =
                write!(out, " Price: {} bytes of repairs for each byte of data.", number(price));
        }
        out += "</p>";
    }
    out
}

/// Rounds to three digits; further digits of one short run are noise.
fn digits(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { u32::from(value < 100.0) };
    let scale = f64::from(10_u32.pow(decimals));
    number((value * scale).round() / scale)
}

fn param(outcome: &Outcome, key: &str) -> Option<f64> {
    outcome.params.get(key).and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::experiment::{Ended, Machine};

    fn outcome(params: &Value) -> Outcome {
        Outcome {
            experiment: "demo".into(),
            seed: 1,
            params: params.as_object().unwrap().clone(),
            series: vec![],
            checks: vec![],
            machine: Machine::here(),
            command: String::new(),
            congestion_control: vec![],
            repeats: 1,
            quick: true,
            seconds: 1.0,
            ended: Ended::Complete,
        }
    }

    #[test]
    fn each_gain_is_in_one_row_and_no_key_is_shown() {
        let params = json!({
            "mtu": 1500,
            "cubic_plain_mbps": 0.7, "cubic_viaduct_mbps": 140.0,
            "download_viaduct_seconds": 2.0,
            "messages_plain_p99_ms": 300.0, "messages_viaduct_p99_ms": 100.0,
            "cubic_packets_lost": 100, "cubic_packets_rebuilt": 99,
        });
        let table = table(&outcome(&params));
        for part in ["0.7 Mb/s", "<b>140 Mb/s</b>", "x 200", "not finished", "x 3", "99 (99 %)"] {
            assert!(table.contains(part), "{part} in {table}");
        }
        let params = params.as_object().unwrap();
        let shown: Vec<_> = params.keys().filter(|key| !shows(key)).collect();
        assert_eq!(shown, ["mtu"]);
        assert!(params.keys().all(|key| !table.contains(key.as_str())), "{table}");
        assert_eq!(super::table(&outcome(&json!({"mtu": 1500}))), "");
    }
}
