//! A TCP option in the SYNs of chosen sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt::socket_cookie;

use super::BpfError;
use super::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R4, R6, R7, R8, Width};
use super::cgroup::Cgroup;
use super::kernel::{Hook, Link, Map};
use super::sock_ops::{
    CONNECT, ESTABLISHED, FLAGS, LENGTH, LOCAL_IP4, LOCAL_PORT, OP, WANTS_OPTIONS, WRITE,
};
use super::steer::Template;

/// Bytes of the option.
pub const OPTION: usize = 16;

/// Max sockets that are connecting: four times the early connections that a proxy holds. If there
/// are more, the least recently used sockets lose their option.
const SOCKETS: u32 = 8192;

// On the stack: the socket's cookie, the option.
pub(super) const COOKIE: i16 = -8;
pub(super) const VALUE: i16 = -24;

/// The program that writes options, for the sockets of this process's cgroup.
#[derive(Debug)]
pub struct SynOption {
    map: Map<OPTION>,
    _link: Link,
}

impl SynOption {
    /// Attaches the program. No socket has an option yet. Errors: a privilege is missing, the
    /// kernel is too old, or there is no cgroup version 2.
    pub fn attach() -> Result<SynOption, BpfError> {
        let (cgroup, map) = (Cgroup::own()?, Map::new(SOCKETS)?);
        let link = Link::new(Hook::SockOps, &program(&map, None), cgroup.as_fd())?;
        Ok(SynOption { map, _link: link })
    }

    /// Adds `option` to the SYN of `socket` and to its retransmissions. Must be called before the
    /// socket connects. The option is removed from the map once the socket is connected.
    pub fn set(&self, socket: BorrowedFd<'_>, option: &[u8; OPTION]) -> io::Result<()> {
        self.map.set(socket_cookie(socket)?, option)
    }

    /// Removes the option of a socket that did not connect.
    pub fn clear(&self, socket: BorrowedFd<'_>) {
        if let Ok(cookie) = socket_cookie(socket) {
            self.map.clear(cookie);
        }
    }
}

/// Builds the sock_ops program. With a template, the program writes the socket's own address into
/// the option as the source, and does not remove the option from the map.
pub(super) fn program(map: &Map<OPTION>, own: Option<&Template>) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [wanted, connect, established, length, write, done] = [(); 6].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R7, R6, OP);
    for op in [CONNECT, ESTABLISHED, LENGTH, WRITE] {
        asm.if_equal(R7, op, wanted);
    }
    asm.goto(done);
    asm.place(wanted);
    look_up(&mut asm, map, done);
    for (op, label) in
        [(CONNECT, connect), (ESTABLISHED, established), (LENGTH, length), (WRITE, write)]
    {
        asm.if_equal(R7, op, label);
    }

    asm.place(connect);
    asm.set_flags(R6, FLAGS, |asm| asm.or(R2, WANTS_OPTIONS));
    asm.goto(done);

    asm.place(established);
    asm.set_flags(R6, FLAGS, |asm| asm.and(R2, !WANTS_OPTIONS));
    if own.is_none() {
        asm.forget(map, COOKIE);
    }
    asm.goto(done);

    asm.place(length);
    asm.copy(R1, R6);
    asm.set(R2, OPTION as i32);
    asm.set(R3, 0);
    asm.call(Helper::ReserveOption);
    asm.goto(done);

    asm.place(write);
    asm.copy_memory((FP, VALUE), (R8, 0), OPTION as i16);
    if let Some(template) = own {
        asm.load(Width::Word, R2, R6, LOCAL_IP4);
        asm.store(Width::Word, FP, VALUE + template.source, R2);
        asm.load(Width::Word, R2, R6, LOCAL_PORT);
        asm.network_order(R2);
        asm.store(Width::Half, FP, VALUE + template.source_port, R2);
    }
    asm.copy(R1, R6);
    asm.point(R2, VALUE);
    asm.set(R3, OPTION as i32);
    asm.set(R4, 0);
    asm.call(Helper::StoreOption);

    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short enough for every jump")
}

/// R8 = address of the map's value for the socket of the context in R6; jumps to `none` if there is
/// no value. Stores the socket's cookie on the stack.
pub(super) fn look_up(asm: &mut Asm, map: &Map<OPTION>, none: Label) {
    asm.store_cookie(R6, COOKIE);
    asm.look_up(map, COOKIE, none);
    asm.copy(R8, R0);
}
