//! libc's names for sockets, as far as they begin flows or name their ends.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::net::SocketAddr;

use libc::{mmsghdr, msghdr, sockaddr, socklen_t};
use viaduct_proto::wrap::wire::{Answer, Call, Request};
use viaduct_proto::wrap::{
    Datagrams, Errno, MSG_FASTOPEN, SOCKADDR, Sockaddr, Socket, Verdict, parse_sockaddr,
};

use crate::raw::{self, failed, returned};
use crate::real::real;
use crate::state::{State, Wrapped, state};

/// What is to be done with a call, when rules and master have spoken.
enum Decided {
    /// It is the kernel's.
    Pass,
    /// It has happened, and this is what came of it.
    Done(c_int),
}

/// `socket(2)`.
///
/// # Safety
/// None is needed; the type is libc's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Wrapped::By(state) = state()
        && let Verdict::Refuse(errno) =
            state.welcome.rules.socket(Socket { domain, kind, protocol })
    {
        if errno == Errno::PERM {
            report(state, Call::Socket, None, errno);
        }
        return failed(errno.0);
    }
    let arguments = [domain as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: it takes no pointers.
    returned(unsafe { raw::call(libc::SYS_socket, arguments) }) as c_int
}

/// `connect(2)`.
///
/// # Safety
/// `address` points to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes_of(address.cast(), length) };
    let word = match decide(fd, 0, bytes, Call::Connect) {
        (Decided::Done(0), _) => return 0,
        (Decided::Done(errno), _) => return failed(errno),
        (Decided::Pass, word) => word,
    };
    let arguments = [fd as usize, address as usize, length as usize, word as usize, 0, 0];
    // SAFETY: as the caller promises.
    returned(unsafe { raw::call(libc::SYS_connect, arguments) }) as c_int
}

/// `sendto(2)`.
///
/// # Safety
/// The pointers are to what they are said to be.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    fd: c_int,
    data: *const c_void,
    size: usize,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> isize {
    let (mut flags, mut address, mut length) = (flags, address, length);
    if !address.is_null() && is_judged(flags) {
        // SAFETY: as the caller promises.
        let bytes = unsafe { bytes_of(address.cast(), length) };
        match decide(fd, flags, bytes, Call::Send).0 {
            Decided::Pass => {}
            Decided::Done(0) => {
                (flags, address, length) = (flags & !MSG_FASTOPEN, std::ptr::null(), 0);
            }
            Decided::Done(errno) => return failed(errno) as isize,
        }
    }
    real!(c"sendto" as fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
        fd, data, size, flags, address, length)
}

/// `sendmsg(2)`.
///
/// # Safety
/// `message` points to one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    if is_judged(flags) && !message.is_null() {
        // SAFETY: as the caller promises.
        let mut copy = unsafe { *message };
        // SAFETY: as the caller promises.
        let bytes = unsafe { bytes_of(copy.msg_name, copy.msg_namelen) };
        match decide(fd, flags, bytes, Call::Send).0 {
            Decided::Pass => {}
            Decided::Done(0) => {
                (copy.msg_name, copy.msg_namelen) = (std::ptr::null_mut(), 0);
                let flags = flags & !MSG_FASTOPEN;
                return real!(c"sendmsg" as fn(c_int, *const msghdr, c_int) -> isize;
                    fd, &raw const copy, flags);
            }
            Decided::Done(errno) => return failed(errno) as isize,
        }
    }
    real!(c"sendmsg" as fn(c_int, *const msghdr, c_int) -> isize; fd, message, flags)
}

/// `sendmmsg(2)`.
///
/// # Safety
/// `messages` points to `count` of them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let mut flags = flags;
    if is_judged(flags) && !messages.is_null() {
        for n in 0..count as usize {
            // SAFETY: as the caller promises.
            let header = unsafe { &(*messages.add(n)).msg_hdr };
            // SAFETY: as the caller promises.
            let bytes = unsafe { bytes_of(header.msg_name, header.msg_namelen) };
            match decide(fd, flags, bytes, Call::Send).0 {
                Decided::Pass => {}
                // The first has connected it, and the others are data.
                Decided::Done(0) => {
                    flags &= !MSG_FASTOPEN;
                    break;
                }
                Decided::Done(errno) => return failed(errno),
            }
        }
    }
    real!(c"sendmmsg" as fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
        fd, messages, count, flags)
}

/// `getpeername(2)`.
///
/// # Safety
/// `address` points to as many bytes as `length` says, which is given back.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { name(libc::SYS_getpeername, fd, address, length) }
}

