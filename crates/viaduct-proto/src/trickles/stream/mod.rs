//! The client's side for applications (Trickles, sections 4, 5.2 and 6.1): byte streams and requests
//! over one connection.
//!
//! ```text
//!   write, shutdown ─▶ input  ─ segments ─▶ ┌────────┐ ─▶ poll_transmit ─▶ network
//!   request(data)   ─▶   ▲ continuations    │ Client │
//!                     notes ◀─── arrived ── │        │ ◀─ handle ◀─────── network
//!   read            ◀─ output ─ wants ────▶ └────────┘
//! ```
//!
//! Stream [`MAIN`](super::standard::MAIN) is a socket: bytes in, bytes out. Others are opened beside it,
//! any number, each with numbers of its own in the output; a request is a stream that is written at
//! once. Nothing here blocks, and what is kept has a bound: a send buffer for what is written and not
//! consumed, a window for what is asked for and not read.
//!
//! What was written stays until the server says that it has consumed it. Which continuation yields which
//! bytes is chosen here; how many bytes a request may ask for, and what becomes lost with a packet, the
//! [`Client`] knows, because it computes the server's congestion control.

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

/// Numbers that are reserved for the output of [`MAIN`].
pub const MAIN_RESERVE: u64 = 1 << 56;
/// Outputs that are asked for at a time; those behind them wait.
const AT_A_TIME: usize = 64;
/// Least bytes that each of them is asked for.
const LEAST_SHARE: u64 = 64 << 10;
/// After so many restarts without an answer the connection is opened anew; after so many with short answers alone,
/// with shorter messages.
const PATIENCE: u32 = 4;

/// A connection's client. See the [module](self).
#[derive(Debug)]
pub struct Stream {
    config: Config,
    token: u64,
    client: Client,
    inputs: Inputs,
    outputs: BTreeMap<u32, Output>,
    /// Which stream's output begins where.
    regions: BTreeMap<u64, u32>,
    next_stream: u32,
    next_region: u64,
    changed: BTreeSet<u32>,
    /// Whether there may be something to ask for.
    stale: bool,
    /// Whether a stream may lack what nothing brings any more.
    unsure: bool,
    failed: Option<Failure>,
    /// Packets that had come, and when, or since when something is waited for.
    heard: (u64, Instant),
    width: Width,
    /// Most bytes that are asked for and not read yet, now.
    window: u64,
}

impl Stream {
    /// Opens a connection with its main stream; nothing is sent before [`Stream::poll_transmit`].
    /// `token` is random.
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

    /// One more stream, with `reserve` numbers for its output: as many bytes as that may have at most.
    /// None if the connection has no numbers left.
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

    /// Sends `data` to be turned into an output of at most `reserve` bytes (msk_request, 6.1): a
    /// stream that is written at once, and read as any other. Never blocks.
    pub fn request(&mut self, data: &[u8], reserve: u64) -> Option<u32> {
        let stream = self.begin(reserve)?;
        self.inputs.write(stream, data, usize::MAX);
        self.inputs.shutdown(stream);
        Some(stream)
    }

    /// Writes to a stream; how many bytes there was room for.
    pub fn write(&mut self, stream: u32, data: &[u8]) -> usize {
        self.inputs.write(stream, data, self.config.send_buffer)
    }

    /// Bytes that may be written to a stream now; 0 also where nothing is read any more.
    pub fn writable(&self, stream: u32) -> usize {
        self.inputs.room(stream, self.config.send_buffer)
    }

    /// Whether more may be written to a stream, now or later: it was not ended, and the server reads on.
    pub fn is_writing(&self, stream: u32) -> bool {
        self.inputs.is_writing(stream)
    }

    /// Whether there is such a stream: it was begun, and not forgotten.
    pub fn is_there(&self, stream: u32) -> bool {
        self.outputs.contains_key(&stream)
    }

    /// Whether all that was written has been consumed.
    pub fn is_flushed(&self, stream: u32) -> bool {
        self.inputs.is_flushed(stream)
    }

    /// Nothing more will be written to a stream.
    pub fn shutdown(&mut self, stream: u32) {
        self.inputs.shutdown(stream);
    }

    /// The next bytes of a stream's output, until None.
    pub fn read(&mut self, stream: u32) -> Option<Bytes> {
        let output = self.outputs.get_mut(&stream)?;
        let data = output.read();
        if data.is_some() {
            self.stale = true;
            self.inputs.keeps(stream, output.kept());
        }
        data
    }

