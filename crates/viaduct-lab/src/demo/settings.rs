//! Settings of the demo: the link, and the output paths.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use viaduct_proto::link::{LinkConfig, Loss};
use viaduct_proto::units;

use super::findings::Phase;
use super::programs::UNPROTECTED_PORT;
use crate::gateways::GatewaySpec;

/// Options of `viaduct demo`; all have defaults.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Share of the packets that the link loses, 0% to 20%
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share)]
    pub loss: f64,
    /// Length of each loss burst, in packets
    #[arg(long, value_name = "PACKETS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub burst: u32,
    /// Round-trip time of the link, up to 1s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = round_trip)]
    pub rtt: Duration,
    /// Bits per second that the link carries, 1M to 1G
    #[arg(long, value_name = "RATE", default_value = "200M", value_parser = rate)]
    pub rate: u64,
    /// Run for one and a half minutes instead of five
    #[arg(long)]
    pub quick: bool,
    /// Write the result to this file as well
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Directory that the report and the result are written to
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub out: PathBuf,
    /// Show live plots of the gateways on a web page during the run, at http://127.0.0.1:7480/ or
    /// at another address of this machine
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true,
          default_missing_value = "127.0.0.1:7480")]
    pub watch: Option<SocketAddr>,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl DemoArgs {
    /// Returns the configuration of the requested link, one direction.
    pub(super) fn link(&self) -> LinkConfig {
        let loss = match (self.loss, self.burst) {
            (0.0, _) => Loss::None,
            (rate, 1) => Loss::Independent { rate },
            (rate, length) => Loss::Bursts { rate, length },
        };
        let queue = "queue=100ms".parse::<LinkConfig>().expect("valid link config").queue;
        let (rate, delay) = (Some(self.rate), self.rtt / 2);
        LinkConfig { rate, delay, queue, loss, ..LinkConfig::default() }
    }

    /// Returns the configuration of the link in a phase.
    pub(super) fn link_of(&self, phase: Phase) -> LinkConfig {
        let loss = match phase {
            Phase::Requested => return self.link(),
            Phase::Clean | Phase::Shared => Loss::None,
            Phase::Bursts => Loss::Bursts { rate: 0.01, length: 30 },
        };
        LinkConfig { loss, ..self.link() }
    }

    /// Returns the gateway settings: the defaults, plus a class without repairs for one flow.
    pub(super) fn gateways(&self) -> GatewaySpec {
        let class = format!(
            "\n[[peer.class]]\nname = \"beside\"\nports = [{UNPROTECTED_PORT}]\n\
             repairs = \"none\"\n"
        );
        GatewaySpec::fec(&class)
    }

    /// Returns the name of the gateways' code.
    pub(super) fn code(&self) -> &'static str {
        "auto"
    }

    /// True if the link is the default one, for which the demo makes claims.
    pub(super) fn is_standard(&self) -> bool {
        let rtt = Duration::from_millis(100);
        (self.loss, self.burst, self.rtt, self.rate) == (0.01, 1, rtt, 200_000_000)
    }

    /// Returns the command that repeats this demo.
    pub(super) fn command(&self) -> String {
        let mut command = "viaduct demo".to_owned();
        let mut add = |differs: bool, words: String| {
            if differs {
                command += " ";
                command += &words;
            }
        };
        add(self.loss != 0.01, format!("--loss {}%", rounded(self.loss * 100.0)));
        add(self.burst != 1, format!("--burst {}", self.burst));
        add(self.rtt.as_millis() != 100, format!("--rtt {}us", self.rtt.as_micros()));
        add(self.rate != 200_000_000, format!("--rate {}", units::rate_text(self.rate)));
        add(self.quick, "--quick".to_owned());
        add(self.seed != 1, format!("--seed {}", self.seed));
        command
    }
}

/// Rounds to four decimals, which drops the noise of binary fractions.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<Loss>() {
        Ok(Loss::None) => Ok(0.0),
        Ok(Loss::Independent { rate }) if rate <= 0.2 => Ok(rate),
        _ => Err("a share from 0% to 20% is expected, such as 1% or 0.01".into()),
    }
}

fn round_trip(text: &str) -> Result<Duration, String> {
    let link = format!("delay={text}").parse::<LinkConfig>();
    let rtt = link.ok().map(|link| link.delay).filter(|rtt| *rtt <= Duration::from_secs(1));
    rtt.ok_or_else(|| "a time up to 1s is expected, such as 100ms".into())
}

fn rate(text: &str) -> Result<u64, String> {
    let rate = units::rate(text).filter(|rate| (1_000_000..=1_000_000_000).contains(rate));
    rate.ok_or_else(|| "a rate from 1M to 1G bits per second is expected, such as 200M".into())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        demo: DemoArgs,
    }

    pub(in crate::demo) fn args(words: &str) -> Result<DemoArgs, clap::Error> {
        let words = std::iter::once("demo").chain(words.split_whitespace());
        Command::try_parse_from(words).map(|command| command.demo)
    }

    #[test]
    fn the_defaults_describe_the_standard_link() {
        let demo = args("").unwrap();
        assert!(demo.is_standard());
        assert_eq!(demo.link().to_string(), "rate=200M,delay=50ms,queue=100ms,loss=1%");
        assert_eq!(demo.command(), "viaduct demo");
        assert_eq!((demo.watch, args("--watch").unwrap().watch.unwrap().port()), (None, 7480));
    }

    #[test]
    fn the_command_in_the_result_gives_the_same_link_again() {
        let demo = args("--loss 0.7% --burst 8 --rtt 30ms --rate 50M --seed 3").unwrap();
        let again = args(demo.command().trim_start_matches("viaduct demo")).unwrap();
        assert_eq!(again.link(), demo.link());
        assert_eq!(again.seed, 3);
        assert!(!again.is_standard());
    }

    #[test]
    fn invalid_values_are_rejected_with_the_valid_range() {
        let cases =
            [("--loss 1", "20%"), ("--rtt 2s", "1s"), ("--rate 5", "1M"), ("--burst 0", "1.")];
        for (words, expected) in cases {
            let said = args(words).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
