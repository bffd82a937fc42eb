//! Runs an experiment the requested number of times and builds an [`Outcome`] of its findings.

use std::time::Instant;

use super::progress::Progress;
use super::{Ended, Experiment, Machine, Outcome, Run};
use crate::cli::explain;
use crate::stop::{self, Stopped};
use crate::topology::Journal;

/// Settings of the runner.
#[derive(Clone, Debug)]
pub struct Options {
    /// Shortens the experiment.
    pub quick: bool,
    /// The seed of the first repeat.
    pub seed: u64,
    /// Number of repeats: 1 or more.
    pub repeat: u32,
    /// Journal of commands.
    pub journal: Journal,
    /// Hides the progress line.
    pub quiet: bool,
}

impl Default for Options {
    /// Returns one full run with seed 1.
    fn default() -> Self {
        Options { quick: false, seed: 1, repeat: 1, journal: Journal::new(), quiet: false }
    }
}

/// Runs `experiment`. After an error or a stop, the outcome contains the findings so far.
pub fn perform(experiment: &dyn Experiment, options: &Options) -> Outcome {
    let about = experiment.about();
    let machine = Machine::here();
    let started = Instant::now();
    let progress = Progress::new(about.name, options.quiet);
    let mut run = Run::new(options.quick, options.seed, options.journal.clone(), progress);
    let (mut ended, mut repeats) = (Ended::Complete, 0);
    while repeats < options.repeat.max(1) && ended == Ended::Complete {
        run.seed = options.seed + u64::from(repeats);
        run.checked.clear();
        match experiment.run(&mut run) {
            Ok(()) => repeats += 1,
            Err(error) => ended = ended_by(&error),
        }
    }
    run.progress.end();
    Outcome {
        experiment: about.name.into(),
        seed: options.seed,
        params: run.params,
        series: run.series,
        checks: run.checks,
        machine,
        command: command(about.name, options),
        congestion_control: run.congestion_control,
        repeats,
        quick: options.quick,
        seconds: (started.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        ended,
    }
}

/// Classifies an error. After Ctrl-C every error counts as a stop, because interrupted programs
/// fail in many ways.
fn ended_by(error: &anyhow::Error) -> Ended {
    if stop::is_requested() || error.chain().any(|cause| cause.is::<Stopped>()) {
        Ended::Stopped
    } else {
        Ended::Failed(explain(error))
    }
}

fn command(name: &str, options: &Options) -> String {
    let mut command = format!("viaduct lab run {name} --seed {}", options.seed);
    if options.repeat > 1 {
        command += &format!(" --repeat {}", options.repeat);
    }
    if options.quick {
        command += " --quick";
    }
    command
}

#[cfg(test)]
mod tests {
    use super::super::{About, Bound, Plot};
    use super::*;
    use serde_json::{Value, json};

    /// Measures its seed; after the first point, returns the given error if there is one.
    struct Seeds(Option<fn() -> anyhow::Error>);

    impl Experiment for Seeds {
        fn about(&self) -> About {
            let figure = "none";
            About { name: "test/seeds", title: "Seeds", figure, finding: "They differ." }
        }

        fn run(&self, run: &mut Run) -> anyhow::Result<()> {
            let plot = Plot::line("Seeds", ("nothing", ""), ("seed", ""));
            let series = run.series(&plot, "ours");
            run.param("rtt_ms", 100);
            run.congestion_control("cubic");
            run.step("the only one")?;
            run.point(series, 1.0, run.seed() as f64);
            if let Some(error) = self.0 {
                return Err(error());
            }
            run.check("seeds are small", run.seed() as f64, Bound::AtMost(11.0));
            Ok(())
        }
    }

    fn options(repeat: u32) -> Options {
        Options { seed: 10, repeat, quiet: true, quick: true, ..Options::default() }
    }

    #[test]
    fn repeats_use_different_seeds_and_become_a_mean_with_an_error() {
        let outcome = perform(&Seeds(None), &options(3));
        let [series] = &outcome.series[..] else { panic!("expected one series for all repeats") };
        let [point] = &series.points[..] else { panic!("expected one point for all repeats") };
        assert_eq!((point.y, &point.raw[..]), (11.0, &[10.0, 11.0, 12.0][..]));
        assert!((point.error.unwrap() - (1.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(outcome.checks.len(), 1);
        assert!(outcome.holds() && outcome.repeats == 3);
        assert_eq!(outcome.command, "viaduct lab run test/seeds --seed 10 --repeat 3 --quick");
    }

    #[test]
    fn the_json_has_the_documented_fields_and_reads_back() {
        let outcome = perform(&Seeds(None), &options(1));
        let value = serde_json::to_value(&outcome).unwrap();
        assert_eq!(value["experiment"], "test/seeds");
        assert_eq!(value["seed"], 10);
        assert_eq!(value["params"], json!({"rtt_ms": 100}));
        assert_eq!(value["series"][0]["points"], json!([{"x": 1.0, "y": 10.0}]));
        let check = json!(
            {"name": "seeds are small", "value": 10.0, "bound": "<= 11", "holds": true}
        );
        assert_eq!(value["checks"], json!([check]));
        assert_eq!(value["congestion_control"], json!(["cubic"]));
        assert_eq!(value["ended"], "complete");
        assert!(matches!(&value["machine"]["kernel"], Value::String(k) if !k.is_empty()));
        assert_eq!(serde_json::from_value::<Outcome>(value).unwrap(), outcome);
    }

    #[test]
    fn findings_before_a_failure_or_a_stop_are_kept_and_marked() {
        let failed = perform(&Seeds(Some(|| anyhow::anyhow!("no such luck"))), &options(3));
        assert_eq!(failed.ended, Ended::Failed("no such luck".into()));
        let stopped = perform(&Seeds(Some(|| Stopped.into())), &options(3));
        assert_eq!(stopped.ended, Ended::Stopped);
        for outcome in [failed, stopped] {
            assert_eq!(outcome.series[0].points.len(), 1);
            assert!(!outcome.holds(), "a partial result must not count as passed");
        }
    }
}
