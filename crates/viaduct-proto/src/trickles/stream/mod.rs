//! Client API for applications (Trickles, sections 4, 5.2 and 6.1): byte streams and requests
//! over one connection.
//!
//! ```text
//!   write, shutdown ─▶ input  ─ segments ─▶ ┌────────┐ ─▶ poll_transmit ─▶ network
//!   request(data)   ─▶   ▲ continuations    │ Client │
//!                     notes ◀─── arrived ── │        │ ◀─ handle ◀─────── network
//!   read            ◀─ output ─ wants ────▶ └────────┘
//! ```
//!
//! Stream [`MAIN`] is a socket: bytes in, bytes out. Any number of other streams can be opened in
//! addition, each with its own range of positions in the output. A request is a stream whose
//! complete input is written in one call. No call blocks, and all buffers are bounded: a send
//! buffer for bytes that were written and not consumed, a window for bytes that were requested and
//! not read.
//!
//! Written bytes stay buffered until the server acknowledges that it has consumed them. This
//! module chooses which continuation yields which bytes. The [`Client`] knows how many bytes a
//! request may ask for, and which bytes a lost packet had, because it computes the server's
//! congestion control.

mod config;
mod hear;
mod input;
mod output;
mod width;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::client::{self, Client};
use super::standard::{END, MAIN, Place};
use crate::time::{Duration, Instant};
use config::transport;
pub use config::{Config, Failure, State};
use input::Inputs;
use output::Output;
use width::Width;

/// Number of positions that are reserved for the output of [`MAIN`].
pub const MAIN_RESERVE: u64 = 1 << 56;
/// Maximum number of streams whose output is requested at a time; the others wait.
const AT_A_TIME: usize = 64;
/// Minimum share of the window for each of these streams, in bytes.
const MIN_SHARE: u64 = 64 << 10;
/// Number of restarts without an answer after which the connection is replaced by a new one. After
/// as many restarts with only short answers, the new connection uses shorter messages.
const MAX_RESTARTS: u32 = 4;

/// Client of a connection. See the [module](self).
#[derive(Debug)]
pub struct Stream {
    config: Config,
    token: u64,
    client: Client,
    inputs: Inputs,
    outputs: BTreeMap<u32, Output>,
    /// Streams by the start of their output's region.
    regions: BTreeMap<u64, u32>,
    next_stream: u32,
    next_region: u64,
    changed: BTreeSet<u32>,
    /// True if there may be bytes to request.
    stale: bool,
    /// True if a stream may lack bytes that can no longer arrive.
    unsure: bool,
    failed: Option<Failure>,
    /// Number of packets received, and the time of the last one; after an idle time, the time since
    /// which an answer is awaited.
    heard: (u64, Instant),
    width: Width,
    /// Current limit of bytes that are requested and not read.
    window: u64,
}

impl Stream {
    /// Opens a connection with its main stream. Nothing is sent before
    /// [`Stream::poll_transmit`]. `token` is random.
    pub fn open(config: Config, token: u64, now: Instant) -> Self {
        let client = Client::open(transport(&config), token, now);
        let mut stream = Stream {
            config,
            token,
            client,
            inputs: Inputs::default(),
            outputs: BTreeMap::new(),
            regions: BTreeMap::new(),
            next_stream: MAIN,
            next_region: 0,
            changed: BTreeSet::new(),
            stale: true,
            unsure: false,
            failed: None,
            heard: (0, now),
            width: Width::new(config.message),
            window: config.window,
        };
        stream.inputs.within(transport(&config).request);
        stream.begin(MAIN_RESERVE);
        stream
    }

    /// Opens a further stream with an output of at most `reserve` bytes, for which positions are
    /// reserved. `None` if the connection has no positions left.
    pub fn begin(&mut self, reserve: u64) -> Option<u32> {
        let start = self.next_region;
        let end = start.checked_add(reserve.max(1)).filter(|&end| end <= END)?;
        let stream = self.next_stream;
        self.next_stream = stream.checked_add(1)?;
        self.next_region = end;
        self.inputs.begin(Place { stream, start, reserve: end - start, position: 0 });
        self.outputs.insert(stream, Output::new(start..end));
        self.regions.insert(start, stream);
        self.stale = true;
        Some(stream)
    }