/// `getsockname(2)`.
///
/// # Safety
/// `address` points to as many bytes as `length` says, which is given back.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { name(libc::SYS_getsockname, fd, address, length) }
}

/// `getsockopt(2)`.
///
/// # Safety
/// `value` points to as many bytes as `length` says, which is given back.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let word = if let Wrapped::By(state) = state() { state.word } else { 0 };
    let at = [value as usize, length as usize];
    let arguments = [fd as usize, level as usize, option as usize, at[0], at[1], word as usize];
    // SAFETY: as the caller promises.
    let result = unsafe { raw::call(libc::SYS_getsockopt, arguments) };
    if result == 0
        && (level, option) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(errno) = refusal(fd)
    {
        // SAFETY: the kernel has just written there, as far as there was room.
        unsafe {
            let room = size_of::<c_int>().min(*length as usize);
            std::ptr::copy_nonoverlapping((&raw const errno).cast::<u8>(), value.cast(), room);
        }
    }
    returned(result) as c_int
}

/// Why a flow of this socket has not come about, if it has not.
fn refusal(fd: c_int) -> Option<c_int> {
    let Wrapped::By(state) = state() else { return None };
    let mut bytes = [0u8; SOCKADDR];
    let mut length = SOCKADDR as socklen_t;
    let [at, size] = [bytes.as_mut_ptr() as usize, (&raw mut length) as usize];
    let arguments = [fd as usize, at, size, state.word as usize, 0, 0];
    // SAFETY: the kernel writes at most `length` bytes, which live through the call.
    let connected = unsafe { raw::call(libc::SYS_getpeername, arguments) } == 0;
    if connected || !socket_of(fd)?.is_of_ip() {
        return None;
    }
    let cookie = raw::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?;
    match crate::ask::ask(state.name(), state.word, &Request::Error { cookie }, None) {
        Ok(Answer::Done(errno)) if errno != Errno::NONE => Some(errno.0),
        _ => None,
    }
}

