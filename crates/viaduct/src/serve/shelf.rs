//! Files that are open: soft state, which is there to save system calls, and dropped at will.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use viaduct_proto::trickles::api::Files;
use viaduct_proto::web::{Found, Request, Site};

use super::files::{Root, found};

/// Most files that are open, however many may be.
pub const MOST: usize = 256;
/// All are closed this often, so that what was removed does not fill the disk.
const LASTS: Duration = Duration::from_secs(5);
/// What a path leads to is looked up this often at most; whether the file itself has changed, each time.
const HOLDS: Duration = Duration::from_millis(500);

/// The files of a directory, as Trickles' answers need them.
#[derive(Debug)]
pub struct Shelf {
    root: Root,
    /// Most files that are open.
    most: usize,
    open: Vec<(File, Instant)>,
    by_path: HashMap<(Vec<String>, bool), usize>,
    /// When all were closed.
    closed: Instant,
    /// Whether something was not found because nobody could look.
    starved: bool,
    stats: ShelfStats,
}

/// What a shelf counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShelfStats {
    /// Files that were open already.
    pub hits: u64,
    /// Files that had to be opened.
    pub misses: u64,
}

impl Shelf {
    /// Nothing is open yet, and no more than `most` files will be.
    pub fn new(root: Root, most: usize) -> Shelf {
        let (open, by_path, stats) = Default::default();
        Shelf { root, most, open, by_path, closed: Instant::now(), starved: false, stats }
    }

    /// Makes room; numbers that were given before an event hold until its end.
    pub fn tidy(&mut self) {
        if self.open.len() >= self.most || self.closed.elapsed() >= LASTS {
            self.clear();
        }
    }

    /// Closes all files.
    pub fn clear(&mut self) {
        self.open.clear();
        self.by_path.clear();
        self.closed = Instant::now();
    }

    /// Whether since this was last asked something was not found because no descriptor or memory was left.
    pub fn was_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Its counters.
    pub fn stats(&self) -> ShelfStats {
        self.stats
    }
}

impl Site for Shelf {
    fn find(&mut self, request: &Request) -> (Found, u64) {
        let key = (request.path.clone(), request.directory);
        let now = Instant::now();
        if let Some(&at) = self.by_path.get(&key)
            && let Some((file, since)) = self.open.get(at)
            && now.duration_since(*since) < HOLDS
            && let Some(found) = found(file)
        {
            self.stats.hits += 1;
            return (found, at as u64);
        }
        let Ok((found, file)) = self.root.find(request) else {
            self.starved = true;
            return (Found::Unavailable, 0);
        };
        let Some(file) = file else { return (found, 0) };
        self.stats.misses += 1;
        // One that was open before may be in use until this event ends.
        let at = self.open.len();
        self.by_path.insert(key, at);
        self.open.push((file, now));
        (found, at as u64)
    }
}

impl Files for Shelf {
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool {
        let file = self.open.get(file as usize);
        file.is_some_and(|(file, _)| file.read_exact_at(out, offset).is_ok())
    }
}
