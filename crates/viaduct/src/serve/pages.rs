//! Pages of directories, kept within a bound of memory that counts those that are being sent, too.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use viaduct_proto::web::Listing;

use super::files::Stamp;

/// Time for which a page is given without regard to changes, so that a directory that changes all the time is not read
/// all the time.
const HOLDS: Duration = Duration::from_millis(500);
/// Time after which a page is made anew: two changes of one tick of the kernel's clock look alike.
const LASTS: Duration = Duration::from_secs(5);
/// Directories whose pages are kept, at most.
const MAX_DIRECTORIES: usize = 256;

/// Place of a directory's page. It is locked while the page is being made.
pub type Slot = Rc<Mutex<Option<Lease>>>;

/// Pages by the directory's path.
#[derive(Debug)]
pub struct Pages {
    slots: RefCell<HashMap<Vec<Vec<u8>>, Slot>>,
    /// Bytes of all pages that exist.
    held: Rc<Cell<usize>>,
    /// Bound of `held`: no page is made when it is reached.
    most: usize,
    refused: Cell<u64>,
}

/// A page that exists, and is counted until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub struct Lease(Rc<Page>);

#[derive(Debug)]
struct Page {
    listing: Listing,
    stamp: Stamp,
    made: Instant,
    held: Rc<Cell<usize>>,
}

impl Pages {
    /// No pages, and at most about `most` bytes of them: it may be exceeded by those that are made at the same time.
    pub fn new(most: usize) -> Pages {
        Pages { slots: RefCell::default(), held: Rc::default(), most, refused: Cell::new(0) }
    }

    /// Bytes of all pages that exist.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// Requests that had no page for want of memory.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Counts one.
    pub fn count_refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    /// The place of the page of the directory at `path`.
    pub fn slot(&self, path: &[Vec<u8>]) -> Slot {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= MAX_DIRECTORIES && !slots.contains_key(path) {
            evict(&mut slots);
        }
        slots.entry(path.to_vec()).or_default().clone()
    }

    /// Whether there is room for one more page; forgets those that nobody is being sent if there is none.
    pub fn make_room(&self) -> bool {
        if self.held.get() >= self.most {
            evict(&mut self.slots.borrow_mut());
        }
        self.held.get() < self.most
    }

    /// Counts a page that was made of a directory with this stamp.
    pub fn lease(&self, listing: Listing, stamp: Stamp) -> Lease {
        self.held.set(self.held.get() + listing.page().len());
        Lease(Rc::new(Page { listing, stamp, made: Instant::now(), held: self.held.clone() }))
    }
}

/// Forgets the places that no request is using, and whose pages are not being sent: others would give no memory back.
fn evict(slots: &mut HashMap<Vec<Vec<u8>>, Slot>) {
    let is_sent =
        |kept: &Option<Lease>| kept.as_ref().is_some_and(|page| Rc::strong_count(&page.0) > 1);
    slots.retain(|_, slot| {
        Rc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|kept| is_sent(&kept))
    });
}

impl Lease {
    /// The page.
    pub fn listing(&self) -> &Listing {
        &self.0.listing
    }

    /// Whether it may be given for a directory that has this stamp now.
    pub fn holds(&self, stamp: Stamp) -> bool {
        let age = self.0.made.elapsed();
        age < HOLDS || age < LASTS && self.0.stamp == stamp
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.held.set(self.held.get() - self.listing.page().len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(bytes: usize) -> Listing {
        // A name is in its line twice.
        Listing::new(&[], vec![vec![b'x'; bytes / 2]], false)
    }

    #[test]
    fn pages_that_are_being_sent_count_and_are_not_forgotten() {
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
        assert!(pages.held() > 12_000 && !pages.make_room(), "{}", pages.held());
        assert!(!pages.make_room(), "forgetting what is being sent gives nothing back");
        sent.clear();
        assert!(pages.make_room() && pages.held() == 0, "{}", pages.held());
    }

    #[test]
    fn few_directories_are_remembered() {
        let pages = Pages::new(1 << 20);
        for n in 0..3 * MAX_DIRECTORIES {
            let page = pages.lease(listing(100), Stamp::default());
            pages.slot(&[n.to_string().into_bytes()]).try_lock().unwrap().replace(page);
            assert!(pages.slots.borrow().len() <= MAX_DIRECTORIES);
        }
        assert!(pages.held() < 400 * MAX_DIRECTORIES, "{}", pages.held());
    }
}