    /// Bytes that are asked for, or have come, and are not read yet, all streams together.
    pub fn unread(&self) -> u64 {
        self.outputs.values().map(Output::unread).sum()
    }

    /// No more than so many are asked for from now on, up to [`Config::window`]; each stream may have 64 KiB all the
    /// same.
    pub fn narrow(&mut self, window: u64) {
        self.window = window.min(self.config.window);
    }

    /// How a stream stands; one that is not there is finished.
    pub fn state(&self, stream: u32) -> State {
        let Some(output) = self.outputs.get(&stream) else { return State::Finished };
        match (output.state(), self.failed.or_else(|| self.inputs.failure(stream))) {
            (State::Open, Some(failure)) => State::Failed(failure),
            (state, _) => state,
        }
    }

    /// The next stream of which something has changed since it was last named: there is something to
    /// read, or room to write, or it has ended.
    pub fn poll_changed(&mut self) -> Option<u32> {
        self.changed.pop_first()
    }

    /// Needs nothing more of a stream, and forgets it.
    pub fn forget(&mut self, stream: u32) {
        if let Some(output) = self.outputs.remove(&stream) {
            self.regions.remove(&output.region().start);
            self.client.unwant(output.region());
        }
        self.inputs.forget(stream);
        self.changed.remove(&stream);
        self.stale = true;
    }

    /// Tells the server with the next request that the connection is not needed any more. Nothing waits
    /// for an answer.
    pub fn close(&mut self) {
        let streams: Vec<u32> = self.outputs.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.forget(stream));
        self.inputs.close();
    }

    /// Whether the server has answered.
    pub fn is_open(&self) -> bool {
        self.client.is_open()
    }

    /// What the transport counts.
    pub fn stats(&self) -> client::Stats {
        self.client.stats()
    }

    /// For how long something is awaited of which nothing comes.
    pub fn waited(&self, now: Instant) -> Duration {
        now.since(self.heard.1)
    }

    /// How often the transport has begun anew since it was last answered.
    pub fn attempts(&self) -> u32 {
        self.client.attempts()
    }

    /// A message came.
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

    /// The next message to send, until None.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.failed.is_some() {
            return None;
        }
        if self.client.is_idle() {
            self.heard.1 = now;
        }
        self.ask();
        let message = self.client.poll_transmit(now, &mut self.inputs);
        while let Some((stream, parcel, range)) = self.inputs.poll_promised() {
            if let Some(output) = self.outputs.get_mut(&stream) {
                output.brings(range, Some(parcel), LEAST_SHARE);
            }
        }
        if message.is_none() && self.client.is_idle() && std::mem::take(&mut self.unsure) {
            self.give_up_missing();
        }
        message
    }

    /// The deadline of the earliest timer, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout().filter(|_| self.failed.is_none())
    }

    /// That deadline has passed.
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
            let least = client::LEAST_MESSAGE as u16;
            self.shorten(least, least, now);
        } else if self.client.attempts() >= PATIENCE {
            // Nothing at all came: that may have many reasons, and the first request tells a narrow way from others.
            self.reopen(now);
        }
    }

    /// The way takes messages of at most so many bytes, and first requests of at most `request`: if that is less
    /// than so far, a new connection takes the place of this one. No less than [`client::LEAST_MESSAGE`].
    pub fn shorten(&mut self, message: u16, request: u16, now: Instant) {
        let Config { message: longest, request: first, .. } = self.config;
        if message < longest || request < first.min(longest) {
            (self.config.message, self.config.request) = (message.min(longest), request.min(first));
            self.reopen(now);
        }
    }

    /// A new connection takes the place of one that is not answered: its secret may be gone, or its
    /// messages too long for the way. The application's continuations hold in the new one.
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

    /// The stream that has `position` in its region.
    fn stream_at(&self, position: u64) -> Option<u32> {
        let (_, &stream) = self.regions.range(..=position).next_back()?;
        self.outputs.get(&stream)?.region().contains(&position).then_some(stream)
    }

    /// How many bytes each stream may be asked for, and not be read.
    fn share(&self) -> u64 {
        let active = self.outputs.values().filter(|output| output.is_active()).count();
        (self.window / active.clamp(1, AT_A_TIME) as u64).max(LEAST_SHARE)
    }

    /// Wants what there is room for.
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
