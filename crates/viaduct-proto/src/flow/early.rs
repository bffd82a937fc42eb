//! Data that an application writes before the handler's output flow is ready for it.

use bytes::Bytes;

use super::{Context, Half, Output};

/// Buffered data, and the end that follows it.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pieces: Vec<Bytes>,
    ends: Option<End>,
}

/// End that the application has requested: of the direction towards the network, or of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Shutdown,
    Close,
}

impl Early {
    pub(crate) fn push(&mut self, data: Bytes) {
        self.pieces.push(data);
    }

    pub(crate) fn end(&mut self, end: End) {
        self.ends = self.ends.max(Some(end));
    }

    /// Number of buffered bytes.
    pub(crate) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Takes all data and the end, leaving none.
    pub(crate) fn take(&mut self) -> (Vec<Bytes>, Option<End>) {
        (std::mem::take(&mut self.pieces), self.ends.take())
    }

    /// Writes all data to `output`, and then ends `output` if the application has ended the flow.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, output: Output) {
        let (pieces, end) = self.take();
        for data in pieces {
            // If `output` accepts no more data, it reports that upstream itself.
            let _ = cx.output(output).write(data);
        }
        if let Some(end) = end {
            end.apply(cx, output);
        }
    }
}

impl End {
    /// Shuts down the direction towards `output`, or closes the flow.
    pub(crate) fn apply(self, cx: &mut Context<'_>, output: Output) {
        match self {
            End::Shutdown => cx.output(output).shutdown(Half::Write),
            End::Close => cx.output(output).close(),
        }
    }
}
