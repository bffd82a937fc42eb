//! Offers: a TCP option in the SYNs of chosen connections. The other end answers the offer with its
//! own option in the SYN-ACK. The listening side sends its option only in answer to a SYN with the
//! option.
//!
//! ```text
//!   connecting   CONNECT ─▶ in the map? ─▶ our option in the SYN   ESTABLISHED ─▶ theirs to map
//!   listening    LISTEN ─▶ enable callbacks    SYN with their option ─▶ our option in the SYN-ACK
//! ```
//!
//! The listener belongs to this process. Connections to wrapped programs ([`Ports`]) are redirected
//! to it. This process reads the client's option from the SYN that the kernel saves
//! ([`crate::socket::tcp::saved_syn`]). While SYN cookies are in use, no option is read from a SYN
//! or sent in a SYN-ACK.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt::socket_cookie;

use super::BpfError;
use super::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R4, R6, R7, Width};
use super::cgroup::Cgroup;
use super::kernel::{Hook, Link, Map};
use super::option::{COOKIE, OPTION, VALUE, look_up};
use super::redirect::Ports;
use super::sock_ops::{
    ACCEPTED, CONNECT, ESTABLISHED, FIRST_ARGUMENT, FLAGS, LENGTH, LISTENS, LOCAL_END, OP, SOCKET,
    WANTS_OPTIONS, WRITE,
};
use crate::socket::tcp::INSIDE;

/// Max connections whose answer has not been read yet.
const SOCKETS: u32 = 65_536;

/// Offset of `is_fullsock` in `struct bpf_sock_ops`, which is 0 for a connection request.
const IS_FULL: i16 = 72;
/// Offset of the mark in `struct bpf_sock`.
const MARK: i16 = 16;
/// Value of the first argument if a SYN is answered with a SYN cookie.
const COOKIES: u32 = 2;
/// `BPF_LOAD_HDR_OPT_TCP_SYN`: searches the SYN that is being answered.
const IN_SYN: i32 = 1;

/// The attached program, for the sockets of this process's cgroup.
#[derive(Debug)]
pub struct Offers {
    asked: Map<OPTION>,
    own: [u8; OPTION],
    _link: Link,
}

impl Offers {
    /// Attaches the program, which sends the option `own` on connections for which
    /// [`Offers::offer`] was called, and in the SYN-ACK to a client that connects to one of `ports`
    /// with the option. The first four bytes of `own` are its kind, its length and an experiment
    /// identifier. Listeners must be opened after this call. Errors: a privilege is missing, the
    /// kernel is too old, or there is no cgroup version 2.
    pub fn attach(own: [u8; OPTION], ports: &Ports) -> Result<Offers, BpfError> {
        let (cgroup, asked) = (Cgroup::own()?, Map::new(SOCKETS)?);
        let link = Link::new(Hook::SockOps, &program(&asked, ports, &own), cgroup.as_fd())?;
        Ok(Offers { asked, own, _link: link })
    }

    /// Adds the option to the SYN of `socket`. Must be called before the socket connects.
    pub fn offer(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.asked.set(socket_cookie(socket)?, &[0; OPTION])
    }

    /// Returns the option that a socket's other end has sent, if any; `None` on a second call.
    pub fn answer(&self, socket: BorrowedFd<'_>) -> Option<[u8; OPTION]> {
        let cookie = socket_cookie(socket).ok()?;
        let answer = self.asked.get(cookie);
        self.asked.clear(cookie);
        answer.filter(|bytes| bytes[..4] == self.own[..4])
    }
}

fn program(asked: &Map<OPTION>, ports: &Ports, own: &[u8; OPTION]) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [connect, established, ours, write, done] = [(); 5].map(|()| asm.label());
    let length = asm.label();
    asm.copy(R6, R1);
    asm.load(Width::Word, R7, R6, OP);
    for (op, label) in [
        (CONNECT, connect),
        (ESTABLISHED, established),
        (ACCEPTED, ours),
        (LISTENS, ours),
        (LENGTH, length),
        (WRITE, write),
    ] {
        asm.if_equal(R7, op, label);
    }
    asm.goto(done);

    asm.place(connect);
    look_up(&mut asm, asked, done);
    asm.set_flags(R6, FLAGS, |asm| asm.or(R2, WANTS_OPTIONS));
    asm.goto(done);

    asm.place(established);
    look_up(&mut asm, asked, done);
    asm.set_flags(R6, FLAGS, |asm| asm.and(R2, !WANTS_OPTIONS));
    find(&mut asm, own, 0, done);
    asm.keep(asked, COOKIE, VALUE);
    asm.goto(done);

    asm.place(ours);
    listener(&mut asm, done);

    asm.place(length);
    check_wanted(&mut asm, asked, ports, own, done);
    asm.copy(R1, R6);
    asm.set(R2, OPTION as i32);
    asm.set(R3, 0);
    asm.call(Helper::ReserveOption);
    asm.goto(done);

    asm.place(write);
    check_wanted(&mut asm, asked, ports, own, done);
    put(&mut asm, own);
    asm.copy(R1, R6);
    asm.copy(R2, FP);
    asm.add(R2, VALUE.into());
    asm.set(R3, OPTION as i32);
    asm.set(R4, 0);
    asm.call(Helper::StoreOption);
    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short enough for every jump")
}

