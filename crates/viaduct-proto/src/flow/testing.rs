//! Test fixture: an application above a chain and a network below it. Both count and check
//! their data.

use bytes::Bytes;

use super::{Action, BottomId, Chain, Failure, Half, HandlerSpec};
use crate::handlers;
use crate::handlers::testing::shell;
use crate::time::Instant;

/// Chain with an application and a network.
pub(crate) struct World {
    pub(crate) chain: Chain,
    pub(crate) now: Instant,
    bottom: BottomId,
    /// Bytes written by the application, and received by the network.
    down: Stream,
    /// Bytes sent by the network, and received by the application.
    up: Stream,
    shut: usize,
    closed: usize,
    finished: usize,
    failed: Vec<Failure>,
    /// True while the network takes bytes.
    pub(crate) network_takes: bool,
    /// True while the application takes bytes.
    pub(crate) application_takes: bool,
    pub(crate) may_receive: bool,
}

/// Deterministic byte sequence in one direction.
#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) made: usize,
    pub(crate) got: usize,
}

impl Stream {
    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 13) as u8
    }

    pub(crate) fn make(&mut self, count: usize) -> Bytes {
        let bytes = (self.made..self.made + count).map(Stream::byte).collect();
        self.made += count;
        bytes
    }

    pub(crate) fn get(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            assert_eq!(byte, Stream::byte(self.got), "wrong byte at {}", self.got);
            self.got += 1;
        }
    }
}

impl World {
    pub(crate) fn new(chain: &[&str], limit: usize) -> World {
        let specs: Vec<HandlerSpec> = chain.iter().map(|text| text.parse().unwrap()).collect();
        let factories = handlers::registry(&shell()).chain(&specs).unwrap();
        let chain = Chain::new(factories, limit, Instant::ZERO);
        World {
            bottom: chain.bottom().unwrap(),
            chain,
            now: Instant::ZERO,
            down: Stream::default(),
            up: Stream::default(),
            shut: 0,
            closed: 0,
            finished: 0,
            failed: Vec::new(),
            network_takes: true,
            application_takes: true,
            may_receive: true,
        }
    }

    pub(crate) fn write(&mut self, count: usize) {
        let data = self.down.make(count);
        assert!(self.chain.write(self.now, data));
        self.settle();
    }

    pub(crate) fn receive(&mut self, count: usize) {
        let data = self.up.make(count);
        assert!(self.chain.avail(self.now, self.bottom, data));
        self.settle();
    }

    pub(crate) fn shutdown(&mut self) {
        self.chain.shutdown(self.now, Half::Write);
        self.settle();
    }

    pub(crate) fn close(&mut self) {
        self.chain.close(self.now);
        self.settle();
    }

    pub(crate) fn finish(&mut self) {
        self.chain.finished(self.now, self.bottom);
        self.settle();
    }

    pub(crate) fn fail(&mut self, why: Failure) {
        self.chain.failed(self.now, self.bottom, why);
        self.settle();
    }

    pub(crate) fn control(&mut self, to: &str) -> Option<String> {
        let answer = self.chain.control(self.now, to, b"");
        answer.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// Lets time pass until `end`, while both ends take their data.
    pub(crate) fn run_until(&mut self, end: Instant) {
        self.settle();
        while let Some(at) = self.chain.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.chain.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// Lets each end that is enabled take its data.
    pub(crate) fn settle(&mut self) {
        loop {
            self.act();
            let moved = self.take_from_network() | self.take_from_application();
            if !moved {
                break;
            }
        }
    }

    fn take_from_network(&mut self) -> bool {
        self.network_takes && self.take(usize::MAX)
    }

    /// Lets the network take at most `most` bytes; false if there were none.
    pub(crate) fn take(&mut self, most: usize) -> bool {
        let outgoing = self.chain.outgoing(self.bottom);
        let bytes: Vec<u8> = outgoing.pieces().flatten().copied().take(most).collect();
        self.down.get(&bytes);
        self.chain.sent(self.now, self.bottom, bytes.len());
        self.act();
        !bytes.is_empty()
    }

    fn take_from_application(&mut self) -> bool {
        let bytes: Vec<u8> = self.chain.incoming().pieces().flatten().copied().collect();
        if !self.application_takes || bytes.is_empty() {
            return false;
        }
        self.up.get(&bytes);
        self.chain.consumed(self.now, bytes.len());
        true
    }

    fn act(&mut self) {
        while let Some(action) = self.chain.poll_action() {
            match action {
                Action::Shutdown(_, Half::Write) => {
                    assert!(self.chain.outgoing(self.bottom).is_empty(), "all has been sent");
                    self.shut += 1;
                }
                Action::Close(_) => self.closed += 1,
                Action::Receive(_, may) => self.may_receive = may,
                Action::Finished => {
                    assert!(self.chain.incoming().is_empty(), "all has been delivered");
                    self.finished += 1;
                }
                Action::Failed(why) => self.failed.push(why),
                _ => {}
            }
        }
    }

    pub(crate) fn sent(&self) -> usize {
        self.down.got
    }

    pub(crate) fn delivered(&self) -> usize {
        self.up.got
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut == 1
    }

    pub(crate) fn closed(&self) -> usize {
        self.closed
    }

    pub(crate) fn finished(&self) -> usize {
        self.finished
    }

    pub(crate) fn failed(&self) -> &[Failure] {
        &self.failed
    }

    /// Bytes held at the two ends.
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.chain.outgoing(self.bottom).len(), self.chain.incoming().len())
    }

    /// Asserts that all data was received, once and in order.
    pub(crate) fn assert_right(&self) {
        assert_eq!((self.down.got, self.up.got), (self.down.made, self.up.made));
    }
}
