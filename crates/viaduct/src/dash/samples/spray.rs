//! Subjects of a spray: the replicas.

use viaduct_proto::history::{Reading, Subject};

use super::{Details, Sample, gauge};
use crate::spray::status::{ReplicaStatus, SprayStatus};

/// Sample of a spray.
pub(super) fn sample(status: &SprayStatus) -> Sample {
    Sample {
        kind: "spray",
        title: format!("spray {}", status.spray),
        clock: Some(status.uptime),
        troubles: status.troubles(),
        subjects: status.replicas.iter().map(replica).collect(),
    }
}

fn replica(status: &ReplicaStatus) -> (Subject, Details) {
    let readings = vec![
        ("packets", Reading::per_second(status.packets)),
        ("rate", Reading::megabits(status.bytes)),
        ("share", gauge(100.0 * status.share)),
        ("failures", Reading::per_second(status.failures)),
    ];
    let state = (!status.state.is_up()).then(|| status.state.name().to_owned());
    let drained = status.is_drained.then(|| "drained".to_owned());
    let details = Details {
        state: drained.or(state),
        reason: status.state.reason().map(str::to_owned),
        facts: vec![("weight", status.weight.to_string())],
    };
    (Subject { kind: "replica", name: status.name.clone(), readings }, details)
}
