//! Files and directory pages for the event loop of TCP, which never blocks on the disk.
//!
//! ```text
//!   connection ─ find ──▶ thread: Root::lookup ──▶ file, dir ──▶ Pages ──▶ thread: Root::list
//!             ─ read ──▶ the page cache (RWF_NOWAIT), or a thread
//! ```

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tokio::sync::Semaphore;
use viaduct_proto::web::{Found, Request};

use super::files::{Lookup, OutOfDescriptors, Root, Stamp};
use super::pages::{Lease, Pages};

/// Maximum number of bytes of a file that are read at a time.
pub const CHUNK: usize = 128 << 10;
const MAX_OPERATIONS: usize = 64;
/// Maximum number of directories listed concurrently.
const MAX_LISTINGS: usize = 2;

/// Disk access, shared by the tasks of one event loop.
#[derive(Debug)]
pub struct Disk {
    root: Arc<Root>,
    pages: Pages,
    operations: Arc<Semaphore>,
    listings: Semaphore,
    /// Buffer of the event loop for non-blocking reads.
    buffer: RefCell<Vec<u8>>,
}

/// Result of looking up a request's path.
#[derive(Debug)]
pub struct Answer {
    /// Object at the path.
    pub found: Found,
    /// The open file, if the object is a file.
    pub file: Option<Arc<File>>,
    /// Keeps the page counted in the memory of all pages while the page is being sent.
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
    /// Creates access to `root`. All pages together, including those being sent, use about
    /// `page_memory` bytes at most.
    pub fn new(root: Arc<Root>, page_memory: usize) -> Disk {
        Disk {
            root,
            pages: Pages::new(page_memory),
            operations: Arc::new(Semaphore::new(MAX_OPERATIONS)),
            listings: Semaphore::new(MAX_LISTINGS),
            buffer: RefCell::new(vec![0; CHUNK]),
        }
    }

    /// Directory pages, with the counters of their memory and of refused requests.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Looks up the path of a request.
    pub async fn find(&self, request: &Request) -> Answer {
        let (root, wanted) = (self.root.clone(), request.clone());
        match self.run_blocking(move || root.lookup(&wanted)).await {
            Some(Ok(Lookup::Found(found, file))) => {
                Answer { found, file: file.map(Arc::new), _lease: None }
            }
            Some(Ok(Lookup::Directory(stamp))) => self.page(request, stamp).await,
            Some(Err(OutOfDescriptors)) | None => Answer::without_file(Found::Unavailable),
        }
    }

    /// Returns the page of a directory: the cached page if it is valid. Otherwise one request
    /// generates the page, and concurrent requests wait for it.
    async fn page(&self, request: &Request, stamp: Stamp) -> Answer {
        let slot = self.pages.slot(&request.path);
        let mut kept = slot.lock().await;
        if let Some(page) = kept.as_ref().filter(|page| page.is_valid(stamp)) {
            return Answer::page(page.clone());
        }
        if !self.pages.make_room() {
            // An outdated page is still served if there is no memory for a new one.
            let old = kept.clone().map(Answer::page);
            return old.unwrap_or_else(|| {
                self.pages.count_refused();
                Answer::without_file(Found::Unavailable)
            });
        }
        let Ok(_permit) = self.listings.acquire().await else {
            return Answer::without_file(Found::Unavailable);
        };
        let (root, wanted) = (self.root.clone(), request.clone());
        match self.run_blocking(move || root.list(&wanted)).await {
            Some(Ok(Ok(listing))) => {
                let page = self.pages.lease(listing, stamp);
                *kept = Some(page.clone());
                Answer::page(page)
            }
            Some(Ok(Err(found))) => Answer::without_file(found),
            Some(Err(OutOfDescriptors)) | None => Answer::without_file(Found::Unavailable),
        }
    }

    /// Runs an operation on another thread; `None` if it panicked.
    async fn run_blocking<T: Send + 'static>(
        &self,
        operation: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let permit = self.operations.clone().acquire_owned().await.ok()?;
        let operation = move || {
            let done = operation();
            drop(permit);
            done
        };
        tokio::task::spawn_blocking(operation).await.ok()
    }

    /// Reads up to `most` bytes at `at`, and passes them to `write`, which returns the number of
    /// bytes written. Bytes in the kernel's page cache are read immediately, into a buffer that all
    /// connections share; other bytes are read by another thread. Errors: errors of the file, which
    /// may end before `at`, and errors of `write`.
    pub async fn read_with(
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
                // The bytes are not in the page cache, or the file system does not support
                // non-blocking reads.
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
            self.run_blocking(read).await.ok_or_else(|| io::Error::other("reading panicked"))??;
        write(full(&part)?)
    }
}

/// Returns an error if nothing was read, because the file has become shorter. The response's head
/// has announced the former length, so the connection must end.
fn full(part: &[u8]) -> io::Result<&[u8]> {
    if part.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(part) }
}
