//! iperf3: throughput of TCP and UDP.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::{answer, run, serve};
use crate::topology::{Host, TopologyError};

/// Time for the exchange of results after the last data. It is long because, over a link with loss
/// bursts, the kernel doubles its retransmission timeout with each loss.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// Traffic of iperf3.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// TCP without a limit.
    Tcp {
        /// Congestion control of the sender, as in `cubic`.
        congestion: String,
    },
    /// UDP at a constant rate.
    Udp {
        /// Bits of payload per second, over all flows.
        bits_per_second: u64,
        /// Bytes of payload per datagram.
        length: u32,
    },
}

/// Settings of an iperf3 run.
#[derive(Clone, Debug)]
pub struct Iperf {
    /// Traffic to send.
    pub load: Load,
    /// Measured time in seconds.
    pub seconds: u32,
    /// Seconds of warm-up before the measured time.
    pub omit: u32,
    /// Number of parallel flows.
    pub flows: u32,
    /// Port of the server; two concurrent runs in one host need different ports.
    pub port: u16,
    /// Uses IPv6 instead of IPv4.
    pub v6: bool,
    /// Limit of TCP's rate in bits of payload per second, over all flows.
    pub pace: Option<u64>,
    /// Bytes per write of TCP; `None` for iperf3's 128 KB.
    pub write: Option<u32>,
}

/// Results; rates are of payload, in bits per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IperfReport {
    /// Received rate.
    pub received: f64,
    /// Sent rate.
    pub sent: f64,
    /// Receive rate at the server per measured second: (seconds from the start, bits per second).
    pub arrived: Vec<(f64, f64)>,
    /// Mean of `arrived`. It never exceeds the link's rate, unlike the rate of writes into the
    /// sender's socket buffer.
    pub arrival_rate: f64,
    /// Retransmitted TCP segments.
    pub retransmits: u64,
    /// Congestion control in actual use; `udp` for UDP.
    pub congestion: String,
    /// UDP datagrams sent.
    pub packets: u64,
    /// UDP datagrams lost.
    pub lost_packets: u64,
    /// Jitter of UDP in milliseconds.
    pub jitter_ms: f64,
}

impl Iperf {
    /// Creates a run of one TCP flow for `seconds`, after a warm-up of `omit` seconds.
    pub fn tcp(congestion: &str, seconds: u32, omit: u32) -> Iperf {
        let load = Load::Tcp { congestion: congestion.into() };
        Iperf { load, seconds, omit, flows: 1, port: 5201, v6: false, pace: None, write: None }
    }

    /// Limits TCP to `bits_per_second` in total, in writes of `length` bytes; iperf3's default
    /// of 128 KB makes a slow flow bursty.
    pub fn paced(self, bits_per_second: u64, length: u32) -> Iperf {
        Iperf { pace: Some(bits_per_second), write: Some(length), ..self }
    }

    /// Creates a run of UDP at a constant rate for `seconds`.
    pub fn udp(bits_per_second: u64, length: u32, seconds: u32) -> Iperf {
        let load = Load::Udp { bits_per_second, length };
        Iperf { load, ..Iperf::tcp("", seconds, 0) }
    }

    /// Runs iperf3: the server in `to`, the sending client in `from`. Fails if iperf3 is missing or
    /// fails, is two minutes late, used another congestion control than requested, or on Ctrl-C.
    pub fn run(&self, from: &Host, to: &Host) -> Result<IperfReport, TopologyError> {
        self.run_by(from, to, self.address(to)?)
    }

    /// Runs iperf3 with the client connecting to `address`, which forwards to the server.
    pub fn run_by(
        &self,
        from: &Host,
        to: &Host,
        address: IpAddr,
    ) -> Result<IperfReport, TopologyError> {
        let mut server = to.command("iperf3");
        server.args(["--server", "--one-off", "--json", "--port", &self.port.to_string()]);
        let _server = serve(to, server, self.port)?;
        let mut client = from.command("iperf3");
        client.args(self.client_args(address));
        let limit = Duration::from_secs(u64::from(self.seconds + self.omit)) + END_TIMEOUT;
        let said = run(from, client, limit)?;
        let wrong = |what| answer(from, format!("iperf3 {what}"));
        let report = parse(&said.stdout).map_err(wrong)?;
        match &self.load {
            Load::Tcp { congestion } if *congestion != report.congestion => {
                Err(wrong(format!("used {} instead of {congestion}", report.congestion)))
            }
            _ => Ok(report),
        }
    }

    fn address(&self, to: &Host) -> Result<IpAddr, TopologyError> {
        match to.v6() {
            Some(v6) if self.v6 => Ok(v6.into()),
            None if self.v6 => Err(answer(to, "there is no IPv6 address".into())),
            _ => Ok(to.v4().into()),
        }
    }

