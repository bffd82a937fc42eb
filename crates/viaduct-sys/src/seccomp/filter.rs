//! The program that selects trapped calls: classic BPF over `struct seccomp_data`.
//!
//! ```text
//!   compat ABI (i386, ARM)  ──▶ ENOSYS for calls that could bypass us
//!   unknown architecture    ──▶ the process is killed
//!   io_uring_setup, x32     ──▶ ENOSYS; runtimes fall back to other calls
//!   connect, and the calls that [`Traps`] selects ──▶ trapped
//!   all others              ──▶ allowed; the kernel caches this per number, so they cost nothing
//! ```

use libc::{
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_USER_NOTIF,
};

use super::Traps;
use super::abi::{self, LOCAL};
use crate::capture::filter::BpfInsn;
use crate::capture::filter::asm::{Asm, Label, Test};
use crate::socket::tcp::MIRRORED_OPTIONS;

// Fields of `struct seccomp_data`.
pub(super) const NR: u32 = 0;
pub(super) const ARCH: u32 = 4;

/// Offsets of the low and the high word of an argument; the low word is first (little-endian).
pub(super) const fn argument(n: u32) -> (u32, u32) {
    (16 + 8 * n, 20 + 8 * n)
}

const MSG_FASTOPEN: u32 = 0x2000_0000;
const SOCK_KIND: u32 = 0xf;
const IPPROTO_SMC: u32 = 256;
const IPPROTO_MPTCP: u32 = 262;
const AF_SMC: u32 = 43;

/// Numbers of the calls that may be trapped, on this machine.
pub mod calls {
    #![allow(missing_docs, reason = "the kernel's names")]

    pub const SOCKET: i64 = libc::SYS_socket;
    pub const CONNECT: i64 = libc::SYS_connect;
    pub const BIND: i64 = libc::SYS_bind;
    pub const LISTEN: i64 = libc::SYS_listen;
    pub const ACCEPT: i64 = libc::SYS_accept;
    pub const ACCEPT4: i64 = libc::SYS_accept4;
    pub const SENDTO: i64 = libc::SYS_sendto;
    pub const SENDMSG: i64 = libc::SYS_sendmsg;
    pub const SENDMMSG: i64 = libc::SYS_sendmmsg;
    pub const GETPEERNAME: i64 = libc::SYS_getpeername;
    pub const GETSOCKOPT: i64 = libc::SYS_getsockopt;
    pub const SETSOCKOPT: i64 = libc::SYS_setsockopt;
    pub const GETSOCKNAME: i64 = libc::SYS_getsockname;
    /// The calls that create an epoll instance; newer architectures have only one such call.
    #[cfg(target_arch = "x86_64")]
    pub const EPOLL_CREATE: &[i64] = &[libc::SYS_epoll_create, libc::SYS_epoll_create1];
    #[cfg(not(target_arch = "x86_64"))]
    pub const EPOLL_CREATE: &[i64] = &[libc::SYS_epoll_create1];
}

/// Builds a filter that allows all calls.
pub(super) fn nothing() -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    asm.keep(SECCOMP_RET_ALLOW);
    asm.finish()
}

struct Ends {
    allow: Label,
    trap: Label,
    absent: Label,
}

impl Traps {
    pub(super) fn filter(&self) -> Vec<BpfInsn> {
        let mut asm = Asm::default();
        let [allow, trap, absent, native, other, kill] = [(); 6].map(|()| asm.label());
        let ends = Ends { allow, trap, absent };
        asm.load_word(ARCH);
        asm.jump_if(Test::Equal(abi::NATIVE), native);
        asm.branch(Test::Equal(abi::OTHER), other, kill);

        asm.place(native);
        asm.load_word(NR);
        if let Some(bit) = abi::X32 {
            asm.jump_if(Test::AtLeast(bit), absent);
        }
        self.native(&mut asm, &ends);

        asm.place(other);
        asm.load_word(NR);
        abi::jump_if_other(&mut asm, &abi::CALLS, absent);
        if let Some(nr) = abi::SOCKETCALL {
            asm.jump_if(Test::Equal(nr), absent);
        }
        // A socket that socket(2) of the compat ABI opens would not be seen, although native calls
        // could use it.
        asm.jump_unless(Test::Equal(abi::SOCKET.other), allow);
        asm.load_word(argument(0).0);
        for family in LOCAL {
            asm.jump_if(Test::Equal(family.cast_unsigned()), allow);
        }
        asm.goto(absent);

        for (label, action) in [
            (allow, SECCOMP_RET_ALLOW),
            (trap, SECCOMP_RET_USER_NOTIF),
            (absent, SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned()),
            (kill, SECCOMP_RET_KILL_PROCESS),
        ] {
            asm.place(label);
            asm.keep(action);
        }
        asm.finish()
    }