    /// Sends `data` as a request with an output of at most `reserve` bytes (msk_request, 6.1).
    /// Returns a stream whose input is complete, and which is read like any other; `None` if the
    /// connection has no positions left. Never blocks.
    pub fn request(&mut self, data: &[u8], reserve: u64) -> Option<u32> {
        let stream = self.begin(reserve)?;
        self.inputs.write(stream, data, usize::MAX);
        self.inputs.shutdown(stream);
        Some(stream)
    }

    /// Writes to a stream, and returns how many bytes were accepted.
    pub fn write(&mut self, stream: u32, data: &[u8]) -> usize {
        self.inputs.write(stream, data, self.config.send_buffer)
    }

    /// Number of bytes that may be written to a stream now; 0 if the server has stopped reading.
    pub fn writable(&self, stream: u32) -> usize {
        self.inputs.room(stream, self.config.send_buffer)
    }

    /// Returns whether more may be written to a stream, now or later: its input was not ended, and
    /// the server still reads.
    pub fn is_writing(&self, stream: u32) -> bool {
        self.inputs.is_writing(stream)
    }

    /// Returns whether the stream exists: it was opened, and not dropped by [`Stream::forget`].
    pub fn is_there(&self, stream: u32) -> bool {
        self.outputs.contains_key(&stream)
    }

    /// Returns whether all bytes written have been consumed, or the server has stopped reading.
    pub fn is_flushed(&self, stream: u32) -> bool {
        self.inputs.is_flushed(stream)
    }

    /// Ends a stream's input.
    pub fn shutdown(&mut self, stream: u32) {
        self.inputs.shutdown(stream);
    }

    /// The next bytes of a stream's output; `None` if they have not arrived.
    pub fn read(&mut self, stream: u32) -> Option<Bytes> {
        let output = self.outputs.get_mut(&stream)?;
        let data = output.read();
        if data.is_some() {
            self.stale = true;
            self.inputs.keeps(stream, output.kept());
        }
        data
    }

    /// Bytes of all streams that were requested or have arrived, but were not read yet.
    pub fn unread(&self) -> u64 {
        self.outputs.values().map(Output::unread).sum()
    }

    /// Sets the limit of bytes that are requested and not read to `window`, at most
    /// [`Config::window`]. Each stream may have 64 KiB regardless of the limit.
    pub fn narrow(&mut self, window: u64) {
        self.window = window.min(self.config.window);
    }

    /// State of a stream; finished if it does not exist.
    pub fn state(&self, stream: u32) -> State {
        let Some(output) = self.outputs.get(&stream) else { return State::Finished };
        match (output.state(), self.failed.or_else(|| self.inputs.failure(stream))) {
            (State::Open, Some(failure)) => State::Failed(failure),
            // All output was read, but the server will not consume the rest of the input.
            (State::Finished, Some(failure)) if !self.inputs.is_flushed(stream) => {
                State::Failed(failure)
            }
            (state, _) => state,
        }
    }

    /// The next stream whose state has changed since it was last returned: there are bytes to read,
    /// there is room to write, or the stream has ended.
    pub fn poll_changed(&mut self) -> Option<u32> {
        self.changed.pop_first()
    }

    /// Drops a stream and cancels its requests.
    pub fn forget(&mut self, stream: u32) {
        if let Some(output) = self.outputs.remove(&stream) {
            self.regions.remove(&output.region().start);
            self.client.unwant(output.region());
        }
        self.inputs.forget(stream);
        self.changed.remove(&stream);
        self.stale = true;
    }

