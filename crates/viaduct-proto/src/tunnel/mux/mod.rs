//! Link of a tunnel: its streams, the frames received and the frames sent.
//!
//! | file | |
//! |---|---|
//! | here | the link, and the two directions of its streams |
//! | `frames` | received frames |
//! | `turn` | sent frames |
//! | `numbers` | numbers of the streams |
//! | `traffic` | bytes that the link carries |
//! | `ends` | operations that the flows' ends call |

mod ends;
mod frames;
mod numbers;
mod traffic;
mod turn;

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::flow::Failure;
use crate::time::Instant;
use crate::timers::TimerTable;
use crate::tunnel::common::{Common, Event, LinkError, Settings, StreamId};
use crate::tunnel::rtt::Rtt;
use crate::tunnel::stats::LinkStats;
use crate::tunnel::stream::{Notification, Receiving, Stream};
use crate::tunnel::wire::{Frame, Hello, Parser};
use numbers::Numbers;
use traffic::Traffic;

/// Maximum number of queued frames other than DATA. If there are more, the peer does not read the
/// answers that it requests, and the link is broken off.
const MAX_CONTROL: usize = 64 << 10;
/// Maximum number of broken links whose report the peer has not confirmed. More are possible only
/// if many links in a row break before the peer answers a PING. The first ones are kept, because
/// they may have carried the most bytes; further ones are not reported.
pub(super) const MAX_GONE: usize = 4096;

/// Mapping of frames to the byte streams of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// All frames in one byte stream: TCP.
    Stream,
    /// The frames of each stream in a separate QUIC stream, and those of the link in another.
    Streams,
}

/// Byte stream of a link, on which frames are sent: 0, or with [`Carrier::Streams`] the number of
/// the stream that the frames belong to. Acknowledgements of all streams are sent on lane 0.
pub type Lane = u32;

/// Result of an input to a link. An error means that the link must be broken off.
type Handled = Result<(), LinkError>;

/// Timers of a link, in the order in which they fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Nothing has been received for [`Settings::silence`]: the link is broken.
    Silence,
    /// A PING is due, unless the last one is unanswered.
    Ping,
    /// Delayed acknowledgements are due.
    Ack,
    /// After the peer's LEAVE: streams that it has opened before may still arrive.
    Late,
}

#[derive(Debug)]
pub(super) struct Mux {
    pub(super) number: u32,
    carrier: Carrier,
    /// True if the link takes bytes to send; see [`set_writable`](super::Tunnel::set_writable).
    pub(super) is_writable: bool,
    /// First frame of the peer.
    pub(super) hello: Option<Hello>,
    pub(super) streams: BTreeMap<u32, Stream>,
    numbers: Numbers,
    lanes: HashMap<Lane, Parser>,
    pub(super) control: VecDeque<(u32, Frame<'static>)>,
    /// Broken links that were reported to the peer on this link. The peer has not confirmed these
    /// reports yet.
    pub(super) reported_gone: Vec<u32>,
    /// Number of these reports before the last PING, whose PONG confirms them.
    gone_before_ping: usize,
    /// Streams with queued data, in the order of their turns.
    ready: VecDeque<u32>,
    /// Value of [`Tokens::changes`](super::tokens::Tokens::changes) when no ready stream
    /// got tokens.
    stalled_at: Option<u64>,
    acks: Vec<u32>,
    rtt: Rtt,
    timers: TimerTable<Timer>,
    /// For this end and for the other: true if that end opens no more streams on this link.
    leaving: [bool; 2],
    traffic: Traffic,
}

impl Mux {
    pub(super) fn new(number: u32, carrier: Carrier, dialled: bool, cx: &Common) -> Mux {
        let tokens = cx.window.total;
        let hello = Hello {
            instance: cx.instance,
            link: number,
            tokens,
            least_window: cx.settings.least_window,
            streams: cx.settings.streams,
        };
        let mut timers = TimerTable::default();
        timers.set(Timer::Silence, cx.now + cx.settings.silence);
        timers.set(Timer::Ping, cx.now + cx.settings.ping);
        let mut rtt = Rtt::default();
        rtt.schedule_ping();
        Mux {
            number,
            carrier,
            is_writable: true,
            hello: None,
            streams: BTreeMap::new(),
            numbers: Numbers::new(dialled),
            lanes: HashMap::new(),
            control: [(0, Frame::Hello(hello))].into(),
            reported_gone: Vec::new(),
            gone_before_ping: 0,
            ready: VecDeque::new(),
            stalled_at: None,
            acks: Vec::new(),
            rtt,
            timers,
            leaving: [false; 2],
            traffic: Traffic::default(),
        }
    }

    fn id(&self, number: u32) -> StreamId {
        StreamId { link: self.number, number }
    }

    /// Processes bytes that arrived on `lane`.
    pub(super) fn handle_bytes(
        &mut self,
        cx: &mut Common,
        lane: Lane,
        mut bytes: &[u8],
    ) -> Handled {
        self.timers.set(Timer::Silence, cx.now + cx.settings.silence);
        let mut parser = self.lanes.remove(&lane).unwrap_or_default();
        while let Some((stream, frame)) = parser.next(&mut bytes)? {
            if self.lane_of(stream, &frame) != lane {
                return Err(LinkError::Protocol("a frame in the lane of another stream"));
            }
            match stream {
                0 => self.handle_link_frame(cx, frame)?,
                _ => self.handle_stream_frame(cx, stream, frame)?,
            }
        }
        if lane == 0 || !parser.is_between() || self.streams.contains_key(&lane) {
            self.lanes.insert(lane, parser);
        }
        if self.control.len() > MAX_CONTROL { Err(LinkError::Deaf) } else { Ok(()) }
    }

