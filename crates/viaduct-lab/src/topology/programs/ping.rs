//! ping: round-trip times.

use std::net::IpAddr;
use std::time::Duration;

use super::{answer, run};
use crate::topology::{Node, TopologyError};

/// Settings of a ping run.
#[derive(Clone, Copy, Debug)]
pub struct Ping {
    /// Number of requests.
    pub count: u32,
    /// Time between two requests.
    pub interval: Duration,
    /// Bytes of payload: at least 16, which ping needs to measure time.
    pub size: u32,
}

/// Results of a ping run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PingReport {
    /// Requests sent.
    pub sent: u32,
    /// Number (from 1) and round trip in milliseconds of each request that was answered.
    pub round_trips_ms: Vec<(u32, f64)>,
}

impl Ping {
    /// Runs ping in `from`. A run without any answer is not an error.
    pub fn run(&self, from: &Node, to: IpAddr) -> Result<PingReport, TopologyError> {
        let mut ping = from.command("ping");
        ping.args(["-n", "-c", &self.count.to_string(), "-s", &self.size.to_string()]);
        ping.args(["-i", &format!("{:.3}", self.interval.as_secs_f64()), "-W", "2"]);
        ping.arg(to.to_string());
        let limit = self.interval * self.count + Duration::from_secs(10);
        let said = run(from, ping, limit)?;
        let report = parse(&said.stdout);
        if report.sent == 0 {
            return Err(answer(from, format!("ping failed: {}", said.stderr.trim())));
        }
        Ok(report)
    }
}

fn parse(text: &str) -> PingReport {
    let mut report = PingReport::default();
    for line in text.lines() {
        if let Some((sent, _)) = line.split_once(" packets transmitted") {
            report.sent = sent.parse().unwrap_or(0);
        }
        let field = |name| line.split(' ').find_map(|word| word.strip_prefix(name));
        let number = field("icmp_seq=").and_then(|word| word.parse().ok());
        let time = field("time=").and_then(|word| word.parse().ok());
        report.round_trips_ms.extend(number.zip(time));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    #[test]
    fn both_families_answer_and_a_dead_link_does_not() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let ping = Ping { count: 3, interval: Duration::from_millis(10), size: 100 };
        for ip in world.b1().addresses() {
            let report = ping.run(world.a1(), ip).unwrap();
            assert_eq!((report.sent, report.round_trips_ms.len()), (3, 3));
            assert!(report.round_trips_ms.iter().all(|(_, ms)| *ms < 1000.0));
        }
        world.gateway_b().ip(&["link set wan0 down".into()]).unwrap();
        let ping = Ping { count: 1, ..ping };
        let report = ping.run(world.a1(), world.b1().v4().into()).unwrap();
        assert_eq!((report.sent, report.round_trips_ms.len()), (1, 0));
    }
}
