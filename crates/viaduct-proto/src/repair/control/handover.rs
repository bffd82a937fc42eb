//! Handover of the controller's state to a new process.

use super::bursts::Counts;
use super::{Controller, Report};
use crate::time::Instant;
use crate::upgrade::{ControlRecord, LossesRecord};

impl Report {
    /// Totals for the handover to a new process.
    pub(in crate::repair) fn losses(&self) -> LossesRecord {
        LossesRecord {
            packets: self.random.packets,
            bursts: self.random.bursts,
            congested: self.congested,
            visible: self.visible,
        }
    }

    /// Report with the totals of the previous process.
    pub(in crate::repair) fn of(losses: &LossesRecord) -> Report {
        let LossesRecord { packets, bursts, congested, visible } = *losses;
        Report { random: Counts { packets, bursts }, congested, visible, ..Report::default() }
    }
}

impl Controller {
    /// State for the handover to a new process.
    pub(in crate::repair) fn record(&self) -> ControlRecord {
        let losses = |report: Report| report.losses();
        let counts = self
            .bursts
            .thinned()
            .map(|(at, random)| (at.as_nanos(), losses(Report { random, ..self.report() })));
        ControlRecord {
            overhead: self.asked.into(),
            trim: self.trim.factor.into(),
            passed: self.passed.into(),
            begun: self.begun.map(Instant::as_nanos),
            lost: self.recurrence.lost().map(Instant::as_nanos).collect(),
            counts: counts.collect(),
            ..ControlRecord::default()
        }
    }

    /// Takes over the state of the previous process.
    pub(in crate::repair) fn resume(&mut self, now: Instant, record: &ControlRecord) {
        let counts =
            record.counts.iter().map(|(at, losses)| (Instant::from_nanos(*at), Report::of(losses)));
        let counts: Vec<_> = counts.collect();
        let Some(&(at, report)) = counts.last() else { return };
        self.bursts.resume(counts.iter().map(|(at, report)| (*at, report.random)));
        self.recurrence.resume(record.lost.iter().map(|at| Instant::from_nanos(*at)));
        self.trim.resume(now, record.trim.into(), report.visible);
        self.last = Some((at, report));
        self.passed = record.passed.into();
        self.begun = record.begun.map(Instant::from_nanos);
        self.asked = f64::from(record.overhead).min(self.limits.max_overhead);
        self.overhead = self.asked * self.room.share();
    }
}
