//! Files that are open, and names of directories: soft state, which is there to save system calls, and dropped
//! at will.

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
/// Most directories whose names are kept.
const DIRECTORIES: usize = 64;
/// Most bytes of their names; a single directory may have more.
const NAMES: usize = 4 << 20;

/// A path, and whether a directory is meant.
type Key = (Vec<String>, bool);

/// The files of a directory, as Trickles' answers need them.
#[derive(Debug)]
pub struct Shelf {
    root: Root,
    /// Most files that are open.
    most: usize,
    open: Vec<(File, Instant)>,
    by_path: HashMap<Key, usize>,
    /// Names in directories, and when they were read.
    names: HashMap<Key, (Vec<String>, Instant)>,
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
        let (open, by_path, names, stats) = Default::default();
        Shelf { root, most, open, by_path, names, closed: Instant::now(), starved: false, stats }
    }

    /// Makes room; numbers that were given before an event hold until its end.
    pub fn tidy(&mut self) {
        if self.open.len() >= self.most || self.closed.elapsed() >= LASTS {
            self.clear();
        }
    }

    /// Closes all files, and forgets all names.
    pub fn clear(&mut self) {
        self.names.clear();
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

    fn find_at(&mut self, request: &Request, now: Instant) -> (Found, u64) {
        let key = (request.path.clone(), request.directory);
        if let Some((names, since)) = self.names.get(&key)
            && now.duration_since(*since) < HOLDS
        {
            return (Found::Directory(names.clone()), 0);
        }
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
        if let Found::Directory(names) = &found {
            self.keep(key, names.clone(), now);
            return (found, 0);
        }
        let Some(file) = file else { return (found, 0) };
        self.stats.misses += 1;
        // One that was open before may be in use until this event ends.
        let at = self.open.len();
        self.by_path.insert(key, at);
        self.open.push((file, now));
        (found, at as u64)
    }

    fn keep(&mut self, key: Key, names: Vec<String>, now: Instant) {
        self.names.retain(|_, (_, since)| now.duration_since(*since) < HOLDS);
        let held: usize = self.names.values().map(|(names, _)| bytes(names)).sum();
        if self.names.len() >= DIRECTORIES || held + bytes(&names) > NAMES {
            self.names.clear();
        }
        self.names.insert(key, (names, now));
    }
}

/// Memory of names.
fn bytes(names: &[String]) -> usize {
    names.iter().map(|name| size_of::<String>() + name.len()).sum()
}

impl Site for Shelf {
    fn find(&mut self, request: &Request) -> (Found, u64) {
        self.find_at(request, Instant::now())
    }
}

impl Files for Shelf {
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool {
        let file = self.open.get(file as usize);
        file.is_some_and(|(file, _)| file.read_exact_at(out, offset).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_is_read_once_while_it_holds_and_few_are_kept() {
        let at = std::env::temp_dir().join(format!("viaduct-shelf-{}", std::process::id()));
        (0..=DIRECTORIES).for_each(|n| fs::create_dir_all(at.join(n.to_string())).unwrap());
        fs::write(at.join("0/old"), "").unwrap();
        let mut shelf = Shelf::new(Root::open(&at).unwrap(), 1);
        let start = Instant::now();
        let mut names = |path: &str, after: Duration| {
            let text = format!("GET {path} HTTP/1.1\r\n\r\n");
            let (request, _) = Request::parse(text.as_bytes()).unwrap().unwrap();
            let (found, _) = shelf.find_at(&request, start + after);
            let Found::Directory(mut names) = found else { panic!("{found:?}") };
            names.sort_unstable();
            (names, shelf.names.len())
        };
        assert_eq!(names("/0/", Duration::ZERO).0, ["old"]);
        fs::write(at.join("0/new"), "").unwrap();
        for part in 0..100 {
            assert_eq!(names("/0/", HOLDS * part / 100).0, ["old"], "it was read again");
        }
        assert_eq!(names("/0/", HOLDS).0, ["new", "old"]);
        for n in 1..=DIRECTORIES {
            let (names, kept) = names(&format!("/{n}/"), HOLDS);
            assert!(names.is_empty() && kept <= DIRECTORIES, "{names:?}, {kept}");
        }
        for n in 0..10_u8 {
            let many = vec![n.to_string().repeat(1_000); NAMES / 3_000];
            shelf.keep((vec![n.to_string()], true), many, start + HOLDS);
            let held: usize = shelf.names.values().map(|(names, _)| bytes(names)).sum();
            assert!(held <= NAMES && shelf.names.len() <= 3, "{held}");
        }
        fs::remove_dir_all(&at).unwrap();
    }
}