    /// Lane of a frame. Acknowledgements must not wait behind bytes of the same stream.
    fn lane_of(&self, stream: u32, frame: &Frame<'_>) -> Lane {
        match (self.carrier, frame) {
            (Carrier::Stream, _) | (_, Frame::Ack(_) | Frame::FinAck) => 0,
            (Carrier::Streams, _) => stream,
        }
    }

    pub(super) fn lane_ended(&mut self, cx: &mut Common, lane: Lane) {
        // The peer may have forgotten the stream before our RST arrived.
        if self.streams.get(&lane).is_some_and(|stream| stream.resetting) {
            self.forget(cx, lane);
        }
    }

    /// Stops opening streams on this link, and tells the peer.
    pub(super) fn leave(&mut self) {
        if !std::mem::replace(&mut self.leaving[0], true) {
            self.control.push_back((0, Frame::Leave));
        }
    }

    /// Tells the peer that this end holds no bytes of a broken link.
    pub(super) fn report_gone(&mut self, link: u32) {
        if self.reported_gone.len() < MAX_GONE {
            self.reported_gone.push(link);
            self.control.push_back((0, Frame::Gone(link)));
        }
    }

    /// Uses up all numbers but one of the streams that this end opens.
    #[cfg(test)]
    pub(super) fn use_up(&mut self) {
        self.numbers.skip();
    }

    /// Returns whether this end opens no more streams.
    pub(super) fn has_left(&self) -> bool {
        self.leaving[0]
    }

    /// Returns whether neither end opens streams on this link any more, all streams are over, and
    /// nothing remains to be sent.
    pub(super) fn is_over(&self) -> bool {
        self.leaving == [true; 2]
            && self.streams.is_empty()
            && self.control.is_empty()
            && self.timers.deadline(Timer::Late).is_none()
    }

    /// Streams that this end may still open; 0 before the peer has announced its limit.
    pub(super) fn vacant(&self) -> u32 {
        let most = self.hello.map_or(0, |hello| hello.streams);
        if self.leaving[0] { 0 } else { self.numbers.vacant(most) }
    }

    /// Load of the link, the most important part first: the number of streams with more to send
    /// than one turn takes (a short request does not count), the bytes carried recently in both
    /// directions, and the number of all streams.
    pub(super) fn load(&self, turn: usize) -> (usize, u64, usize) {
        let queued = |number| self.streams.get(number).map_or(0, |stream| stream.out.len());
        let busy = self.ready.iter().filter(|&number| queued(number) > turn).count();
        (busy, self.traffic.recent(), self.streams.len())
    }

    pub(super) fn stats(&self) -> LinkStats {
        LinkStats {
            open: self.streams.len() as u64,
            up: self.hello.is_some() && !self.has_left(),
            rtt: self.rtt.smoothed,
            shortest_rtt: self.rtt.shortest(),
            sent: self.traffic.sent,
            received: self.traffic.received,
        }
    }

    /// Sends the notifications and frames that are due after a change of the stream's state.
    /// Forgets the stream when it is over.
    pub(super) fn settle(&mut self, cx: &mut Common, number: u32) {
        let id = self.id(number);
        let Some(stream) = self.streams.get_mut(&number) else { return };
        if stream.finished() == Some(Notification::Finished) {
            cx.events.push_back(Event::Finished(id));
        }
        if stream.receiving == Receiving::Ended {
            self.acknowledge(cx, number);
        }
        let stream = self.stream(number);
        // All bytes before FIN are consumed and acknowledged.
        if stream.receiving == Receiving::Ended && stream.unacknowledged() == 0 {
            stream.receiving = Receiving::Closed;
            self.control.push_back((number, Frame::FinAck));
        }
        if self.streams[&number].is_over() {
            self.forget(cx, number);
        }
    }

    /// Forgets a stream, and frees the buffer that it held and the tokens that it had outstanding.
    pub(super) fn forget(&mut self, cx: &mut Common, number: u32) {
        if let Some(stream) = self.streams.remove(&number) {
            let held = stream.unacknowledged();
            cx.window.free(held, held);
            cx.tokens.close(stream.account);
            cx.totals.delay.add(&stream.delay);
            self.lanes.remove(&number);
            if self.carrier == Carrier::Streams {
                cx.forgotten.push_back(self.id(number));
            }
            self.numbers.closed(number);
        }
    }

    fn insert(&mut self, number: u32, stream: Stream) {
        self.streams.insert(number, stream);
        self.numbers.opened(number);
    }

    fn stream(&mut self, number: u32) -> &mut Stream {
        self.streams.get_mut(&number).expect("looked up before")
    }

    /// Resets all streams of a broken link; `strand` is true if the peer may still hold their
    /// bytes.
    pub(super) fn break_off(&mut self, cx: &mut Common, strand: bool) {
        for (number, stream) in std::mem::take(&mut self.streams) {
            let held = stream.unacknowledged();
            cx.window.free(held, held);
            match strand {
                true => cx.tokens.strand(stream.account, self.number),
                false => cx.tokens.close(stream.account),
            }
            cx.totals.delay.add(&stream.delay);
            if !stream.resetting {
                cx.totals.reset += 1;
                cx.events.push_back(Event::Reset(self.id(number), Failure::Reset));
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Common) -> Handled {
        let Settings { ping, silence, .. } = cx.settings;
        while let Some(timer) = self.timers.poll_expired(cx.now) {
            match timer {
                Timer::Silence => return Err(LinkError::Silent(silence)),
                Timer::Ping => {
                    self.timers.set(Timer::Ping, cx.now + ping);
                    self.traffic.mark_ping();
                    self.rtt.schedule_ping();
                }
                Timer::Ack => self.acknowledge_all(cx),
                Timer::Late => {}
            }
        }
        Ok(())
    }
}
