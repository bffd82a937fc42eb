//! Pool of pipes that flows share: an idle flow has none.

use viaduct_sys::socket::splice::Pipe;

use crate::rate_limited::RateLimitedLog;

/// Rate-limited warning about pipes that cannot be created.
static OUT_OF_PIPES: RateLimitedLog<()> = RateLimitedLog::new(1);

/// Capacity of a large pipe, in bytes. With it, a fast flow needs fewer calls and fewer short
/// segments per byte.
const LARGE_PIPE: usize = 1 << 20;
/// Maximum number of large pipes of a proxy: half of what the kernel grants a user
/// (`fs.pipe-user-pages-soft`). Beyond the kernel's limit new pipes have the smallest size.
const MAX_LARGE_PIPES: usize = 32;
/// Capacity of the other pipes, in bytes.
const SMALL_PIPE: usize = 256 << 10;
/// Maximum number of free pipes that are kept.
const MAX_FREE: usize = 64;

/// Pool of an event loop.
#[derive(Debug)]
pub struct Pipes {
    free: Vec<Pipe>,
    /// Maximum number of large pipes.
    max_large: usize,
    /// Current number of large pipes, in flows or in the pool.
    large: usize,
}

impl Pipes {
    /// Returns an empty pool for one of `loops` event loops.
    pub fn new(loops: u32) -> Pipes {
        Pipes { free: Vec::new(), max_large: MAX_LARGE_PIPES / loops as usize, large: 0 }
    }

    /// Takes an empty pipe. `None` if none is free and none can be created, which is logged.
    pub fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.free.pop() {
            return Some(pipe);
        }
        let pipe = Pipe::new(if self.large < self.max_large { LARGE_PIPE } else { SMALL_PIPE });
        let pipe = pipe
            .inspect_err(|error| {
                let what = "some flows wait: raise ulimit -n or LimitNOFILE=, or lower --flows";
                OUT_OF_PIPES.warn((), format_args!("cannot create a pipe ({error}); {what}"));
            })
            .ok()?;
        self.large += usize::from(is_large(&pipe));
        Some(pipe)
    }

    /// Counts a pipe that another process has filled.
    pub fn adopt(&mut self, pipe: &Pipe) {
        self.large += usize::from(is_large(pipe));
    }

    /// Takes a pipe back. A pipe that still holds bytes, of a flow that broke, is closed.
    pub fn give(&mut self, pipe: Pipe) {
        if pipe.held() == 0 && self.free.len() < MAX_FREE {
            self.free.push(pipe);
        } else {
            self.large -= usize::from(is_large(&pipe));
        }
    }
}

fn is_large(pipe: &Pipe) -> bool {
    pipe.room() >= LARGE_PIPE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pipes_are_few_and_pipes_come_back() {
        let mut pipes = Pipes::new(1);
        let taken: Vec<_> = (0..MAX_LARGE_PIPES + 2).map(|_| pipes.take().unwrap()).collect();
        let large = taken.iter().filter(|pipe| is_large(pipe)).count();
        assert!(large <= MAX_LARGE_PIPES && large == pipes.large);
        assert!(!is_large(&taken[MAX_LARGE_PIPES + 1]));
        taken.into_iter().for_each(|pipe| pipes.give(pipe));
        assert_eq!(pipes.free.len(), MAX_LARGE_PIPES + 2);
        assert_eq!(pipes.large, large, "large pipes are kept");
    }
}
