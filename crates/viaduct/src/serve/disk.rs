//! Files and pages for TCP's loop, which never waits for a disk.
//!
//! ```text
//!   connection ── find ──▶ a thread: Root::look ──▶ file, or a directory ──▶ Pages ──▶ a thread: Root::list
//!              ── read ──▶ the page cache (RWF_NOWAIT), or a thread
//! ```

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::sync::Semaphore;
use viaduct_proto::web::{Found, Request};

use super::files::{Looked, Root, Stamp, Starved};
use super::pages::{Lease, Pages};

/// Bytes of a file that are read at a time.
pub const CHUNK: usize = 128 << 10;
/// Disk operations at a time.
const MAX_OPERATIONS: usize = 64;
/// Directories that are listed at a time.
const MAX_LISTINGS: usize = 2;

/// The disk, as the tasks of one loop share it.
#[derive(Debug)]
pub struct Disk {
    root: Arc<Root>,
    pages: Pages,
    operations: Arc<Semaphore>,
    listings: Semaphore,
    /// The loop's one buffer of what is read without waiting.
    buffer: RefCell<Vec<u8>>,
}

/// Outcome of a look at a request's path.
#[derive(Debug)]
pub struct Answer {
    /// What is there.
    pub found: Found,
    /// The file, if it is one.
    pub file: Option<Arc<File>>,
    /// Counts the page against the memory of all pages as long as it is being sent.
    _lease: Option<Lease>,
}

impl Answer {
    fn without_file(found: Found) -> Answer {
        Answer { found, file: None, _lease: None }
    }

    fn page(lease: Lease) -> Answer {
        Answer { found: Found::Directory(lease.listing().clone()), file: None, _lease: Some(lease) }
    }
}

impl Disk {
    /// Pages take at most about `page_memory` bytes together, those that are being sent included.
    pub fn new(root: Arc<Root>, page_memory: usize) -> Disk {
        Disk {
            root,
            pages: Pages::new(page_memory),
            operations: Arc::new(Semaphore::new(MAX_OPERATIONS)),
            listings: Semaphore::new(MAX_LISTINGS),
            buffer: RefCell::new(vec![0; CHUNK]),
        }
    }

    /// Directory pages' memory now, in bytes, and requests refused for want of it so far.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Looks up what a request asks for.
    pub async fn find(&self, request: &Request) -> Answer {
        let (root, wanted) = (self.root.clone(), request.clone());
        match self.operate(move || root.look(&wanted)).await {
            Some(Ok(Looked::Found(found, file))) => {
                Answer { found, file: file.map(Arc::new), _lease: None }
            }
            Some(Ok(Looked::Directory(stamp))) => self.page(request, stamp).await,
            Some(Err(Starved)) | None => Answer::without_file(Found::Unavailable),
        }
    }

    /// The page of a directory: the one that is kept if it holds; else one request makes it, and the others wait.
    async fn page(&self, request: &Request, stamp: Stamp) -> Answer {
        let slot = self.pages.slot(&request.path);
        let mut kept = slot.lock().await;
        if let Some(page) = kept.as_ref().filter(|page| page.holds(stamp)) {
            return Answer::page(page.clone());
        }
        if !self.pages.make_room() {
            // An old page is better than none.
            let old = kept.clone().map(Answer::page);
            return old.unwrap_or_else(|| {
                self.pages.count_refused();
                Answer::without_file(Found::Unavailable)
            });
        }
        let Ok(_turn) = self.listings.acquire().await else {
            return Answer::without_file(Found::Unavailable);
        };
        let (root, wanted) = (self.root.clone(), request.clone());
        match self.operate(move || root.list(&wanted)).await {
            Some(Ok(Ok(listing))) => {
                let page = self.pages.lease(listing, stamp);
                *kept = Some(page.clone());
                Answer::page(page)
            }
            Some(Ok(Err(found))) => Answer::without_file(found),
            Some(Err(Starved)) | None => Answer::without_file(Found::Unavailable),
        }
    }

    /// Runs an operation on a thread; `None` if it panicked.
    async fn operate<T: Send + 'static>(
        &self,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = self.operations.clone().acquire_owned().await.ok()?;
        let operation = move || {
            let done = operation();
            drop(place);
            done
        };
        tokio::task::spawn_blocking(operation).await.ok()
    }

    /// Reads up to `most` bytes at `at` and hands them to `write`, which says how many it has taken. Bytes that the kernel
    /// has in memory are read at once, into a buffer that all connections share; others by a thread.
    ///
    /// # Errors
    /// Those of the file, which may end before `at`, and of `write`.
    pub async fn pass(
        &self,
        file: &Arc<File>,
        at: u64,
        most: usize,
        write: impl Fn(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let most = most.min(CHUNK);
        let known = {
            let mut buffer = self.buffer.borrow_mut();
            let part = &mut buffer[..most];
            match preadv2(&**file, &mut [IoSliceMut::new(part)], at, ReadWriteFlags::NOWAIT) {
                Ok(read) => Some(write(full(&part[..read])?)),
                // Not in memory, or a file system that cannot tell.
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => None,
                Err(error) => return Err(error.into()),
            }
        };
        if let Some(written) = known {
            return written;
        }
        let file = file.clone();
        let read = move || {
            let mut part = vec![0; most];
            let read = file.read_at(&mut part, at)?;
            part.truncate(read);
            Ok::<_, io::Error>(part)
        };
        let part =
            self.operate(read).await.ok_or_else(|| io::Error::other("reading panicked"))??;
        write(full(&part)?)
    }
}

/// A file that got shorter: its length was promised, so the connection ends.
fn full(part: &[u8]) -> io::Result<&[u8]> {
    if part.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(part) }
}
