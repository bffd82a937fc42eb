//! `msk_*` functions of servers.
#![allow(unsafe_code)] // exported names, pointers of C

use std::ffi::{c_char, c_int};
use std::path::PathBuf;

use bytes::Bytes;
use viaduct_proto::trickles::api::{Minisocket, Piece};
use viaduct_proto::trickles::standard::wire::{MAX_STATE, emit_valid};
use viaduct_proto::trickles::standard::{END, Reason, Valid};
use viaduct_trickles::{Listener, Secrets, ServerSettings};

use crate::convert::{addresses, bytes, count, list, port_code, text, values};
use crate::event::{Descriptors, Minisock, Range};
use crate::table::{self, End};

/// `struct msk_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    ways: c_int,
    mtu: u32,
    run_dir: *const c_char,
    key_file: *const c_char,
    replay: usize,
    balanced: c_int,
}

/// Options of the caller, with defaults for options that are not set.
#[derive(Debug)]
pub(crate) struct ResolvedOptions {
    pub(crate) ways: c_int,
    pub(crate) mtu: usize,
    pub(crate) run_dir: PathBuf,
    key_file: Option<PathBuf>,
    replay: usize,
    balanced: bool,
}

impl ResolvedOptions {
    /// # Safety
    /// The strings of `given` are null or NUL-terminated.
    pub(crate) unsafe fn new(given: Option<&Options>) -> ResolvedOptions {
        // SAFETY: the caller upholds the safety section above.
        let path = |at: *const c_char| unsafe { text(at) }.map(PathBuf::from);
        let number =
            |given: Option<usize>, usual| given.filter(|&given| given > 0).unwrap_or(usual);
        ResolvedOptions {
            ways: given.map_or(0, |given| given.ways),
            mtu: number(given.map(|given| given.mtu as usize), 1_500),
            run_dir: given.and_then(|given| path(given.run_dir)).unwrap_or("/run/viaduct".into()),
            key_file: given.and_then(|given| path(given.key_file)),
            replay: number(given.map(|given| given.replay), 16 << 20),
            balanced: given.is_some_and(|given| given.balanced != 0),
        }
    }
}

/// `msk_listen`
///
/// # Safety
/// The arguments are valid as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_listen(at: *const c_char, options: Option<&Options>) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let (at, resolved) = unsafe { (text(at), ResolvedOptions::new(options)) };
    let Some(Ok(listen)) = at.map(addresses) else { return -libc::EINVAL };
    let Ok(secrets) = Secrets::new(resolved.key_file.as_deref()) else {
        return -libc::ENOKEY;
    };
    let settings = ServerSettings {
        listen,
        tcp: resolved.ways != 2,
        udp: resolved.ways != 1,
        mtu: resolved.mtu,
        untracked: true,
        gso: true,
        run_dir: resolved.run_dir,
        share: None,
    };
    let udp_fallback = resolved.ways == 0;
    match Listener::open(&settings, udp_fallback, resolved.replay, resolved.balanced, secrets) {
        Ok(listener) => table::insert(End::Server(Box::new(listener))),
        Err(error) => error.downcast_ref().map_or(-libc::EIO, port_code),
    }
}

/// `msk_next_event`
#[unsafe(no_mangle)]
pub extern "C" fn msk_next_event(fd: c_int) -> *mut Minisock {
    let mut event = std::ptr::null_mut();
    table::server(fd, |listener| {
        if let Some(next) = listener.endpoint().poll_event() {
            event = Box::into_raw(Box::new(Minisock::new(next, listener.endpoint().ring())));
        }
        0
    });
    event
}

/// `msk_send`
///
/// # Safety
/// `length` bytes can be read at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_send(
    fd: c_int,
    mut msk: Box<Minisock>,
    data: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let data = unsafe { bytes(data, length) };
    msk.fill(&Bytes::copy_from_slice(data));
    finish(fd, *msk)
}

/// `msk_sendv`
///
/// # Safety
/// `count` pieces, and the bytes to which they point, can be read at `pieces`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendv(
    fd: c_int,
    mut msk: Box<Minisock>,
    pieces: *const Tiovec,
    count: c_int,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    for piece in unsafe { list(pieces, count) } {
        // SAFETY: the caller upholds the safety section above.
        let data = unsafe { bytes(piece.base, piece.length) };
        if !msk.put(&piece.range, Piece::Bytes(Bytes::copy_from_slice(data))) {
            return -libc::EINVAL;
        }
    }
    finish(fd, *msk)
}

/// `msk_sendfilev`
///
/// # Safety
/// `count` pieces can be read at `pieces`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendfilev(
    fd: c_int,
    mut msk: Box<Minisock>,
    pieces: *const Fiovec,
    count: c_int,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    for &Fiovec { range, file, offset, length } in unsafe { list(pieces, count) } {
        if !msk.put(&range, Piece::File { file: file as u64, offset, length }) {
            return -libc::EINVAL;
        }
    }
    finish(fd, *msk)
}

/// `msk_sendbulk`
///
/// # Safety
/// `count` descriptions can be read at `all`. Each has a minisocket that was not consumed, and
/// points to bytes that can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_sendbulk(fd: c_int, all: *const Mskdesc, count: c_int) -> c_int {
    let mut result = 0;
    // SAFETY: the caller upholds the safety section above.
    for one in unsafe { list(all, count) } {
        // SAFETY: the caller upholds the safety section above.
        let done = unsafe { msk_send(fd, Box::from_raw(one.msk), one.data, one.length) };
        // If a send fails, the following minisockets are still sent, and consumed.
        result = match (result, done) {
            (failed @ ..0, _) | (_, failed @ ..0) => failed,
            (sent, _) => sent + 1,
        };
    }
    result
}

