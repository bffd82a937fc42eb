//! Pipes that no flow uses now: an idle flow holds none.

use std::io;

use viaduct_sys::splice::Pipe;

/// Bytes that a pipe holds: what a fast flow has ready at once.
const ROOM: usize = 256 << 10;
/// Pipes kept for the next flow that has bytes.
const KEPT: usize = 64;

/// The pool.
#[derive(Debug, Default)]
pub struct Pipes {
    free: Vec<Pipe>,
}

impl Pipes {
    /// An empty pipe.
    pub fn take(&mut self) -> io::Result<Pipe> {
        self.free.pop().map_or_else(|| Pipe::new(ROOM), Ok)
    }

    /// Takes a pipe back. One that still holds bytes is closed: they belong to a flow that broke.
    pub fn give(&mut self, pipe: Pipe) {
        if pipe.held() == 0 && self.free.len() < KEPT {
            self.free.push(pipe);
        }
    }
}
