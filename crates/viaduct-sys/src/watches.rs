//! What watches a program's descriptor by epoll, when another socket is put in its place.
//!
//! An epoll instance knows a file by the number under which it was added, and keeps it when another file
//! gets that number. So whoever watches from before is moved: in a thread with a table of descriptors of
//! its own, where any number can be ours.
//!
//! ```text
//!   program's epoll ── watches 7: one file ──▶ fdinfo says: events, data
//!                                               thread: 7 = one file,   epoll_ctl(DEL, 7)
//!                                                       7 = the other,  epoll_ctl(ADD, 7, events, data)
//! ```
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::os;
use crate::seccomp::Task;

/// A watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    events: u32,
    data: u64,
}

/// Moves what watches descriptor `fd` of `thread`, which `task` is, from the file of `one` to that of
/// `other`.
///
/// # Errors
/// The thread has gone, or no descriptor is left.
pub fn move_over(
    task: &Task,
    thread: u32,
    fd: i32,
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
) -> io::Result<()> {
    let inode = rustix::fs::fstat(one)?.st_ino;
    for entry in fs::read_dir(format!("/proc/{thread}/fd"))?.flatten() {
        let is_epoll =
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]");
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (true, Some(number)) = (is_epoll, number) else { continue };
        let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{number}"))?;
        let Some(watch) = info.lines().find_map(|line| parse(line, fd, inode)) else { continue };
        let epoll = task.duplicate(number)?;
        let (one, other) = (one.try_clone_to_owned()?, other.try_clone_to_owned()?);
        let moved = thread::spawn(move || replace(&epoll, fd, [&one, &other], watch));
        moved.join().map_err(|_| io::Error::from(io::ErrorKind::Other))??;
    }
    Ok(())
}

/// A line such as `tfd: 7 events: 19 data: 7  pos:0 ino:2a sdev:8`, if it is about this file.
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

/// In a thread that does nothing else.
fn replace(epoll: &OwnedFd, fd: i32, [one, other]: [&OwnedFd; 2], watch: Watch) -> io::Result<()> {
    // SAFETY: the flag is FILES alone: this thread has a copy of the table from now on, and ends when
    // this function does; others' descriptors stay theirs.
    unsafe { unshare_unsafe(UnshareFlags::FILES)? };
    // Beyond the number, so that none of them has it.
    let [epoll, one, other] = [epoll, one, other].map(|of| above(of, fd));
    let (epoll, one, other) = (epoll?, one?, other?);
    let mut event = libc::epoll_event { events: watch.events, u64: watch.data };
    for (file, operation) in [(&one, libc::EPOLL_CTL_DEL), (&other, libc::EPOLL_CTL_ADD)] {
        // SAFETY: the table is this thread's own, and whoever owns the number in it does not run in it.
        let put = unsafe { libc::dup3(file.as_raw_fd(), fd, libc::O_CLOEXEC) };
        os::check(put.min(0))?;
        // SAFETY: the kernel reads the event, which lives through the call.
        os::check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) })?;
    }
    Ok(())
}

fn above(file: &OwnedFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: it takes numbers alone.
    let copy = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, fd + 1) };
    os::check(copy.min(0))?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use rustix::event::epoll;

    use super::*;

    #[test]
    fn a_line_says_what_is_watched() {
        let line = "tfd:       11 events:       19 data:         deadbeef  pos:0 ino:2a sdev:8";
        assert_eq!(parse(line, 11, 42), Some(Watch { events: 0x19, data: 0xdead_beef }));
        assert_eq!(parse(line, 12, 42), None);
        assert_eq!(parse(line, 11, 43), None);
        assert_eq!(parse("flags:\t02", 11, 42), None);
    }

    #[test]
    fn whoever_watched_one_watches_the_other() {
        let ((one, mut at_one), (other, mut at_other)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let number = one.as_raw_fd();
        let data = epoll::EventData::new_u64(77);
        epoll::add(&epoll, &one, data, epoll::EventFlags::IN).unwrap();
        let own = std::process::id();
        let task = Task::open(own).unwrap();
        move_over(&task, own, number, one.as_fd(), other.as_fd()).unwrap();
        at_one.write_all(b"x").unwrap();
        let mut events = Vec::with_capacity(4);
        let soon = rustix::event::Timespec::default();
        let mut ready = || {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&epoll, room, Some(&soon)).unwrap();
            events.iter().map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(ready(), [0u64; 0]);
        at_other.write_all(b"x").unwrap();
        assert_eq!(ready(), [77]);
        // The number is the other's now, as the program sees it.
        let mut one = one;
        io::Read::read_exact(&mut one, &mut [0; 1]).unwrap();
    }
}
