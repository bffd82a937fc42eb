//! Processing of arrived data and notes.

use std::ops::Range;

use super::{Failure, MIN_SHARE, Stream};
use crate::trickles::client::{Arrived, ENDS};
use crate::trickles::standard::{Note, Notes, Reason};

impl Stream {
    pub(super) fn take(&mut self, arrived: &Arrived) {
        self.stale = true;
        for note in Notes::new(&arrived.user.clone()) {
            self.hear(&note, arrived);
        }
        let Some(stream) = self.stream_at(arrived.position) else { return };
        let Some(output) = self.outputs.get_mut(&stream) else { return };
        let end = arrived.position + arrived.data.len() as u64;
        let window = self.window.max(MIN_SHARE);
        if output.insert(arrived.position, arrived.data.clone(), window) {
            self.changed.insert(stream);
        }
        if output.is_crowded(self.config.window.max(MIN_SHARE)) {
            self.fail(stream, Reason::Failed.into());
        }
        if arrived.flags & ENDS != 0 {
            self.end(stream, end);
        }
    }

    fn hear(&mut self, note: &Note, arrived: &Arrived) {
        match *note {
            // The packet with this input's output continuation may be missing. So the note is
            // ignored, and the input is sent again.
            Note::Input(..) | Note::Closed { .. } if !arrived.in_order => {}
            Note::Input(place, bytes) => {
                if self.inputs.consumed(&place, arrived.user.slice_ref(bytes), arrived.parcel) {
                    self.changed.insert(place.stream);
                }
            }
            Note::Closed { stream, position } => {
                self.inputs.closed(stream, position);
                self.changed.insert(stream);
            }
            Note::Output(valid, bytes) => {
                let Some(output) = self.outputs.get_mut(&valid.stream) else { return };
                let bytes = arrived.user.slice_ref(bytes);
                if let Some(before) = output.add(valid, &bytes) {
                    self.client.renew(&before, &bytes);
                }
                self.inputs.yielded(valid.stream, output.kept(), arrived.parcel);
                if output.is_crowded(self.config.window.max(MIN_SHARE)) {
                    self.fail(valid.stream, Reason::Failed.into());
                }
                if usize::from(valid.leave) > self.client.reserved() {
                    self.client.reserve(valid.leave.into());
                }
                if valid.last {
                    self.end(valid.stream, valid.end);
                }
            }
            Note::Reset { stream, reason } => self.fail(stream, reason.into()),
            Note::Brings { from, to } => {
                let share = self.share();
                let stream = self.stream_at(from);
                if let Some(output) = stream.and_then(|stream| self.outputs.get_mut(&stream)) {
                    output.brings(from..to, arrived.parcel, share);
                }
            }
        }
    }

    pub(super) fn fail(&mut self, stream: u32, failure: Failure) {
        let Some(output) = self.outputs.get_mut(&stream) else { return };
        output.failure = Some(failure);
        let region = output.region();
        self.client.unwant(region);
        self.inputs.forget(stream);
        self.changed.insert(stream);
    }

    /// Fails streams whose missing bytes can no longer arrive. To be called only when nothing is
    /// in flight.
    pub(super) fn give_up_missing(&mut self) {
        let inputs = &self.inputs;
        let stuck = self.outputs.iter().filter(|&(&stream, output)| {
            inputs.failure(stream).is_none() && output.is_stuck(inputs.is_over(stream))
        });
        let stuck: Vec<u32> = stuck.map(|(&stream, _)| stream).collect();
        stuck.into_iter().for_each(|stream| self.fail(stream, Failure::Missing));
    }

    /// Sets the end of a stream's output to `end`, exclusive.
    fn end(&mut self, stream: u32, end: u64) {
        let Some(output) = self.outputs.get_mut(&stream) else { return };
        if output.end(end) {
            let skipped: Range<u64> = end..output.region().end;
            self.client.unwant(skipped);
            self.changed.insert(stream);
        }
    }
}