    fn native(&self, asm: &mut Asm, ends: &Ends) {
        let number = |nr: i64| Test::Equal(nr as u32);
        let [socket, sendto, sendmsg, sendmmsg, option, set] = [(); 6].map(|()| asm.label());
        let short = asm.label();
        asm.jump_if(number(calls::CONNECT), short);
        asm.jump_if(number(calls::SOCKET), socket);
        asm.jump_if(number(calls::SENDTO), sendto);
        asm.jump_if(number(calls::SENDMSG), sendmsg);
        asm.jump_if(number(calls::SENDMMSG), sendmmsg);
        asm.jump_if(number(libc::SYS_io_uring_setup), ends.absent);
        if self.listeners {
            for nr in [calls::BIND, calls::LISTEN, calls::ACCEPT, calls::ACCEPT4] {
                asm.jump_if(number(nr), ends.trap);
            }
            for &nr in calls::EPOLL_CREATE {
                asm.jump_if(number(nr), ends.trap);
            }
        }
        if self.names {
            asm.jump_if(number(calls::GETPEERNAME), short);
            asm.jump_if(number(calls::GETSOCKNAME), short);
            asm.jump_if(number(calls::GETSOCKOPT), option);
            asm.jump_if(number(calls::SETSOCKOPT), set);
        }
        asm.goto(ends.allow);

        asm.place(short);
        self.without_word(asm, ends, 3);

        asm.place(option);
        self.get_option(asm, ends);
        asm.place(set);
        mirrored(asm, ends);
        asm.goto(ends.allow);
        asm.place(socket);
        self.socket(asm, ends);

        self.send_calls(asm, ends, [sendto, sendmsg, sendmmsg]);
    }

    /// Emits the verdict on getsockopt(2).
    fn get_option(&self, asm: &mut Asm, ends: &Ends) {
        mirrored(asm, ends);
        asm.load_word(argument(1).0);
        asm.jump_unless(Test::Equal(libc::SOL_SOCKET.cast_unsigned()), ends.allow);
        asm.load_word(argument(2).0);
        if self.listeners {
            for name in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
                asm.jump_if(Test::Equal(name.cast_unsigned()), ends.trap);
            }
        }
        asm.jump_unless(Test::Equal(libc::SO_ERROR.cast_unsigned()), ends.allow);
        self.without_word(asm, ends, 5);
    }

    /// Emits the verdicts on sendto(2), sendmsg(2) and sendmmsg(2), each at its label.
    fn send_calls(&self, asm: &mut Asm, ends: &Ends, [sendto, sendmsg, sendmmsg]: [Label; 3]) {
        asm.place(sendto);
        asm.load_word(argument(3).0);
        asm.jump_if(Test::AnyBit(MSG_FASTOPEN), ends.trap);
        if self.sends {
            let (low, high) = argument(4);
            for word in [low, high] {
                asm.load_word(word);
                asm.jump_unless(Test::Equal(0), ends.trap);
            }
        }
        asm.goto(ends.allow);

        // The address is behind a pointer, which a filter cannot follow.
        for (label, flags) in [(sendmsg, 2), (sendmmsg, 3)] {
            asm.place(label);
            if self.sends && flags == 2 {
                self.without_word(asm, ends, 3);
            } else if self.sends {
                asm.goto(ends.trap);
            } else {
                asm.load_word(argument(flags).0);
                asm.branch(Test::AnyBit(MSG_FASTOPEN), ends.trap, ends.allow);
            }
        }
    }

    /// Emits code that traps a call unless argument `n`, which the call does not use, is
    /// [`Traps::word`].
    fn without_word(&self, asm: &mut Asm, ends: &Ends, n: u32) {
        if let Some(word) = self.word {
            let (low, high) = argument(n);
            asm.load_word(low);
            asm.jump_unless(Test::Equal(word as u32), ends.trap);
            asm.load_word(high);
            asm.jump_if(Test::Equal((word >> 32) as u32), ends.allow);
        }
        asm.goto(ends.trap);
    }

    /// Emits the verdict on socket(2): traps sockets that could bypass us.
    fn socket(&self, asm: &mut Asm, ends: &Ends) {
        let inet = asm.label();
        asm.load_word(argument(0).0);
        for family in [libc::AF_INET, libc::AF_INET6] {
            asm.jump_if(Test::Equal(family.cast_unsigned()), inet);
        }
        if self.families {
            for family in LOCAL {
                asm.jump_if(Test::Equal(family.cast_unsigned()), ends.allow);
            }
            asm.goto(ends.trap);
        } else {
            asm.branch(Test::Equal(AF_SMC), ends.trap, ends.allow);
        }

        asm.place(inet);
        asm.load_word(argument(2).0);
        for protocol in [IPPROTO_MPTCP, IPPROTO_SMC] {
            asm.jump_if(Test::Equal(protocol), ends.trap);
        }
        if self.datagrams {
            asm.load_word(argument(1).0);
            asm.and(SOCK_KIND);
            asm.jump_unless(Test::Equal(libc::SOCK_STREAM.cast_unsigned()), ends.trap);
        }
        asm.goto(ends.allow);
    }
}

/// Emits code that traps calls about [`MIRRORED_OPTIONS`]; calls about other options fall through.
fn mirrored(asm: &mut Asm, ends: &Ends) {
    for (level, name) in MIRRORED_OPTIONS {
        let other = asm.label();
        for (n, wanted) in [(1, level), (2, name)] {
            asm.load_word(argument(n).0);
            asm.jump_unless(Test::Equal(wanted.cast_unsigned()), other);
        }
        asm.goto(ends.trap);
        asm.place(other);
    }
}
