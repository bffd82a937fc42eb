//! Transfer of epoll watches when another socket replaces a program's descriptor.
//!
//! An epoll instance identifies a watch by its file and the descriptor number under which the file
//! was added, and keeps watching that file when the number is given to another file. Each watch is
//! therefore moved, by a thread that has a private descriptor table, in which any number can be
//! used.
//!
//! ```text
//!   program's epoll ── watches 7: one file ──▶ fdinfo: events, data
//!                                               thread: 7 = one file,  epoll_ctl(DEL, 7)
//!                                                       7 = the other, epoll_ctl(ADD, 7, same)
//! ```
//!
//! A thread's descriptors are searched for epoll instances once, and again when the thread may have
//! created another instance.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::os;
use crate::seccomp::Task;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    events: u32,
    data: u64,
}

/// Number of epoll instances that programs have created or are creating, and the time when the last
/// of these calls was reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpollCount(u64, Option<Instant>);

/// Max time from the notification of a call that creates an instance to the call's end.
const CREATE_TIMEOUT: Duration = Duration::from_millis(100);

impl EpollCount {
    /// Counts the instance that a trapped call, which was just reported, is about to create.
    pub fn increment(&mut self) {
        *self = EpollCount(self.0 + 1, Some(Instant::now()));
    }

    /// Returns whether the call that creates the most recent instance must have ended by now.
    fn is_done(self) -> bool {
        self.1.is_none_or(|at| at.elapsed() > CREATE_TIMEOUT)
    }
}

/// Cache of a thread's epoll instances: their descriptor numbers, and the [`EpollCount`] at which
/// they were listed.
#[derive(Debug, Default)]
pub(crate) struct Epolls(Mutex<Option<(u64, Vec<i32>)>>);

impl Epolls {
    /// Returns the epoll instances of `thread`.
    fn of(&self, thread: u32, made: EpollCount) -> io::Result<Vec<i32>> {
        let is_epoll = |number: &i32| {
            let path = format!("/proc/{thread}/fd/{number}");
            fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, numbers)) = &*known
            && *count == made.0
            && numbers.iter().all(is_epoll)
        {
            return Ok(numbers.clone());
        }
        let open = fs::read_dir(format!("/proc/{thread}/fd"))?.flatten();
        let open = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let numbers: Vec<i32> = open.filter(is_epoll).collect();
        *known = made.is_done().then(|| (made.0, numbers.clone()));
        Ok(numbers)
    }
}

/// Moves the epoll watches on descriptor `fd` of `thread`, which `task` refers to, from the file of
/// `one` to the file of `other`. `made` counts the epoll instances created so far. Errors: the
/// thread has ended, or no descriptor is left.
pub fn move_watches(
    (task, thread): (&Task, u32),
    made: EpollCount,
    fd: i32,
    [one, other]: [BorrowedFd<'_>; 2],
) -> io::Result<()> {
    let inode = rustix::fs::fstat(one)?.st_ino;
    for number in task.epolls.of(thread, made)? {
        if !may_watch((thread, number), fd, one) {
            continue;
        }
        let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}"))?;
        let Some(watch) = info.lines().find_map(|line| parse(line, fd, inode)) else { continue };
        let epoll = task.duplicate(number)?;
        // Descriptors that the new thread closes are closed only in its private table.
        let replace = || replace(epoll.as_fd(), fd, [one, other], watch);
        let moved = thread::scope(|scope| scope.spawn(replace).join());
        moved.map_err(|_| io::Error::from(io::ErrorKind::Other))??;
    }
    Ok(())
}

/// Returns whether epoll instance `number` of a thread watches descriptor `fd` with the file of
/// `one`; also true if the kernel cannot tell (without `CONFIG_KCMP`). Cheaper than fdinfo, whose
/// length grows with the number of watches.
fn may_watch((thread, number): (u32, i32), fd: i32, one: BorrowedFd<'_>) -> bool {
    const KCMP_EPOLL_TFD: libc::c_int = 7;
    // `struct kcmp_epoll_slot`.
    let slot = [number, fd, 0];
    let file = one.as_raw_fd();
    let (own, at) = (std::process::id(), slot.as_ptr());
    // SAFETY: the kernel reads the slot, which lives through the call.
    match unsafe { libc::syscall(libc::SYS_kcmp, own, thread, KCMP_EPOLL_TFD, file, at) } {
        0 => true,
        -1 => io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT),
        _ => false,
    }
}

