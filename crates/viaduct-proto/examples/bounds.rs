//! Reads the results of the benches, prints the promised figures with their bounds, and exits
//! with 1 if a figure is missing or below its bound.
//!
//! `cargo bench -p viaduct-proto && cargo run --release -p viaduct-proto --example bounds`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use serde_json::Value;

/// Promise: group and name of a benchmark, and the minimum Gb/s of source data, if any.
type Promise = (&'static str, &'static str, Option<f64>);

const PROMISES: [Promise; 8] = [
    ("plane limits", "memcpy", None),
    ("plane limits", "xor into three warm bins", None),
    ("plane", "encode (8,3)", Some(20.0)),
    ("plane", "decode (8,3), 1 % lost", Some(20.0)),
    ("encode", "Reed-Solomon (10,3)", Some(100.0)),
    ("encode", "window 240 with 3 repairs in 10", None),
    ("encode", "window 2048 with 123 repairs in 4096", Some(20.0)),
    ("decode", "window 2048 with 123 repairs in 4096, 1 % lost", Some(20.0)),
];

fn main() -> ExitCode {
    let folder = target().join("criterion");
    println!("{:<40} {:>8}  {:>7}  holds", "one core, packets of 1500 bytes", "Gb/s", "bound");
    let mut all_hold = true;
    for (group, name, bound) in PROMISES {
        let measured = gigabits_per_second(&folder.join(group).join(name).join("new"));
        let holds = measured.is_some_and(|rate| bound.is_none_or(|bound| rate >= bound));
        all_hold &= holds;
        println!(
            "{:<40} {:>8}  {:>7}  {}",
            format!("{group}/{name}"),
            measured.map_or("missing".to_owned(), |rate| format!("{rate:.1}")),
            bound.map_or(String::new(), |bound| format!(">= {bound}")),
            match (holds, bound) {
                (false, _) => "NO",
                (true, Some(_)) => "yes",
                (true, None) => "",
            }
        );
    }
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Build directory of cargo: this program is in `<target>/<profile>/examples`.
fn target() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    program.ancestors().nth(3).map_or_else(|| "target".into(), Path::to_owned)
}

/// Result that Criterion left in `folder`; `None` if that benchmark has not run.
fn gigabits_per_second(folder: &Path) -> Option<f64> {
    let read = |file| -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(folder.join(file)).ok()?).ok()
    };
    let bytes = read("benchmark.json")?["throughput"]["Bytes"].as_f64()?;
    let nanos = read("estimates.json")?["median"]["point_estimate"].as_f64()?;
    Some(bytes * 8.0 / nanos)
}
