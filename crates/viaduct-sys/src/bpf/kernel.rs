//! The bpf(2) calls used here: maps, programs, and links, which keep a program attached until their
//! descriptor is closed.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::BpfError;
use super::asm::Insn;

const MAP_CREATE: c_int = 0;
const MAP_LOOKUP: c_int = 1;
const MAP_UPDATE: c_int = 2;
const MAP_DELETE: c_int = 3;
const PROG_LOAD: c_int = 5;
const PROG_ATTACH: c_int = 8;
const LINK_CREATE: c_int = 28;
/// `BPF_F_ALLOW_MULTI`: other programs stay attached.
const ALLOW_MULTI: u32 = 2;
const HASH: u32 = 1;
const LRU_HASH: u32 = 9;
const SOCKET_MAP: u32 = 15;
const RING: u32 = 27;
/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;
/// Max bytes of the verifier's log that are read.
const LOG: usize = 64 << 10;
/// License of this project; no helper in use requires another.
const LICENSE: &std::ffi::CStr = c"Apache-2.0";

/// Program type and attach point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    SockOps,
    Connect4,
    Connect6,
    PeerName4,
    PeerName6,
    SocketName4,
    SocketName6,
    Message4,
    Message6,
    Received4,
    Received6,
    SocketLookup,
    SocketCreate,
    SetOption,
}

impl Hook {
    fn program_type(self) -> u32 {
        match self {
            Hook::SockOps => 13,
            Hook::SocketLookup => 30,
            Hook::SocketCreate => 9,
            Hook::SetOption => 25,
            _ => 18,
        }
    }

    fn attach_type(self) -> u32 {
        match self {
            Hook::SockOps => 3,
            Hook::SocketCreate => 2,
            Hook::SetOption => 22,
            Hook::Connect4 => 10,
            Hook::Connect6 => 11,
            Hook::Message4 => 14,
            Hook::Message6 => 15,
            Hook::Received4 => 19,
            Hook::Received6 => 20,
            Hook::SocketLookup => 36,
            Hook::PeerName4 => 29,
            Hook::PeerName6 => 30,
            Hook::SocketName4 => 31,
            Hook::SocketName6 => 32,
        }
    }
}

/// A map to `N` bytes from `K` bytes: from socket cookies or other numbers, if there are 8.
#[derive(Debug)]
pub(super) struct Map<const N: usize, const K: usize = 8> {
    fd: OwnedFd,
}

impl<const N: usize, const K: usize> Map<N, K> {
    /// Creates a map that allocates memory as it fills, and refuses new entries when it is full.
    pub(super) fn growing(most: u32) -> Result<Map<N, K>, BpfError> {
        Map::of(HASH, most, NO_PREALLOC)
    }

    fn of(kind: u32, most: u32, flags: u32) -> Result<Map<N, K>, BpfError> {
        let attr = MapCreate { kind, key_size: K as u32, value_size: N as u32, most, flags };
        let fd = bpf_fd(MAP_CREATE, &attr).map_err(|source| denied("create a map", source))?;
        Ok(Map { fd })
    }
}

impl<const N: usize> Map<N> {
    /// Creates a map for about `most` entries, which evicts the least recently used entry when it
    /// is full.
    pub(super) fn new(most: u32) -> Result<Map<N>, BpfError> {
        Map::of(LRU_HASH, most, 0)
    }

    pub(super) fn set(&self, cookie: u64, value: &[u8; N]) -> io::Result<()> {
        let value: *const [u8; N] = value;
        self.element(MAP_UPDATE, cookie, value as u64)
    }

    /// Returns the value of `cookie`, if there is one.
    pub(super) fn get(&self, cookie: u64) -> Option<[u8; N]> {
        let mut value = [0; N];
        self.element(MAP_LOOKUP, cookie, (&raw mut value) as u64).ok()?;
        Some(value)
    }

    /// Removes the entry of `cookie`, if there is one.
    pub(super) fn clear(&self, cookie: u64) {
        let _ = self.element(MAP_DELETE, cookie, 0);
    }

    fn element(&self, command: c_int, cookie: u64, value: u64) -> io::Result<()> {
        let key: *const u64 = &raw const cookie;
        let attr = Element { map: self.number() as u32, pad: 0, key: key as u64, value, flags: 0 };
        bpf(command, &attr).map(drop)
    }
}

impl<const N: usize, const K: usize> MapFd for Map<N, K> {
    fn number(&self) -> c_int {
        self.fd.as_raw_fd()
    }
}

#[derive(Debug)]
pub(super) struct SocketMap {
    fd: OwnedFd,
}

