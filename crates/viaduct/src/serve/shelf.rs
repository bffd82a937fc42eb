//! Files that are open, and pages of directories: soft state, which is there to save system calls, and dropped
//! at will.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant, SystemTime};

use viaduct_proto::trickles::api::Files;
use viaduct_proto::web::{Found, Listing, Request, Site};

use super::files::{Root, Stamp, found};
use crate::access_log::{AccessLog, Entry};

/// Most files that are open, however many may be.
pub const MOST: usize = 256;
/// All are closed this often, so that what was removed does not fill the disk.
const LASTS: Duration = Duration::from_secs(5);
/// What a path leads to is looked up this often at most; whether the file itself has changed, each time.
const HOLDS: Duration = Duration::from_millis(500);
/// Most directories whose pages are kept.
const DIRECTORIES: usize = 64;
/// Most bytes of these; a single directory's may have more.
const PAGES: usize = 16 << 20;

/// A path, and whether a directory is meant.
type Key = (Vec<Vec<u8>>, bool);

/// The files of a directory, as Trickles' answers need them.
#[derive(Debug)]
pub struct Shelf {
    root: Root,
    /// Most files that are open.
    most: usize,
    open: Vec<(File, Instant)>,
    by_path: HashMap<Key, usize>,
    pages: HashMap<Key, Page>,
    /// When all were closed.
    closed: Instant,
    /// Whether something was not found because nobody could look.
    starved: bool,
    stats: ShelfStats,
    log: AccessLog,
    /// Client of the present event.
    client: Option<SocketAddr>,
    /// Log entries of the present event.
    begun: Vec<Entry>,
}