/// `msk_setucont`
///
/// # Safety
/// `length` bytes can be read at `state`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_setucont(
    fd: c_int,
    msk: &mut Minisock,
    packet: c_int,
    stream: u32,
    start: u64,
    end: u64,
    last: c_int,
    state: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let state = unsafe { bytes(state, length) };
    let room = usize::try_from(packet).ok().and_then(|packet| msk.event.room().nth(packet));
    let (Some(room), true) = (room, start <= end && end <= END) else { return -libc::EINVAL };
    table::server(fd, |listener| {
        let mut note = Vec::new();
        let valid = Valid { stream, start, end, last: last != 0, leave: 0 };
        emit_valid(listener.endpoint().ring(), &valid, state, &mut note);
        if state.len() > MAX_STATE || note.len() > room {
            return -libc::EMSGSIZE;
        }
        msk.reply.set_user(packet as usize, note);
        0
    })
}

/// `msk_set_input`
///
/// # Safety
/// As for [`msk_setucont`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_set_input(
    msk: &mut Minisock,
    input: c_int,
    consumed: u64,
    state: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let state = unsafe { bytes(state, length) };
    let Some((place, length)) = msk.input(input) else { return -libc::EINVAL };
    if consumed > length {
        return -libc::EINVAL;
    }
    if state.len() > MAX_STATE {
        return -libc::EMSGSIZE;
    }
    msk.reply.input(place.after(consumed), state);
    0
}

/// `msk_set_output`
///
/// # Safety
/// As for [`msk_setucont`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_set_output(
    msk: &mut Minisock,
    stream: u32,
    start: u64,
    end: u64,
    last: c_int,
    state: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let state = unsafe { bytes(state, length) };
    if start > end || end > END {
        return -libc::EINVAL;
    }
    if state.len() > MAX_STATE {
        return -libc::EMSGSIZE;
    }
    msk.give(Valid { stream, start, end, last: last != 0, leave: 0 }, state);
    0
}

/// `msk_closed`
#[unsafe(no_mangle)]
pub extern "C" fn msk_closed(msk: &mut Minisock, input: c_int) -> c_int {
    let Some((place, length)) = msk.input(input) else { return -libc::EINVAL };
    msk.reply.closed(place.stream, place.after(length).position);
    0
}

/// `msk_reset`
#[unsafe(no_mangle)]
pub extern "C" fn msk_reset(msk: &mut Minisock, stream: u32, reason: c_int) -> c_int {
    let all = [Reason::Refused, Reason::Changed, Reason::Unknown, Reason::Failed];
    let Some(&reason) = usize::try_from(reason).ok().and_then(|reason| all.get(reason)) else {
        return -libc::EINVAL;
    };
    msk.reply.reset(stream, reason);
    0
}

/// `msk_drop`
#[unsafe(no_mangle)]
pub extern "C" fn msk_drop(fd: c_int, msk: Box<Minisock>) -> c_int {
    table::server(fd, |listener| {
        listener.endpoint().drop_event(msk.event);
        0
    })
}

/// `msk_extract_events`
///
/// # Safety
/// `wanted_length` descriptions can be read at `wanted`, and `*length` bytes can be written at
/// `collection`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_extract_events(
    fd: c_int,
    wanted: *const ExtractMskdesc,
    wanted_length: c_int,
    collection: *mut u8,
    length: Option<&mut usize>,
) -> c_int {
    let Some(length) = length else { return -libc::EINVAL };
    // SAFETY: the caller upholds the safety section above.
    let wanted = unsafe { list(wanted, wanted_length) };
    // SAFETY: the caller upholds the safety section above.
    let room = unsafe { values(collection, count(*length)) };
    table::server(fd, |listener| {
        let (now, mut out) = (listener.now(), Vec::new());
        let which = |event: &Minisocket<'_>| {
            wanted.is_empty() || wanted.iter().any(|one| one.connection == event.connection())
        };
        let events = listener.endpoint().extract_events(now, room.len(), which, &mut out);
        room[..out.len()].copy_from_slice(&out);
        *length = out.len();
        count(events)
    })
}

/// `msk_install_events`
///
/// # Safety
/// `length` bytes can be read at `collection`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_install_events(
    fd: c_int,
    collection: *const u8,
    length: usize,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let collection = unsafe { bytes(collection, length) };
    table::server(fd, |listener| {
        let now = listener.now();
        count(listener.endpoint().install_events(now, collection).taken)
    })
}

fn finish(fd: c_int, msk: Minisock) -> c_int {
    let (event, reply) = msk.finish();
    table::server(fd, |listener| {
        listener.send(event, &reply, &mut Descriptors);
        0
    })
}

/// `struct tiovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tiovec {
    range: Range,
    base: *const u8,
    length: usize,
}

/// `struct fiovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fiovec {
    range: Range,
    file: c_int,
    offset: u64,
    length: u64,
}

/// `struct extract_mskdesc_in`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ExtractMskdesc {
    connection: u64,
}

/// `struct mskdesc`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Mskdesc {
    msk: *mut Minisock,
    data: *const u8,
    length: usize,
}
