//! Work in several threads at the same time.

use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Error, Result};

/// Runs `work` on all items at the same time, each in a thread of its own; returns the results in
/// the order of the items.
pub(super) fn parallel<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let work = &work;
        let start = |item| scope.spawn(move || work(item));
        let threads: Vec<_> = items.into_iter().map(start).collect();
        threads.into_iter().map(join).collect()
    })
}

/// Waits for a thread and returns its result.
pub(super) fn join<R, E: Into<Error>>(thread: ScopedJoinHandle<'_, Result<R, E>>) -> Result<R> {
    let ended = thread.join().ok().context("a thread panicked; see its message above")?;
    ended.map_err(Into::into)
}