/// A directory's page, and when it was made, and last looked at whether it holds.
#[derive(Debug)]
struct Page {
    listing: Listing,
    stamp: Option<Stamp>,
    made: Instant,
    seen: Instant,
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
        let (open, by_path, pages, stats) = Default::default();
        let (log, client, begun) = Default::default();
        let closed = Instant::now();
        let starved = false;
        Shelf { root, most, open, by_path, pages, closed, starved, stats, log, client, begun }
    }

    /// Has responses that begin logged.
    pub fn with_log(self, log: AccessLog) -> Shelf {
        Shelf { log, ..self }
    }

    /// Sets the client of the event that is answered next, and forgets what an earlier attempt noted for the log.
    pub fn set_client(&mut self, client: SocketAddr) {
        self.client = Some(client);
        self.begun.clear();
    }

    /// Writes what was noted for the log since the client was set.
    pub fn write_log(&mut self) {
        self.begun.drain(..).for_each(|entry| self.log.write(entry));
    }

    /// Makes room; numbers that were given before an event hold until its end.
    pub fn tidy(&mut self) {
        if self.closed.elapsed() >= LASTS {
            self.clear();
        } else if self.open.len() >= self.most {
            self.close();
        }
    }

    /// Closes all files, and forgets all pages.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.close();
    }

    /// Closes all files. Pages stay, for whoever asks for many files would have them made anew.
    fn close(&mut self) {
        self.pages.retain(|_, page| page.seen.elapsed() < HOLDS);
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
        if let Some(listing) = self.page(&key, request, now) {
            return (Found::Directory(listing), 0);
        }
        if let Some(&at) = self.by_path.get(&key)
            && let Some((file, since)) = self.open.get(at)
            && now.duration_since(*since) < HOLDS
            && let Some(found) = found(file)
        {
            self.stats.hits += 1;
            return (found, at as u64);
        }
        // Before it is read: what changes meanwhile is seen the next time.
        let stamp = if request.directory { self.root.stamp(request) } else { None };
        let Ok((found, file)) = self.root.find(request) else {
            self.starved = true;
            return (Found::Unavailable, 0);
        };
        if let Found::Directory(listing) = &found {
            self.keep(key, Page { listing: listing.clone(), stamp, made: now, seen: now });
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

    /// The page that is kept of a directory, if it holds.
    fn page(&mut self, key: &Key, request: &Request, now: Instant) -> Option<Listing> {
        let page = self.pages.get_mut(key)?;
        if now.duration_since(page.seen) >= HOLDS {
            // Stamps may deceive, but not for long.
            let lasts = now.duration_since(page.made) < LASTS;
            let stamp = page.stamp.filter(|_| lasts)?;
            (self.root.stamp(request)? == stamp).then_some(())?;
            page.seen = now;
        }
        Some(page.listing.clone())
    }

    fn keep(&mut self, key: Key, page: Page) {
        self.pages.retain(|_, kept| page.made.duration_since(kept.seen) < HOLDS);
        let held: usize = self.pages.values().map(|page| page.listing.page().len()).sum();
        if self.pages.len() >= DIRECTORIES || held + page.listing.page().len() > PAGES {
            self.pages.clear();
        }
        self.pages.insert(key, page);
    }
}

impl Site for Shelf {
    fn find(&mut self, request: &Request) -> (Found, u64) {
        self.find_at(request, Instant::now())
    }

    fn has_log(&self) -> bool {
        self.log.is_on()
    }

    fn log(&mut self, line: String, status: u16, bytes: u64) {
        let Some(client) = self.client else { return };
        self.begun.push(Entry {
            start: SystemTime::now(),
            duration: None,
            client,
            user: None,
            protocol: "trickles",
            request: line,
            status,
            sent: bytes,
            received: 0,
            reason: None,
        });
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
        let mut shelf = Shelf::new(Root::open(&at, 10).unwrap(), 1);
        let start = Instant::now();
        let mut page = |path: &str, after: Duration| {
            let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            let (request, _) = Request::parse(text.as_bytes()).unwrap().unwrap();
            let (found, _) = shelf.find_at(&request, start + after);
            let Found::Directory(listing) = found else { panic!("{found:?}") };
            (listing.page().clone(), shelf.pages.len())
        };
        let of = |path: &str, names: &[&str]| {
            let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            Listing::new(&[path.as_bytes().to_vec()], names, false).page().clone()
        };
        let first = page("/0/", Duration::ZERO).0;
        assert_eq!(first, of("0", &["old"]));
        for part in 0..100 {
            // Also beyond half a second, for nothing has changed.
            let again = page("/0/", 2 * HOLDS * part / 100).0;
            assert_eq!(again.as_ptr(), first.as_ptr(), "it was made again");
        }
        let last = fs::metadata(at.join("0")).unwrap().modified().unwrap();
        // The kernel's clock has ticks.
        while fs::metadata(at.join("0")).unwrap().modified().unwrap() == last {
            fs::write(at.join("0/new"), "").unwrap();
            fs::rename(at.join("0/new"), at.join("0/newer")).unwrap();
        }
        let now = 2 * HOLDS;
        assert_eq!(page("/0/", now * 99 / 100).0, first, "it was looked at a moment ago");
        assert_eq!(page("/0/", now).0, of("0", &["newer", "old"]));
        let first = page("/0/", now).0;
        for halves in 0..10 {
            let again = page("/0/", now + halves * HOLDS).0;
            assert_eq!(again.as_ptr(), first.as_ptr(), "it was made again");
        }
        let now = now + LASTS;
        assert_ne!(page("/0/", now).0.as_ptr(), first.as_ptr(), "it was never made again");
        for n in 1..=DIRECTORIES {
            let (page, kept) = page(&format!("/{n}/"), now);
            assert!(page == of(&n.to_string(), &[]) && kept <= DIRECTORIES, "{page:?}, {kept}");
        }
        for n in 0..10_u8 {
            // A name is in its line twice.
            let many = Listing::new(&[], vec![b"x".repeat(1_000); PAGES / 6_000], false);
            let (made, seen) = (start + now, start + now);
            let page = Page { listing: many, stamp: None, made, seen };
            shelf.keep((vec![vec![n]], true), page);
            let held: usize = shelf.pages.values().map(|page| page.listing.page().len()).sum();
            assert!(held <= PAGES && shelf.pages.len() <= 3, "{held}");
        }
        let kept = shelf.pages.len();
        shelf.open.push((File::open(&at).unwrap(), start));
        shelf.tidy();
        assert_eq!((shelf.open.len(), shelf.pages.len()), (0, kept), "files are closed, pages not");
        fs::remove_dir_all(&at).unwrap();
    }
}
