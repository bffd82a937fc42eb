//! Data that an application writes before the flow below is ready for it.

use bytes::Bytes;

use crate::flow::{Context, Half, Output};

/// Buffered data, and the end that follows it.
#[derive(Debug, Default)]
pub(super) struct Early {
    pieces: Vec<Bytes>,
    ends: Option<End>,
}

/// End of the direction towards the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Shutdown,
    Close,
}

impl Early {
    pub(super) fn push(&mut self, data: Bytes) {
        self.pieces.push(data);
    }

    pub(super) fn end(&mut self, end: End) {
        self.ends = self.ends.max(Some(end));
    }

    /// Number of buffered bytes.
    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Takes all data and the end, leaving none.
    pub(super) fn take(&mut self) -> (Vec<Bytes>, Option<End>) {
        (std::mem::take(&mut self.pieces), self.ends.take())
    }

    /// Writes all data to `output`, and then ends it if the application has ended the flow.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, output: Output) {
        let (pieces, end) = self.take();
        for data in pieces {
            // A flow that accepts no more data reports that upstream itself.
            let _ = cx.output(output).write(data);
        }
        if let Some(end) = end {
            end.apply(cx, output);
        }
    }
}

impl End {
    /// Ends the direction at `output`.
    pub(super) fn apply(self, cx: &mut Context<'_>, output: Output) {
        match self {
            End::Shutdown => cx.output(output).shutdown(Half::Write),
            End::Close => cx.output(output).close(),
        }
    }
}
