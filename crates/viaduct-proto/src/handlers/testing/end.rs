//! End of a flow: a chain, and the application above it.

use crate::flow::testing::Stream;
use crate::flow::{Action, BottomId, Chain, Failure};
use crate::time::Instant;

pub(crate) struct End {
    pub(crate) chain: Chain,
    /// True once the application has opened or accepted the flow.
    pub(crate) is_there: bool,
    pub(crate) written: Stream,
    pub(crate) read: Stream,
    /// True if the application reads.
    pub(crate) takes: bool,
    pub(crate) answer: Option<Result<(), Failure>>,
    pub(crate) finished: usize,
    pub(crate) failed: Vec<Failure>,
    pub(crate) events: Vec<String>,
    /// Bottoms that are connected.
    pub(crate) connected: Vec<BottomId>,
    /// Bottoms from which the chain currently does not receive.
    pub(crate) paused: Vec<BottomId>,
}

impl End {
    pub(crate) fn new(chain: Chain, is_there: bool) -> End {
        End {
            chain,
            is_there,
            written: Stream::default(),
            read: Stream::default(),
            takes: true,
            answer: None,
            finished: 0,
            failed: Vec::new(),
            events: Vec::new(),
            connected: Vec::new(),
            paused: Vec::new(),
        }
    }

    pub(crate) fn write(&mut self, now: Instant, count: usize) {
        let data = self.written.make(count);
        assert!(self.chain.write(now, data), "the flow takes bytes");
    }

    /// Bytes that wait for the network, at most `room`.
    pub(super) fn outgoing(&self, bottom: BottomId, room: usize) -> Vec<u8> {
        self.chain.outgoing(bottom).pieces().flatten().copied().take(room).collect()
    }

    /// Lets the application read all data.
    pub(super) fn consume(&mut self, now: Instant) -> bool {
        let bytes: Vec<u8> = self.chain.incoming().pieces().flatten().copied().collect();
        if !self.takes || bytes.is_empty() {
            return false;
        }
        assert!(self.is_there, "data arrived before the application accepted the flow");
        self.read.get(&bytes);
        self.chain.consumed(now, bytes.len());
        true
    }

    pub(super) fn note(&mut self, action: Action) {
        match action {
            Action::Accepted => self.is_there = true,
            Action::Connected(result) => {
                assert!(self.answer.is_none(), "a connect is answered once");
                self.answer = Some(result);
            }
            Action::Finished => self.finished += 1,
            Action::Failed(why) => self.failed.push(why),
            Action::Event(event) => self.events.push(String::from_utf8(event).unwrap()),
            Action::Receive(bottom, false) => self.paused.push(bottom),
            Action::Receive(bottom, true) => self.paused.retain(|&at| at != bottom),
            _ => {}
        }
    }
}
