//! Metrics of a spray.

use super::status::{ReplicaStatus, SprayStatus};
use crate::metrics::{Exposition, Kind};

/// Name of a replica's metric, its kind and help, and the function that reads it.
type Metric = (&'static str, Kind, &'static str, fn(&ReplicaStatus) -> f64);

const METRICS: [Metric; 8] = [
    ("viaduct_spray_replica_up", Kind::Gauge, "1 while this replica is up.", |r| {
        f64::from(u8::from(r.state.is_up()))
    }),
    ("viaduct_spray_replica_drained", Kind::Gauge, "1 while this replica is drained.", |r| {
        f64::from(u8::from(r.is_drained))
    }),
    ("viaduct_spray_replica_share", Kind::Gauge, "Current share of the packets, 0 to 1.", |r| {
        r.share
    }),
    ("viaduct_spray_packets_total", Kind::Counter, "Packets sent to this replica.", |r| {
        r.packets as f64
    }),
    ("viaduct_spray_bytes_total", Kind::Counter, "Bytes sent to this replica.", |r| r.bytes as f64),
    ("viaduct_spray_probes_total", Kind::Counter, "Probes of this replica.", |r| r.probes as f64),
    ("viaduct_spray_failures_total", Kind::Counter, "Probes that failed.", |r| r.failures as f64),
    ("viaduct_spray_falls_total", Kind::Counter, "Times that this replica went down.", |r| {
        r.falls as f64
    }),
];

/// Renders the metrics page.
pub fn encode(status: &SprayStatus) -> String {
    let mut page = Exposition::default();
    page.family("viaduct_build_info", Kind::Gauge, "Always 1; the version is a label.");
    page.sample(&[("version", &status.version), ("spray", &status.spray)], 1);
    page.family("viaduct_trouble", Kind::Gauge, "1 while a replica is down or rules are missing.");
    page.sample(&[], u8::from(!status.troubles().is_empty()));
    for (name, kind, help, read) in METRICS {
        page.family(name, kind, help);
        for replica in &status.replicas {
            page.sample(&[("replica", &replica.name)], read(replica));
        }
    }
    page.family("viaduct_spray_changes_total", Kind::Counter, "Changes of the distribution.");
    page.sample(&[], status.changes);
    page.family(
        "viaduct_spray_repairs_total",
        Kind::Counter,
        "Times that another program had deleted the rules.",
    );
    page.sample(&[], status.repairs);
    page.finish()
}
