//! Cache of directory pages, with a memory limit that includes pages being sent.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use viaduct_proto::web::Listing;

use super::files::Stamp;

/// Time for which a page is used without a check for changes, so that a frequently changing
/// directory is not read for each request.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum age of a page. A directory's stamp may be the same after two changes within one tick of
/// the kernel's clock.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Maximum number of directories whose pages are cached.
const MAX_DIRECTORIES: usize = 256;

/// Slot of a directory's page, which is locked while the page is being generated.
pub type Slot = Rc<Mutex<Option<Lease>>>;

/// Directory pages by path.
#[derive(Debug)]
pub struct Pages {
    slots: RefCell<HashMap<Vec<Vec<u8>>, Slot>>,
    /// Size of all existing pages in bytes.
    bytes: Rc<Cell<usize>>,
    /// Limit of `bytes`, at which no further page is generated.
    max_bytes: usize,
    refused: Cell<u64>,
}

/// Page whose length counts towards the memory limit until the last copy of this lease is dropped.
#[derive(Clone, Debug)]
pub struct Lease(Rc<Page>);

#[derive(Debug)]
struct Page {
    listing: Listing,
    stamp: Stamp,
    made: Instant,
    bytes: Rc<Cell<usize>>,
}

impl Pages {
    /// Creates a cache of about `max_bytes` bytes. Pages that are being generated may exceed this
    /// limit.
    pub fn new(max_bytes: usize) -> Pages {
        Pages { slots: RefCell::default(), bytes: Rc::default(), max_bytes, refused: Cell::new(0) }
    }

    /// Bytes of all existing pages.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Number of requests refused for lack of memory.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Counts a refused request.
    pub fn count_refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    /// Slot of the page of the directory at `path`.
    pub fn slot(&self, path: &[Vec<u8>]) -> Slot {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= MAX_DIRECTORIES && !slots.contains_key(path) {
            evict(&mut slots);
        }
        slots.entry(path.to_vec()).or_default().clone()
    }

    /// Returns whether there is room for another page. If the limit is reached, pages that are not
    /// being sent are evicted first.
    pub fn make_room(&self) -> bool {
        if self.bytes.get() >= self.max_bytes {
            evict(&mut self.slots.borrow_mut());
        }
        self.bytes.get() < self.max_bytes
    }

    /// Counts the page of a directory with this stamp, and returns its lease.
    pub fn lease(&self, listing: Listing, stamp: Stamp) -> Lease {
        self.bytes.set(self.bytes.get() + listing.page().len());
        Lease(Rc::new(Page { listing, stamp, made: Instant::now(), bytes: self.bytes.clone() }))
    }
}

/// Evicts the slots that no request uses and whose pages are not being sent. Evicting other slots
/// would not free memory.
fn evict(slots: &mut HashMap<Vec<Vec<u8>>, Slot>) {
    let is_sent =
        |kept: &Option<Lease>| kept.as_ref().is_some_and(|page| Rc::strong_count(&page.0) > 1);
    slots.retain(|_, slot| {
        Rc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|kept| is_sent(&kept))
    });
}

impl Lease {
    /// Page of the directory.
    pub fn listing(&self) -> &Listing {
        &self.0.listing
    }

    /// Returns whether the page may be used for a directory that now has this stamp.
    pub fn is_valid(&self, stamp: Stamp) -> bool {
        let age = self.0.made.elapsed();
        age < CHECK_INTERVAL || age < MAX_AGE && self.0.stamp == stamp
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.bytes.set(self.bytes.get() - self.listing.page().len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(bytes: usize) -> Listing {
        // Each name occurs twice in its line of the page.
        Listing::new(&[], vec![vec![b'x'; bytes / 2]], false)
    }

    #[test]
    fn pages_that_are_being_sent_count_and_are_not_evicted() {
        let pages = Pages::new(10_000);
        let stamp = Stamp::default();
        let path = |n: u8| vec![vec![n]];
        let mut sent = Vec::new();
        for n in 0..3 {
            assert!(pages.make_room(), "{n}");
            let page = pages.lease(listing(4_000), stamp);
            pages.slot(&path(n)).try_lock().unwrap().replace(page.clone());
            sent.push(page);
        }
        assert!(pages.bytes() > 12_000 && !pages.make_room(), "{}", pages.bytes());
        assert!(!pages.make_room(), "evicting pages that are being sent frees no memory");
        sent.clear();
        assert!(pages.make_room() && pages.bytes() == 0, "{}", pages.bytes());
    }

    #[test]
    fn a_limited_number_of_directories_is_cached() {
        let pages = Pages::new(1 << 20);
        for n in 0..3 * MAX_DIRECTORIES {
            let page = pages.lease(listing(100), Stamp::default());
            pages.slot(&[n.to_string().into_bytes()]).try_lock().unwrap().replace(page);
            assert!(pages.slots.borrow().len() <= MAX_DIRECTORIES);
        }
        assert!(pages.bytes() < 400 * MAX_DIRECTORIES, "{}", pages.bytes());
    }
}
