//! Cache of open files and directory pages: soft state that saves system calls, and that may be
//! dropped at any time.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant, SystemTime};

use viaduct_proto::trickles::api::Files;
use viaduct_proto::web::{Found, Listing, Request, Site};

use super::files::{Root, Stamp, found};
use crate::access_log::{AccessLog, Entry};

/// Maximum number of open files, even if the descriptor limit allows more.
pub const MAX_FILES: usize = 256;
/// Interval at which all files are closed, so that deleted files do not occupy disk space; also the
/// maximum age of a page.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Time for which the lookup of a path is valid. Changes of the file itself are detected at each
/// use.
const LOOKUP_TTL: Duration = Duration::from_millis(500);
/// Maximum number of directories whose pages are cached.
const MAX_DIRECTORIES: usize = 64;
/// Maximum total size of cached pages in bytes. A single page may be larger.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// Path, and whether the request is for a directory.
type Key = (Vec<Vec<u8>>, bool);

/// Cached files and directory pages, for one thread of Trickles.
#[derive(Debug)]
pub struct FileCache {
    root: Root,
    max_files: usize,
    open: Vec<(File, Instant)>,
    by_path: HashMap<Key, usize>,
    pages: HashMap<Key, Page>,
    /// Time at which all files were last closed.
    closed_at: Instant,
    /// True if a lookup failed for lack of descriptors or memory.
    out_of_descriptors: bool,
    stats: FileCacheStats,
    log: AccessLog,
    client: Option<SocketAddr>,
    entries: Vec<Entry>,
}

/// Page of a directory, with the times of its generation and of the last check of its stamp.
#[derive(Debug)]
struct Page {
    listing: Listing,
    stamp: Option<Stamp>,
    made: Instant,
    checked_at: Instant,
}

/// Counters of a file cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileCacheStats {
    /// Number of lookups of files that were already open.
    pub hits: u64,
    /// Number of lookups of files that had to be opened.
    pub misses: u64,
}

impl FileCache {
    /// Creates an empty cache of at most `max_files` open files.
    pub fn new(root: Root, max_files: usize) -> FileCache {
        let (open, by_path, pages, stats) = Default::default();
        let (log, client, entries) = Default::default();
        let closed_at = Instant::now();
        let out_of_descriptors = false;
        FileCache {
            root,
            max_files,
            open,
            by_path,
            pages,
            closed_at,
            out_of_descriptors,
            stats,
            log,
            client,
            entries,
        }
    }

    /// Adds an access log, with an entry for each response that begins.
    pub fn with_log(self, log: AccessLog) -> FileCache {
        FileCache { log, ..self }
    }

    /// Sets the client of the next event, and drops log entries of an earlier attempt to handle the
    /// event.
    pub fn set_client(&mut self, client: SocketAddr) {
        self.client = Some(client);
        self.entries.clear();
    }

    /// Writes the log entries added since the client was set.
    pub fn write_log(&mut self) {
        self.entries.drain(..).for_each(|entry| self.log.write(entry));
    }

    /// Evicts files to make room. Must be called between events, because file numbers returned
    /// during an event are valid until the event ends.
    pub fn evict(&mut self) {
        if self.closed_at.elapsed() >= MAX_AGE {
            self.clear();
        } else if self.open.len() >= self.max_files {
            self.close();
        }
    }

    /// Closes all files, and drops all pages.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.close();
    }

    /// Closes all files. Pages that were checked recently are kept, so that a client that requests
    /// many files does not cause pages to be generated again.
    fn close(&mut self) {
        self.pages.retain(|_, page| page.checked_at.elapsed() < LOOKUP_TTL);
        self.open.clear();
        self.by_path.clear();
        self.closed_at = Instant::now();
    }

    /// Returns whether a lookup has failed for lack of descriptors or memory since the last call.
    pub fn was_out_of_descriptors(&mut self) -> bool {
        std::mem::take(&mut self.out_of_descriptors)
    }

    /// Counters of the cache.
    pub fn stats(&self) -> FileCacheStats {
        self.stats
    }

    fn find_at(&mut self, request: &Request, now: Instant) -> (Found, u64) {
        let key = (request.path.clone(), request.directory);
        if let Some(listing) = self.page(&key, request, now) {
            return (Found::Directory(listing), 0);
        }
        if let Some(&at) = self.by_path.get(&key)
            && let Some((file, since)) = self.open.get(at)
            && now.duration_since(*since) < LOOKUP_TTL
            && let Some(found) = found(file)
        {
            self.stats.hits += 1;
            return (found, at as u64);
        }
        // The stamp is read before the directory, so that the next check detects a change in
        // between.
        let stamp = if request.directory { self.root.stamp(request) } else { None };
        let Ok((found, file)) = self.root.find(request) else {
            self.out_of_descriptors = true;
            return (Found::Unavailable, 0);
        };
        if let Found::Directory(listing) = &found {
            self.insert_page(
                key,
                Page { listing: listing.clone(), stamp, made: now, checked_at: now },
            );
            return (found, 0);
        }
        let Some(file) = file else { return (found, 0) };
        self.stats.misses += 1;
        // An older descriptor of the same path stays open, because it may be in use until this
        // event ends.
        let at = self.open.len();
        self.by_path.insert(key, at);
        self.open.push((file, now));
        (found, at as u64)
    }

    /// Cached page of a directory, if it is valid.
    fn page(&mut self, key: &Key, request: &Request, now: Instant) -> Option<Listing> {
        let page = self.pages.get_mut(key)?;
        if now.duration_since(page.checked_at) >= LOOKUP_TTL {
            // A directory may have changed although its stamp is unchanged, so pages have a maximum
            // age.
            let lasts = now.duration_since(page.made) < MAX_AGE;
            let stamp = page.stamp.filter(|_| lasts)?;
            (self.root.stamp(request)? == stamp).then_some(())?;
            page.checked_at = now;
        }
        Some(page.listing.clone())
    }

    fn insert_page(&mut self, key: Key, page: Page) {
        self.pages.retain(|_, kept| page.made.duration_since(kept.checked_at) < LOOKUP_TTL);
        let held: usize = self.pages.values().map(|page| page.listing.page().len()).sum();
        if self.pages.len() >= MAX_DIRECTORIES || held + page.listing.page().len() > MAX_PAGE_BYTES
        {
            self.pages.clear();
        }
        self.pages.insert(key, page);
    }
}

