//! Subjects of a file server: TCP and Trickles.

use viaduct_proto::history::{Reading, Subject};

use super::{Details, Sample, count};
use crate::serve::status::{ServeStatus, TcpStatus, TricklesStatus};

/// Sample of a file server.
pub(super) fn sample(status: &ServeStatus) -> Sample {
    let facts = vec![("version", status.version.clone()), ("serves", status.serving.clone())];
    let mut subjects = vec![(tcp(&status.tcp), Details { facts, ..Details::default() })];
    subjects.extend(status.trickles.as_ref().map(trickles));
    Sample {
        kind: "serve",
        title: format!("serving {}", status.serving),
        clock: Some(status.uptime),
        troubles: Vec::new(),
        subjects,
    }
}

fn tcp(status: &TcpStatus) -> Subject {
    let readings = vec![
        ("connections", Reading::per_second(status.connections)),
        ("open", count(status.open)),
        ("requests", Reading::per_second(status.requests)),
        ("crowded", Reading::per_second(status.crowded)),
        ("slow", Reading::per_second(status.slow)),
    ];
    Subject { kind: "tcp", name: "TCP".to_owned(), readings }
}

fn trickles(status: &TricklesStatus) -> (Subject, Details) {
    let refused = status.refused.iter().map(|(_, count)| count).sum();
    let readings = vec![
        ("answered", Reading::per_second(status.answered)),
        ("refused", Reading::per_second(refused)),
        ("rate_out", Reading::megabits(status.bytes)),
        ("packets", Reading::per_second(status.packets)),
        ("messages", Reading::per_second(status.messages)),
        ("recoveries", Reading::per_second(status.recoveries)),
        ("timeouts", Reading::per_second(status.timeouts)),
        ("resumed", Reading::per_second(status.resumed)),
        ("moved", Reading::per_second(status.moved)),
        ("renewed", Reading::per_second(status.renewed)),
        ("opened", Reading::per_second(status.opened)),
    ];
    let window = format!("{:.0} s", status.replay_seconds);
    let facts = vec![("replay window", window)];
    let subject = Subject { kind: "trickles", name: "Trickles".to_owned(), readings };
    (subject, Details { facts, ..Details::default() })
}
