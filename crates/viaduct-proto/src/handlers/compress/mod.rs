//! `compress`: compresses data by zstd, each direction separately (section 4.3 of the TESLA paper).
//!
//! ```text
//!   kind 1 | length 3 | bytes      plain: uncompressed data
//!                                  squeezed: the next bytes of the direction's zstd stream
//! ```
//!
//! A block holds at most 64 KiB of the flow, ends with a flush of zstd's encoder, and is delivered
//! incrementally. A block is sent when it is full, or by an immediate timer once the source has no
//! more data for now. After a block that did not shrink, an increasing number of blocks is sent
//! plain, until a trial block shrinks again.

mod expand;
mod squeeze;

use std::sync::Arc;

use bytes::Bytes;

use crate::flow::{
    About, Arguments, Context, FIRST, Factory, Failure, Half, Handler, Output, Timer,
};
use crate::time::Instant;
use expand::Expand;
use squeeze::Squeeze;

/// Maximum bytes of the flow in one block.
const MAX_PLAIN: usize = 64 << 10;
/// Bound on the expansion of incompressible data, in bytes.
const GROWTH: usize = 1 << 10;
/// Maximum bytes of a block on the wire.
const MAX_BLOCK: usize = MAX_PLAIN + GROWTH;
/// Window of zstd: both ends keep 2^18 bytes of each direction.
const WINDOW_LOG: u32 = 18;
const HEAD: usize = 4;
const PLAIN: u8 = 0;
const SQUEEZED: u8 = 1;

const DEFAULT_LEVEL: i32 = 3;
const FLUSH: Timer = Timer(0);
const EXPAND: Timer = Timer(1);

struct CompressFactory {
    level: i32,
}

struct Compress {
    squeeze: Squeeze,
    expand: Expand,
    /// Time of the last delivery, and the number of bytes delivered at that time, which is limited.
    /// Otherwise, if the flow below passed many pieces at once, up to a block of each would be
    /// delivered before upstream can stop this handler.
    delivered: (Instant, usize),
    /// True if the flow below has ended; reported after the data.
    ended: bool,
    /// Failure of the flow below; reported after the data.
    broke: Option<Failure>,
    /// True if the flow was aborted, or its end or failure was reported.
    over: bool,
}

pub(super) fn about() -> About {
    About::new("compress", "compresses the flow's bytes")
        .setting("level", "1-15", "compression level of zstd; 3 by default")
        .both_ends()
}

pub(super) fn build(arguments: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    let level = |text: &str| text.parse().ok().filter(|level| (1..=15).contains(level));
    let level = arguments.take("level", "a number from 1 to 15", level)?;
    Ok(Arc::new(CompressFactory { level: level.unwrap_or(DEFAULT_LEVEL) }))
}

impl Factory for CompressFactory {
    fn name(&self) -> &'static str {
        "compress"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        let (squeeze, expand) = (Squeeze::new(self.level), Expand::default());
        let delivered = (Instant::ZERO, 0);
        Box::new(Compress { squeeze, expand, delivered, ended: false, broke: None, over: false })
    }
}

impl Compress {
    /// Sends waiting data in blocks, until at most `keep` bytes are left.
    fn flush(&mut self, cx: &mut Context<'_>, keep: usize) {
        while self.squeeze.waits.len() > keep {
            match self.squeeze.block() {
                // If the flow below accepts no more data, it reports that upstream itself.
                Ok(pieces) => {
                    for piece in pieces {
                        let _ = cx.output(FIRST).write(piece);
                    }
                }
                Err(error) => return self.refuse(cx, &error),
            }
        }
    }

    /// Delivers at most about one block's bytes at one instant, and sets a timer for the rest.
    fn deliver(&mut self, cx: &mut Context<'_>) {
        if self.delivered.0 != cx.now() {
            self.delivered = (cx.now(), 0);
        }
        while self.expand.is_open && self.delivered.1 < MAX_PLAIN {
            match self.expand.next() {
                Ok(Some(data)) => {
                    self.delivered.1 += data.len();
                    let _ = cx.upstream().avail(data);
                }
                Ok(None) => break,
                Err(why) => return self.refuse(cx, &why),
            }
        }
        if let Some(may) = self.expand.steer() {
            cx.output(FIRST).may_avail(may);
        }
        let more = self.expand.is_open && self.delivered.1 >= MAX_PLAIN;
        cx.set_timer(EXPAND, more.then_some(cx.now()));
        if !more && self.expand.is_open && !self.over {
            self.tell_end(cx);
        }
    }

    /// Delivers the end or the failure, if any, after all data was delivered.
    fn tell_end(&mut self, cx: &mut Context<'_>) {
        match (self.broke, self.ended) {
            (Some(why), _) => {
                self.over = true;
                cx.upstream().failed(why);
            }
            (None, true) if self.expand.is_between() => {
                self.over = true;
                cx.upstream().finished();
            }
            (None, true) => self.refuse(cx, &"the flow ended inside a block"),
            (None, false) => {}
        }
    }

    /// Aborts the flow, and logs the reason.
    fn refuse(&mut self, cx: &mut Context<'_>, why: &dyn std::fmt::Display) {
        self.over = true;
        cx.say(why);
        cx.unplumb(FIRST);
        cx.upstream().failed(Failure::Reset);
    }
}

impl Handler for Compress {
    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        self.squeeze.waits.push(data);
        self.flush(cx, MAX_PLAIN - 1);
        let waits = !self.squeeze.waits.is_empty();
        cx.set_timer(FLUSH, waits.then_some(cx.now()));
        true
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        if half == Half::Write {
            self.flush(cx, 0);
        }
        cx.output(FIRST).shutdown(half);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.flush(cx, 0);
        cx.output(FIRST).close();
    }

    fn abort(&mut self, cx: &mut Context<'_>) {
        self.flush(cx, 0);
        cx.output(FIRST).abort();
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        if !self.over {
            self.expand.push(data);
            self.deliver(cx);
        }
        !self.over
    }

    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        self.expand.is_open = may;
        self.deliver(cx);
    }

    fn finished(&mut self, cx: &mut Context<'_>, _from: Output) {
        self.ended = true;
        self.deliver(cx);
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        self.broke = Some(why);
        self.deliver(cx);
    }

    fn timeout(&mut self, cx: &mut Context<'_>, timer: Timer) {
        match timer {
            FLUSH => self.flush(cx, 0),
            // By now upstream has handled the data delivered before.
            _ => {
                self.delivered.1 = 0;
                self.deliver(cx);
            }
        }
    }
}