    /// Tells the server with the next request that the connection is no longer needed. The message
    /// is not acknowledged.
    pub fn close(&mut self) {
        let streams: Vec<u32> = self.outputs.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.forget(stream));
        self.inputs.close = true;
    }

    /// Returns whether the server has answered.
    pub fn is_open(&self) -> bool {
        self.client.is_open()
    }

    /// Counters of the transport.
    pub fn stats(&self) -> client::Stats {
        self.client.stats()
    }

    /// Time since the last packet; after an idle period, the time for which an answer has
    /// been awaited.
    pub fn waited(&self, now: Instant) -> Duration {
        now.since(self.heard.1)
    }

    /// Number of restarts of the transport since the last answer.
    pub fn attempts(&self) -> u32 {
        self.client.attempts()
    }

    /// Processes a message that arrived.
    pub fn handle(&mut self, now: Instant, message: &[u8]) {
        let before = self.client.stats().received;
        self.client.handle(now, message);
        let stats = self.client.stats();
        if stats.received > before {
            self.width.heard(message.len(), stats.restarts);
        }
        while let Some(arrived) = self.client.poll_arrived() {
            self.take(&arrived);
        }
        self.settle();
        self.listen(now);
    }

    /// The next message to send; `None` if there is none.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.failed.is_some() {
            return None;
        }
        if self.client.is_idle() {
            self.heard.1 = now;
        }
        self.ask();
        let message = self.client.poll_transmit(now, &mut self.inputs);
        while let Some((stream, parcel, range)) = self.inputs.promised.pop_front() {
            if let Some(output) = self.outputs.get_mut(&stream) {
                output.brings(range, Some(parcel), MIN_SHARE);
            }
        }
        if message.is_none() && self.client.is_idle() && std::mem::take(&mut self.unsure) {
            self.give_up_missing();
        }
        message
    }

    /// Deadline of the earliest timer, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout().filter(|_| self.failed.is_none())
    }

    /// Processes the timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.client.handle_timeout(now);
        self.settle();
        self.listen(now);
        if now.since(self.heard.1) >= self.config.give_up && !self.client.is_idle() {
            self.failed = Some(Failure::TimedOut);
            self.changed.extend(self.outputs.keys());
        } else if !self.client.is_open() {
            self.width.doubted = true;
        } else if self.width.is_doubtful(&self.client) {
            let least = client::MIN_MESSAGE as u16;
            self.shorten(least, least, now);
        } else if self.client.attempts() >= MAX_RESTARTS {
            // The lack of any answer may have many causes. The first request of the new connection
            // shows whether the cause is a small path MTU.
            self.reopen(now);
        }
    }

    /// Limits messages to `message` bytes, and sent messages to `request` bytes, as the path
    /// requires. If a limit is lower than before, the connection is replaced by a new one. The
    /// minimum is [`client::MIN_MESSAGE`].
    pub fn shorten(&mut self, message: u16, request: u16, now: Instant) {
        let Config { message: longest, request: first, .. } = self.config;
        if message < longest || request < first.min(longest) {
            (self.config.message, self.config.request) = (message.min(longest), request.min(first));
            self.reopen(now);
        }
    }

    /// Replaces the connection by a new one: the server may have dropped the connection's secret,
    /// or messages may be too long for the path. The application's continuations stay valid in the
    /// new connection.
    fn reopen(&mut self, now: Instant) {
        self.token = self.token.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let reserve = self.client.reserved();
        let transport = client::Config { reserve, ..transport(&self.config) };
        self.inputs.within(transport.request);
        self.client = Client::open(transport, self.token, now);
        self.width = Width::new(self.config.message);
        self.inputs.forget_flight();
        self.outputs.values_mut().for_each(Output::forget_flight);
        self.heard.0 = 0;
        self.stale = true;
    }

    fn listen(&mut self, now: Instant) {
        let received = self.client.stats().received;
        if received != self.heard.0 {
            self.heard = (received, now);
        }
        self.stale |= self.client.is_idle();
    }

    fn settle(&mut self) {
        while let Some(parcel) = self.client.poll_settled() {
            self.inputs.settle(parcel, &mut self.changed);
            for output in self.outputs.values_mut() {
                output.settle(parcel);
            }
            self.stale = true;
        }
    }

    /// The stream whose region contains `position`.
    fn stream_at(&self, position: u64) -> Option<u32> {
        let (_, &stream) = self.regions.range(..=position).next_back()?;
        self.outputs.get(&stream)?.region().contains(&position).then_some(stream)
    }

    /// Limit, for each stream, of bytes that are requested and not read.
    fn share(&self) -> u64 {
        let active = self.outputs.values().filter(|output| output.is_active()).count();
        (self.window / active.clamp(1, AT_A_TIME) as u64).max(MIN_SHARE)
    }

    /// Requests output within the window.
    fn ask(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        self.unsure = true;
        let share = self.share();
        let active = self.outputs.values_mut().filter(|output| output.can_ask());
        for output in active.take(AT_A_TIME) {
            output.wants(share, &mut |range, continuation| {
                self.client.want(range.start, range.end - range.start, continuation);
            });
        }
    }
}
