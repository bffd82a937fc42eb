//! Files that are open: soft state, which is there to save system calls, and dropped at will.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use viaduct_proto::trickles::api::Files;
use viaduct_proto::web::{Found, Request, Site};

use super::files::{Root, found};

/// Most files that are open.
const MOST: usize = 256;
/// What a path leads to is looked up this often at most; whether the file itself has changed, each time.
const HOLDS: Duration = Duration::from_millis(500);

/// The files of a directory, as Trickles' answers need them.
#[derive(Debug)]
pub struct Shelf {
    root: Root,
    open: Vec<(File, Instant)>,
    by_path: HashMap<(Vec<String>, bool), usize>,
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
    /// Nothing is open yet.
    pub fn new(root: Root) -> Shelf {
        Shelf { root, open: Vec::new(), by_path: HashMap::new(), stats: ShelfStats::default() }
    }

    /// Makes room; numbers that were given before an event hold until its end.
    pub fn tidy(&mut self) {
        if self.open.len() >= MOST {
            self.open.clear();
            self.by_path.clear();
        }
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
        let (found, file) = self.root.find(request);
        let Some(file) = file else { return (found, 0) };
        self.stats.misses += 1;
        let at = match self.by_path.get(&key) {
            Some(&at) => at,
            None => self.open.len(),
        };
        self.by_path.insert(key, at);
        if at < self.open.len() {
            self.open[at] = (file, now);
        } else {
            self.open.push((file, now));
        }
        (found, at as u64)
    }
}

impl Files for Shelf {
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool {
        let file = self.open.get(file as usize);
        file.is_some_and(|(file, _)| file.read_exact_at(out, offset).is_ok())
    }
}