    fn client_args(&self, to: IpAddr) -> Vec<String> {
        let mut args =
            vec!["--json".into(), "--get-server-output".into(), "--client".into(), to.to_string()];
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        add("--port", self.port.to_string());
        add("--time", self.seconds.to_string());
        add("--omit", self.omit.to_string());
        add("--parallel", self.flows.to_string());
        add("--connect-timeout", "10000".into());
        match &self.load {
            Load::Tcp { congestion } => {
                add("--congestion", congestion.clone());
                if let Some(bits) = self.pace {
                    add("--bitrate", (bits / u64::from(self.flows.max(1))).to_string());
                }
                if let Some(length) = self.write {
                    add("--length", length.to_string());
                }
            }
            Load::Udp { bits_per_second, length } => {
                add("--bitrate", (bits_per_second / u64::from(self.flows.max(1))).to_string());
                add("--length", length.to_string());
                args.push("--udp".into());
            }
        }
        args
    }
}

/// Fields of iperf3's JSON that are used.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Json {
    error: Option<String>,
    intervals: Vec<JsonInterval>,
    server_output_json: Option<Box<Json>>,
    end: JsonEnd,
}

#[derive(Deserialize)]
struct JsonInterval {
    sum: JsonSum,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonEnd {
    sum_sent: JsonSum,
    sum_received: JsonSum,
    /// Only field present for UDP; the received amount follows from the lost packets.
    sum: Option<JsonSum>,
    sender_tcp_congestion: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct JsonSum {
    start: f64,
    end: f64,
    bits_per_second: f64,
    retransmits: u64,
    packets: u64,
    #[serde(deserialize_with = "lost")]
    lost_packets: u64,
    jitter_ms: f64,
    omitted: bool,
}

/// Reads a count of lost packets. Late packets already counted as lost can make it negative,
/// which iperf3 prints as an unsigned number; such values become 0.
fn lost<'de, D: Deserializer<'de>>(number: D) -> Result<u64, D::Error> {
    let count = f64::deserialize(number)?;
    Ok(if (0.0..i64::MAX as f64).contains(&count) { count as u64 } else { 0 })
}

fn parse(text: &str) -> Result<IperfReport, String> {
    let json: Json = serde_json::from_str(text).map_err(|e| format!("printed no JSON: {e}"))?;
    if let Some(error) = json.error {
        return Err(format!("failed: {error}"));
    }
    let server = json.server_output_json.map(|server| server.intervals).unwrap_or_default();
    let counted = server.iter().filter(|interval| !interval.sum.omitted);
    let counted: Vec<&JsonSum> = counted.map(|interval| &interval.sum).collect();
    let bits: f64 = counted.iter().map(|sum| sum.bits_per_second * (sum.end - sum.start)).sum();
    let seconds: f64 = counted.iter().map(|sum| sum.end - sum.start).sum();
    let arrival_rate = if seconds > 0.0 { bits / seconds } else { 0.0 };
    let arrived = counted.iter().map(|sum| (sum.start, sum.bits_per_second)).collect();
    let end = json.end;
    let Some(udp) = end.sum else {
        return Ok(IperfReport {
            received: end.sum_received.bits_per_second,
            sent: end.sum_sent.bits_per_second,
            arrived,
            arrival_rate,
            retransmits: end.sum_sent.retransmits,
            congestion: end.sender_tcp_congestion.unwrap_or_default(),
            ..IperfReport::default()
        });
    };
    let share = 1.0 - udp.lost_packets as f64 / udp.packets.max(1) as f64;
    Ok(IperfReport {
        received: udp.bits_per_second * share,
        sent: udp.bits_per_second,
        arrived,
        arrival_rate,
        congestion: "udp".into(),
        packets: udp.packets,
        lost_packets: udp.lost_packets,
        jitter_ms: udp.jitter_ms,
        ..IperfReport::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    fn world() -> Dumbbell {
        Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap()
    }

    #[test]
    fn negative_counts_of_lost_packets_become_zero() {
        let report = |lost: &str| {
            let sum =
                format!("{{\"bits_per_second\": 1e6, \"packets\": 9, \"lost_packets\": {lost}}}");
            parse(&format!("{{\"end\": {{\"sum\": {sum}}}}}")).unwrap().lost_packets
        };
        assert_eq!([report("3"), report("1.8446744073709552e+19"), report("-1")], [3, 0, 0]);
    }

    #[test]
    fn tcp_uses_the_configured_congestion_control() {
        let world = world();
        for (congestion, v6) in [("cubic", false), ("bbr", true)] {
            let iperf = Iperf { v6, flows: 2, ..Iperf::tcp(congestion, 1, 0) };
            let report = iperf.run(world.a1(), world.b1()).unwrap();
            assert_eq!(report.congestion, congestion);
            assert!(report.received > 1e8, "{report:?}");
            assert!(!report.arrived.is_empty());
        }
    }

    #[test]
    fn udp_keeps_its_pace() {
        let world = world();
        let report = Iperf::udp(10_000_000, 1000, 2).run(world.a1(), world.b1()).unwrap();
        assert!((report.sent / 10e6 - 1.0).abs() < 0.1, "{report:?}");
        assert!(report.packets > 2000, "{report:?}");
    }

    #[test]
    fn an_unreachable_server_is_reported() {
        let world = world();
        world.gateway_a().ip(&["link set wan0 down".into()]).unwrap();
        let text = Iperf::tcp("cubic", 1, 0).run(world.a1(), world.b1()).unwrap_err().to_string();
        assert!(text.starts_with("in a1: iperf3 failed: "), "{text}");
    }
}
