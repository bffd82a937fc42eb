//! `count`: passes all data on, and counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use crate::flow::datagrams::{Datagrams, Direction};
use crate::flow::{About, Arguments, Context, FIRST, Factory, Handler, Offload, Output};
use crate::time::Instant;

/// Totals over all flows of a chain.
#[derive(Debug, Default)]
struct Counters {
    flows: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
}

struct CountFactory(Arc<Counters>);

struct Count(Arc<Counters>);

/// Counts the datagrams between two ends as one flow.
struct CountDatagrams {
    counters: Arc<Counters>,
    begun: bool,
}

pub(super) fn about() -> About {
    About::new("count", "counts flows and their bytes; a control call returns the counters")
        .datagrams()
}

/// Makes the factory; there are no settings.
pub(super) fn build(_: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    Ok(Arc::new(CountFactory(Arc::default())))
}

impl Factory for CountFactory {
    fn name(&self) -> &'static str {
        "count"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        self.0.flows.fetch_add(1, Relaxed);
        Box::new(Count(self.0.clone()))
    }

    /// The kernel counts a socket's bytes itself (`TCP_INFO`).
    fn offload(&self) -> Option<Offload> {
        Some(Offload::default())
    }

    fn relayed(&self, begins: bool, [written, read]: [u64; 2]) {
        self.0.flows.fetch_add(begins.into(), Relaxed);
        self.0.written.fetch_add(written, Relaxed);
        self.0.read.fetch_add(read, Relaxed);
    }

    fn state(&self) -> Option<String> {
        Some(self.0.text())
    }

    fn datagrams(&self) -> Option<Box<dyn Datagrams + Send>> {
        Some(Box::new(CountDatagrams { counters: self.0.clone(), begun: false }))
    }
}

impl Datagrams for CountDatagrams {
    fn pass(&mut self, now: Instant, direction: Direction, bytes: usize) -> Option<Instant> {
        if !std::mem::replace(&mut self.begun, true) {
            self.counters.flows.fetch_add(1, Relaxed);
        }
        let counter = match direction {
            Direction::Out => &self.counters.written,
            Direction::Back => &self.counters.read,
        };
        counter.fetch_add(bytes as u64, Relaxed);
        Some(now)
    }
}

impl Handler for Count {
    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        self.0.written.fetch_add(data.len() as u64, Relaxed);
        cx.output(FIRST).write(data)
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        self.0.read.fetch_add(data.len() as u64, Relaxed);
        cx.upstream().avail(data)
    }

    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        if to != "count" {
            return cx.output(FIRST).control(to, request);
        }
        Some(self.0.text().into_bytes())
    }
}

impl Counters {
    fn text(&self) -> String {
        let [flows, written, read] =
            [&self.flows, &self.written, &self.read].map(|counter| counter.load(Relaxed));
        format!("flows {flows}\nwritten {written}\nread {read}\n")
    }
}