impl Site for FileCache {
    fn find(&mut self, request: &Request) -> (Found, u64) {
        self.find_at(request, Instant::now())
    }

    fn has_log(&self) -> bool {
        self.log.is_on()
    }

    fn log(&mut self, line: String, status: u16, bytes: u64) {
        let Some(client) = self.client else { return };
        self.entries.push(Entry {
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

impl Files for FileCache {
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
    fn a_directory_is_read_once_while_its_page_is_valid_and_few_pages_are_kept() {
        let at = std::env::temp_dir().join(format!("viaduct-file-cache-{}", std::process::id()));
        (0..=MAX_DIRECTORIES).for_each(|n| fs::create_dir_all(at.join(n.to_string())).unwrap());
        fs::write(at.join("0/old"), "").unwrap();
        let mut cache = FileCache::new(Root::open(&at, 10).unwrap(), 1);
        let start = Instant::now();
        let mut page = |path: &str, after: Duration| {
            let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            let (request, _) = Request::parse(text.as_bytes()).unwrap().unwrap();
            let (found, _) = cache.find_at(&request, start + after);
            let Found::Directory(listing) = found else { panic!("{found:?}") };
            (listing.page().clone(), cache.pages.len())
        };
        let of = |path: &str, names: &[&str]| {
            let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            Listing::new(&[path.as_bytes().to_vec()], names, false).page().clone()
        };
        let first = page("/0/", Duration::ZERO).0;
        assert_eq!(first, of("0", &["old"]));
        for part in 0..100 {
            // The page stays valid for longer than `LOOKUP_TTL`, because the directory has not
            // changed.
            let again = page("/0/", 2 * LOOKUP_TTL * part / 100).0;
            assert_eq!(again.as_ptr(), first.as_ptr(), "the page was made again");
        }
        let last = fs::metadata(at.join("0")).unwrap().modified().unwrap();
        // The kernel's clock advances in ticks.
        while fs::metadata(at.join("0")).unwrap().modified().unwrap() == last {
            fs::write(at.join("0/new"), "").unwrap();
            fs::rename(at.join("0/new"), at.join("0/newer")).unwrap();
        }
        let now = 2 * LOOKUP_TTL;
        assert_eq!(page("/0/", now * 99 / 100).0, first, "the page was checked a moment ago");
        assert_eq!(page("/0/", now).0, of("0", &["newer", "old"]));
        let first = page("/0/", now).0;
        for halves in 0..10 {
            let again = page("/0/", now + halves * LOOKUP_TTL).0;
            assert_eq!(again.as_ptr(), first.as_ptr(), "the page was made again");
        }
        let now = now + MAX_AGE;
        assert_ne!(page("/0/", now).0.as_ptr(), first.as_ptr(), "the page was not made again");
        for n in 1..=MAX_DIRECTORIES {
            let (page, kept) = page(&format!("/{n}/"), now);
            assert!(page == of(&n.to_string(), &[]) && kept <= MAX_DIRECTORIES, "{page:?}, {kept}");
        }
        for n in 0..10_u8 {
            // Each name occurs twice in its line of the page.
            let many = Listing::new(&[], vec![b"x".repeat(1_000); MAX_PAGE_BYTES / 6_000], false);
            let (made, checked_at) = (start + now, start + now);
            let page = Page { listing: many, stamp: None, made, checked_at };
            cache.insert_page((vec![vec![n]], true), page);
            let held: usize = cache.pages.values().map(|page| page.listing.page().len()).sum();
            assert!(held <= MAX_PAGE_BYTES && cache.pages.len() <= 3, "{held}");
        }
        let kept = cache.pages.len();
        cache.open.push((File::open(&at).unwrap(), start));
        cache.evict();
        assert_eq!((cache.open.len(), cache.pages.len()), (0, kept), "files are closed, pages not");
        fs::remove_dir_all(&at).unwrap();
    }
}