/// Parses a line such as `tfd: 7 events: 19 data: 7  pos:0 ino:2a sdev:8`, if it is about `fd` and
/// the file `inode`.
fn parse(line: &str, fd: i32, inode: u64) -> Option<Watch> {
    let mut words = line.split_whitespace();
    let mut after = |name: &str| match words.next()?.strip_prefix(name)? {
        "" => words.next(),
        word => Some(word),
    };
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let target: i32 = after("tfd:")?.parse().ok()?;
    let events = hex(after("events:")?)?;
    let data = hex(after("data:")?)?;
    after("pos:")?;
    let ino = hex(after("ino:")?)?;
    (target == fd && ino == inode).then_some(Watch { events: u32::try_from(events).ok()?, data })
}

/// Replaces the watched file. Unshares the descriptor table, so it must run in a thread of its own.
fn replace(
    epoll: BorrowedFd<'_>,
    fd: i32,
    [one, other]: [BorrowedFd<'_>; 2],
    watch: Watch,
) -> io::Result<()> {
    // SAFETY: the only flag is FILES: from now on this thread has a copy of the table, and it ends
    // with this function. Descriptors of other threads are not affected.
    unsafe { unshare_unsafe(UnshareFlags::FILES)? };
    // Duplicates with numbers above `fd`, so that none is overwritten below.
    let [epoll, one, other] = [epoll, one, other].map(|of| above(of, fd));
    let (epoll, one, other) = (epoll?, one?, other?);
    let mut event = libc::epoll_event { events: watch.events, u64: watch.data };
    for (file, operation) in [(&one, libc::EPOLL_CTL_DEL), (&other, libc::EPOLL_CTL_ADD)] {
        // SAFETY: the table is private to this thread, and no owner of the number uses it.
        let put = unsafe { libc::dup3(file.as_raw_fd(), fd, libc::O_CLOEXEC) };
        os::check(put.min(0))?;
        // SAFETY: the kernel reads the event, which lives through the call.
        os::check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) })?;
    }
    Ok(())
}

fn above(file: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes only numbers.
    let copy = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, fd + 1) };
    os::check(copy.min(0))?;
    // SAFETY: just opened; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;

    use rustix::event::epoll;

    use super::*;

    #[test]
    fn a_watch_is_parsed_from_a_line_of_fdinfo() {
        let line = "tfd:       11 events:       19 data:         deadbeef  pos:0 ino:2a sdev:8";
        assert_eq!(parse(line, 11, 42), Some(Watch { events: 0x19, data: 0xdead_beef }));
        assert_eq!(parse(line, 12, 42), None);
        assert_eq!(parse(line, 11, 43), None);
        assert_eq!(parse("flags:\t02", 11, 42), None);
    }

    #[test]
    fn watches_on_one_file_are_moved_to_the_other_file() {
        let ((one, mut at_one), (other, mut at_other)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let number = one.as_raw_fd();
        let data = epoll::EventData::new_u64(77);
        epoll::add(&epoll, &one, data, epoll::EventFlags::IN).unwrap();
        let own = std::process::id();
        let task = Task::open(own).unwrap();
        move_watches((&task, own), EpollCount::default(), number, [one.as_fd(), other.as_fd()])
            .unwrap();
        at_one.write_all(b"x").unwrap();
        let mut events = Vec::with_capacity(4);
        let no_time = rustix::event::Timespec::default();
        let mut ready = || {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&epoll, room, Some(&no_time)).unwrap();
            events.iter().map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(ready(), [0u64; 0]);
        at_other.write_all(b"x").unwrap();
        assert_eq!(ready(), [77]);
        // The move has left no descriptor behind: each pipe has its two ends.
        let ends = |file: &io::PipeReader| {
            let inode = rustix::fs::fstat(file).unwrap().st_ino;
            let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
            let open = open.filter_map(|entry| fs::metadata(entry.path()).ok());
            open.filter(|at| at.ino() == inode).count()
        };
        assert_eq!([&one, &other].map(ends), [2, 2]);
        // The epoll instance no longer refers to the first file.
        let mut one = one;
        io::Read::read_exact(&mut one, &mut [0; 1]).unwrap();
    }
}