/// `syscall(2)`: what has a name above goes there. C passes and reads its arguments as it would those
/// of a function of seven.
///
/// # Safety
/// As the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: as the caller promises.
    unsafe {
        match number {
            libc::SYS_socket => socket(fd, b as c_int, c as c_int) as c_long,
            libc::SYS_connect => connect(fd, b as *const _, c as socklen_t) as c_long,
            libc::SYS_getpeername => getpeername(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_getsockname => getsockname(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_getsockopt => {
                getsockopt(fd, b as c_int, c as c_int, d as *mut _, e as *mut _) as c_long
            }
            libc::SYS_sendto => {
                sendto(fd, b as *const _, c, d as c_int, e as *const _, f as socklen_t) as c_long
            }
            libc::SYS_sendmsg => sendmsg(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_sendmmsg => sendmmsg(fd, b as *mut _, c as c_uint, d as c_int) as c_long,
            // It would go around us; its callers have another way.
            libc::SYS_io_uring_setup if matches!(state(), Wrapped::By(_) | Wrapped::Deaf) => {
                failed(libc::ENOSYS) as c_long
            }
            _ => returned(raw::call(number, [a, b, c, d, e, f])) as c_long,
        }
    }
}

/// Whether a send with these flags must be looked at.
fn is_judged(flags: c_int) -> bool {
    match state() {
        Wrapped::No => false,
        Wrapped::Deaf => true,
        Wrapped::By(state) => {
            flags & MSG_FASTOPEN != 0 || state.welcome.rules.datagrams() != Datagrams::Free
        }
    }
}

/// Asks the rules, and the master if they say so; and the word that lets the call pass.
fn decide(fd: c_int, flags: c_int, sockaddr: &[u8], call: Call) -> (Decided, u64) {
    let Sockaddr::Ip(to) = parse_sockaddr(sockaddr) else {
        return (Decided::Pass, if let Wrapped::By(state) = state() { state.word } else { 0 });
    };
    let state = match state() {
        Wrapped::No => return (Decided::Pass, 0),
        Wrapped::Deaf => return (Decided::Done(libc::ENETUNREACH), 0),
        Wrapped::By(state) => state,
    };
    // The kernel says what is wrong with what is no socket.
    let Some(socket) = socket_of(fd) else { return (Decided::Pass, state.word) };
    let rules = &state.welcome.rules;
    let verdict = match call {
        Call::Send => rules.send(socket, flags, sockaddr),
        _ => rules.connect(socket, sockaddr),
    };
    let decided = match verdict {
        Verdict::Pass => Decided::Pass,
        // Seccomp tells the master of what bears no word.
        Verdict::Resolve(_) => return (Decided::Pass, 0),
        Verdict::Refuse(errno) => {
            report(state, call, Some(to), errno);
            Decided::Done(errno.0)
        }
        Verdict::Divert(to) => match state.welcome.offload {
            Some(rate) => {
                pace(fd, rate);
                Decided::Pass
            }
            None => Decided::Done(divert(state, fd, to)),
        },
    };
    (decided, state.word)
}

/// Has the kernel send at most so many bytes a second; 0 leaves it as it is.
fn pace(fd: c_int, rate: u64) {
    let [level, name] = [libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE].map(|of| of as usize);
    let arguments = [fd as usize, level, name, (&raw const rate) as usize, size_of::<u64>(), 0];
    if rate > 0 {
        // SAFETY: the kernel reads the rate, which lives through the call.
        unsafe { raw::call(libc::SYS_setsockopt, arguments) };
    }
}

/// Has the master make a flow of it; what the program is told.
fn divert(state: &State, fd: c_int, to: SocketAddr) -> c_int {
    // SAFETY: it takes no pointers.
    let flags =
        unsafe { raw::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    let wait = flags & libc::O_NONBLOCK as isize == 0;
    match crate::ask::ask(state.name(), state.word, &Request::Connect { to, wait }, Some(fd)) {
        Ok(Answer::Done(errno)) => errno.0,
        Ok(_) => libc::ENETUNREACH,
        Err(errno) => errno,
    }
}

fn report(state: &State, call: Call, to: Option<SocketAddr>, errno: Errno) {
    crate::ask::tell(state.name(), state.word, &Request::Refused { call, to, errno });
}

/// What the kernel says, unless the socket's flow is the master's: then what that says.
///
/// # Safety
/// `address` points to as many bytes as `length` says, which is given back.
unsafe fn name(call: c_long, fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let word = if let Wrapped::By(state) = state() { state.word } else { 0 };
    if let Some((bytes, size)) = flow_name(call, fd)
        && !address.is_null()
        && !length.is_null()
    {
        // SAFETY: as the caller promises; no more is written than there is room for.
        unsafe {
            let room = size.min(*length as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), room);
            *length = size as socklen_t;
        }
        return 0;
    }
    let arguments = [fd as usize, address as usize, length as usize, word as usize, 0, 0];
    // SAFETY: as the caller promises.
    returned(unsafe { raw::call(call, arguments) }) as c_int
}

/// The name of a socket whose flow is the master's.
fn flow_name(call: c_long, fd: c_int) -> Option<([u8; SOCKADDR], usize)> {
    let Wrapped::By(state) = state() else { return None };
    let mut bytes = [0u8; SOCKADDR];
    let mut length = SOCKADDR as socklen_t;
    let [at, size] = [bytes.as_mut_ptr() as usize, (&raw mut length) as usize];
    let arguments = [fd as usize, at, size, state.word as usize, 0, 0];
    // SAFETY: the kernel writes at most `length` bytes, which live through the call.
    if unsafe { raw::call(libc::SYS_getpeername, arguments) } != 0 {
        return None;
    }
    let Sockaddr::Ip(peer) = parse_sockaddr(bytes.get(..length as usize)?) else { return None };
    if !state.welcome.meeting.contains(&Some(peer)) {
        return None;
    }
    let cookie = raw::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?;
    match crate::ask::ask(state.name(), state.word, &Request::Names { cookie }, None) {
        Ok(Answer::Named { peer, own }) => {
            let name = if call == libc::SYS_getpeername { peer } else { own };
            Some(socket_of(fd)?.sockaddr(name?))
        }
        _ => None,
    }
}

fn socket_of(fd: c_int) -> Option<Socket> {
    let ask = |name| raw::option::<c_int>(fd, libc::SOL_SOCKET, name);
    Some(Socket {
        domain: ask(libc::SO_DOMAIN)?,
        kind: ask(libc::SO_TYPE)?,
        protocol: ask(libc::SO_PROTOCOL)?,
    })
}

/// What a pointer and a length say; nothing, if it is null. No address here is longer.
///
/// # Safety
/// There are so many bytes.
unsafe fn bytes_of<'a>(at: *const c_void, length: socklen_t) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(at.cast(), SOCKADDR.min(length as usize)) }
}