impl SocketMap {
    /// Creates an array of `sockets`.
    pub(super) fn of<const N: usize>(
        sockets: [Option<BorrowedFd<'_>>; N],
    ) -> Result<SocketMap, BpfError> {
        let most = N as u32;
        let attr = MapCreate { kind: SOCKET_MAP, key_size: 4, value_size: 8, most, flags: 0 };
        let fd = bpf_fd(MAP_CREATE, &attr).map_err(|source| denied("create a map", source))?;
        for (key, socket) in (0u32..).zip(sockets) {
            let Some(socket) = socket else { continue };
            let value = socket.as_raw_fd() as u64;
            let attr = Element {
                map: fd.as_raw_fd() as u32,
                pad: 0,
                key: (&raw const key) as u64,
                value: (&raw const value) as u64,
                flags: 0,
            };
            bpf(MAP_UPDATE, &attr).map_err(|source| denied("put a socket into a map", source))?;
        }
        Ok(SocketMap { fd })
    }
}

impl MapFd for SocketMap {
    fn number(&self) -> c_int {
        self.fd.as_raw_fd()
    }
}

/// Any map that a program may refer to.
pub(super) trait MapFd {
    /// Returns the descriptor's number.
    fn number(&self) -> c_int;
}

/// An attached program. It is detached when this value is dropped or the process ends, unless
/// another process holds a duplicate of the descriptor.
#[derive(Debug)]
pub(super) struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Attaches `program` to all sockets of a cgroup and its descendants, or of a network
    /// namespace. Programs attached by others stay attached.
    pub(super) fn new(
        hook: Hook,
        program: &[Insn],
        target: BorrowedFd<'_>,
    ) -> Result<Link, BpfError> {
        let program = load(hook, program)?;
        let attr = LinkCreate {
            program: program.as_raw_fd() as u32,
            target: target.as_raw_fd() as u32,
            attach_type: hook.attach_type(),
            flags: 0,
        };
        let fd = bpf_fd(LINK_CREATE, &attr);
        Ok(Link { fd: fd.map_err(|source| denied("attach a program", source))? })
    }
}

impl AsFd for Link {
    /// The program stays attached while any process has this descriptor open.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Attaches `program` to the sockets of a cgroup until the cgroup is removed, even if this process
/// ends earlier.
pub(super) fn attach(hook: Hook, program: &[Insn], cgroup: BorrowedFd<'_>) -> Result<(), BpfError> {
    let program = load(hook, program)?;
    let attr = ProgAttach {
        target: cgroup.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        attach_type: hook.attach_type(),
        flags: ALLOW_MULTI,
    };
    bpf(PROG_ATTACH, &attr).map(drop).map_err(|source| denied("attach a program", source))
}

fn load(hook: Hook, program: &[Insn]) -> Result<OwnedFd, BpfError> {
    let attr = ProgLoad {
        kind: hook.program_type(),
        count: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        version: 0,
        flags: 0,
        name: *b"viaduct\0\0\0\0\0\0\0\0\0",
        ifindex: 0,
        attach_type: hook.attach_type(),
    };
    bpf_fd(PROG_LOAD, &attr).map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM) => denied("load a program", source),
        // The program is loaded once more, to read the verifier's log.
        _ => BpfError::Refused { hook: format!("{hook:?}"), why: verifier_log(attr), source },
    })
}

fn verifier_log(attr: ProgLoad) -> String {
    let mut log = vec![0u8; LOG];
    let attr =
        ProgLoad { log_level: 1, log_size: LOG as u32, log: log.as_mut_ptr() as u64, ..attr };
    let _ = bpf_fd(PROG_LOAD, &attr);
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(LOG);
    String::from_utf8_lossy(&log[..end]).trim_end().to_owned()
}

fn denied(action: &'static str, source: io::Error) -> BpfError {
    BpfError::Denied { action, source }
}

/// Creates a ring buffer of `size` bytes: a power of two, and a multiple of the page size.
pub(super) fn new_ring(size: u32) -> Result<OwnedFd, BpfError> {
    let attr = MapCreate { kind: RING, key_size: 0, value_size: 0, most: size, flags: 0 };
    bpf_fd(MAP_CREATE, &attr).map_err(|source| denied("create a ring buffer", source))
}

/// A part of the kernel's `union bpf_attr`.
///
/// # Safety
/// The type must be `repr(C)` without padding, with its fields at their offsets in the union. Each
/// field that is an address must point to memory that the command may read or write.
unsafe trait Attr {}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    most: u32,
    flags: u32,
}
// SAFETY: five integers, no address.
unsafe impl Attr for MapCreate {}

#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}
// SAFETY: made only by `Map::element` and `SocketMap::of`, with a key and, if the command uses one,
// a value of the map's sizes.
unsafe impl Attr for Element {}

#[repr(C)]
#[derive(Clone, Copy)]
struct ProgLoad {
    kind: u32,
    count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
}
// SAFETY: made only by `load` and `verifier_log`, from a slice of instructions, a C string, and a
// log buffer of the given length.
unsafe impl Attr for ProgLoad {}

#[repr(C)]
struct ProgAttach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: four integers, no address.
unsafe impl Attr for ProgAttach {}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}
// SAFETY: four integers, no address.
unsafe impl Attr for LinkCreate {}

fn bpf<A: Attr>(command: c_int, attr: &A) -> io::Result<c_long> {
    let attr: *const A = attr;
    // SAFETY: the kernel reads `size_of::<A>()` bytes of `attr`, which lives through the call, and
    // treats the rest of the union as zeros. The addresses in `attr` are valid, as `Attr` requires.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs a command that opens a descriptor. The kernel sets close-on-exec on all BPF descriptors.
fn bpf_fd<A: Attr>(command: c_int, attr: &A) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)? as c_int;
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