/// Emits the handling of a socket between a wrapped program and this process: enables option
/// callbacks for a listener, and disables them for an accepted socket. All paths end at `done`.
fn listener(asm: &mut Asm, done: Label) {
    let accepted = asm.label();
    asm.load(Width::Double, R2, R6, SOCKET);
    asm.if_nothing(R2, done);
    asm.load(Width::Word, R2, R2, MARK);
    asm.if_different(R2, INSIDE.cast_unsigned(), done);
    asm.if_equal(R7, ACCEPTED, accepted);
    asm.set_flags(R6, FLAGS, |asm| asm.or(R2, WANTS_OPTIONS));
    asm.goto(done);
    asm.place(accepted);
    asm.set_flags(R6, FLAGS, |asm| asm.and(R2, !WANTS_OPTIONS));
    asm.goto(done);
}

/// Emits a jump to `done` unless the option is to be sent. The option is sent in the SYN of a
/// connection for which [`Offers::offer`] was called, and in the SYN-ACK to a SYN that has the
/// option and is addressed to a port on which a wrapped program listens.
fn check_wanted(
    asm: &mut Asm,
    asked: &Map<OPTION>,
    ports: &Ports,
    own: &[u8; OPTION],
    done: Label,
) {
    let [answers, send] = [(); 2].map(|()| asm.label());
    asm.load(Width::Word, R2, R6, IS_FULL);
    asm.if_equal(R2, 0, answers);
    look_up(asm, asked, done);
    asm.goto(send);

    asm.place(answers);
    asm.load(Width::Word, R2, R6, FIRST_ARGUMENT);
    asm.if_equal(R2, COOKIES, done);
    ports.find(asm, &LOCAL_END, done);
    find(asm, own, IN_SYN, done);
    asm.place(send);
}

/// Emits code that copies the other end's option to the stack, or jumps to `none` if there is no
/// such option.
fn find(asm: &mut Asm, own: &[u8; OPTION], flags: i32, none: Label) {
    // The search key: kind, length of the key, experiment identifier.
    let mut sought = [0; OPTION];
    sought[..4].copy_from_slice(&[own[0], 4, own[2], own[3]]);
    put(asm, &sought);
    asm.copy(R1, R6);
    asm.copy(R2, FP);
    asm.add(R2, VALUE.into());
    asm.set(R3, OPTION as i32);
    asm.set(R4, flags);
    asm.call(Helper::LoadOption);
    asm.if_different(R0, OPTION as u32, none);
}

/// Emits a store of `bytes` on the stack.
fn put(asm: &mut Asm, bytes: &[u8; OPTION]) {
    for (at, part) in (0..).step_by(8).zip(bytes.as_chunks::<8>().0) {
        asm.set_double(R2, u64::from_ne_bytes(*part));
        asm.store(Width::Double, FP, VALUE + at, R2);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;
    use crate::socket::tcp::{self, SynContent, TcpOptions};

    const OWN: [u8; OPTION] = [253, 16, b'V', b'x', 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    #[test]
    fn a_syn_has_the_option_if_offered_and_a_plain_listener_does_not_answer() {
        let offers = Offers::attach(OWN, &Ports::new().unwrap()).unwrap();
        let options = TcpOptions { save_syn: true, ..TcpOptions::default() };
        let listener = tcp::listen((Ipv4Addr::LOCALHOST, 0).into(), 8, options).unwrap();
        let listener: TcpListener = listener;
        listener.set_nonblocking(false).unwrap();
        let at = listener.local_addr().unwrap();
        for offered in [true, false] {
            let telling = if offered { SynContent::Offer(&offers) } else { SynContent::Nothing };
            let (mut ours, _) =
                tcp::connect_with(at, None, TcpOptions::default(), telling).unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            let syn = tcp::saved_syn(&theirs).unwrap();
            assert_eq!(syn.windows(OPTION).any(|window| window == OWN), offered);
            theirs.write_all(b"there").unwrap();
            ours.set_nonblocking(false).unwrap();
            ours.read_exact(&mut [0; 5]).unwrap();
            assert_eq!(offers.answer(ours.as_fd()), None);
            let _: TcpStream = ours;
        }
    }
}
