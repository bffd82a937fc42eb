//! TCP sockets as a proxy needs them: with another host's address, begun without waiting, ended by
//! a reset; and what a SYN says beside its addresses.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::bpf::{OPTION, Offers, SynOption};
use crate::{filter, os};

const TCP_SAVE_SYN: libc::c_int = 27;
const TCP_SAVED_SYN: libc::c_int = 28;
const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;
const MSG_FASTOPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);
/// The longest headers of a SYN: of IPv6 and TCP with all its options, and some extensions.
const SYN_HEADERS: usize = 256;

/// How a socket is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// It may have addresses of other hosts (`IP_TRANSPARENT`), which takes CAP_NET_ADMIN.
    pub transparent: bool,
    /// Bytes of the send buffer; the kernel's choice if `None`.
    pub send_buffer: Option<usize>,
    /// Bytes of the receive buffer; the kernel's choice if `None`.
    pub receive_buffer: Option<usize>,
    /// What is accepted keeps the headers of its SYN, for [`saved_syn`].
    pub save_syn: bool,
    /// Other sockets of this user may have the same address: the listeners of this process's loops
    /// ([`share_out`]), or what meets programs ([`crate::meeting`]).
    pub shared: bool,
    /// It is between a wrapped program and us, and no flow of ours: who wraps us lets it be. That takes
    /// CAP_NET_ADMIN; without it nobody can wrap us by a cgroup either.
    pub inside: bool,
}

/// The mark of sockets that are [inside](TcpOptions::inside).
pub(crate) const INSIDE: libc::c_int = 0x7665_0003;

/// What the SYN says beside its addresses.
#[derive(Clone, Copy, Debug)]
pub enum Telling<'a> {
    /// Nothing.
    Nothing,
    /// An option.
    Option(&'a SynOption, &'a [u8; OPTION]),
    /// What this end offers; the answer is there when the stream is.
    Offer(&'a Offers),
    /// Data, by Fast Open without a cookie (RFC 7413, 4.1.3.1): whoever knows nothing of it leaves it
    /// unacknowledged, and the kernel repeats it behind the handshake.
    Data(&'a [u8]),
}

/// Probes without an answer before a connection is given up.
const PROBES: u32 = 4;

/// Listens at `address`, not blocking, alone unless the options say otherwise. What it accepts has no
/// Nagle's delay.
///
/// # Errors
/// The address is in use or not this machine's, or a right is missing.
pub fn listen(address: SocketAddr, backlog: u32, options: TcpOptions) -> io::Result<TcpListener> {
    let socket = socket(address, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, options.shared)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Listens at a port of the kernel's choice at `ip`, not blocking; nobody else has that port. Sockets of
/// this user may share it from then on.
///
/// # Errors
/// No port is free, or the address is not this machine's.
pub fn listen_anywhere(ip: IpAddr, backlog: u32, options: TcpOptions) -> io::Result<TcpListener> {
    let at = SocketAddr::new(ip, 0);
    let socket = socket(at, options)?;
    rustix::net::bind(&socket, &at)?;
    // Not before: the kernel would choose a port that another who shares has.
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Has a listener hand out connections only when their clients have said something, at the latest
/// after about `patience` (`TCP_DEFER_ACCEPT`).
///
/// # Errors
/// It is no TCP socket.
pub fn await_words(listener: impl AsFd, patience: Duration) -> io::Result<()> {
    let seconds = libc::c_int::try_from(patience.as_secs()).unwrap_or(libc::c_int::MAX);
    os::setsockopt(listener.as_fd(), libc::SOL_TCP, libc::TCP_DEFER_ACCEPT, &seconds)
}

/// Sees that nobody listens at `address`, not even somebody who would share it.
///
/// # Errors
/// Somebody does, or the address is not this machine's.
pub fn check_free(address: SocketAddr, options: TcpOptions) -> io::Result<()> {
    let socket = socket(address, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, &address)?)
}

/// Has the kernel hand connections to so many listeners as [`filter::Share`] says, in the order in which
/// [`listen`] has opened them at one address, where nobody else listens; `listener` is one of them.
///
/// # Errors
/// It is no such listener.
pub fn share_out(listener: impl AsFd, of: u32) -> io::Result<()> {
    filter::attach_to_group(listener.as_fd(), &filter::listener_of(of))
}

/// Has a listener take no new connections; those whose handshake has begun still come about.
///
/// # Errors
/// It is no TCP socket.
pub fn take_no_more(listener: impl AsFd) -> io::Result<()> {
    filter::attach(listener.as_fd(), &filter::no_syns())
}

/// Begins to connect to `to`, from the address `from` if it is given. The answer comes when the
/// stream is writable: [`take_error`](TcpStream::take_error).
///
/// # Errors
/// It cannot even begin: no route, no port left.
pub fn connect(
    to: SocketAddr,
    from: Option<SocketAddr>,
    options: TcpOptions,
) -> io::Result<TcpStream> {
    connect_telling(to, from, options, Telling::Nothing).map(|(stream, _)| stream)
}

/// A socket at `from` that is to [`connect_bound`]; port 0 is one of the kernel's choice.
///
/// # Errors
/// The address is not this machine's, or taken.
pub fn bound(from: SocketAddr, options: TcpOptions) -> io::Result<TcpStream> {
    let socket = socket(from, options)?;
    if from.port() != 0 {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, options.shared)?;
    }
    rustix::net::bind(&socket, &from)?;
    Ok(TcpStream::from(socket))
}

/// Begins to connect such a socket, as [`connect`] does.
///
/// # Errors
/// It cannot even begin: the same two addresses were connected a moment ago.
pub fn connect_bound(socket: &TcpStream, to: SocketAddr) -> io::Result<()> {
    match rustix::net::connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The same with a SYN that tells something; and how many bytes of the data are said by that. Where
/// Fast Open is switched off (`net.ipv4.tcp_fastopen`) none are.
///
/// # Errors
/// As [`connect`]'s, and [`SynOption::set`]'s.
pub fn connect_telling(
    to: SocketAddr,
    from: Option<SocketAddr>,
    options: TcpOptions,
    telling: Telling<'_>,
) -> io::Result<(TcpStream, usize)> {
    let socket = socket(to, options)?;
    if let Some(from) = from {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, options.shared)?;
        rustix::net::bind(&socket, &from)?;
    }
    if let Telling::Data(data) = telling
        && os::setsockopt(socket.as_fd(), libc::SOL_TCP, TCP_FASTOPEN_NO_COOKIE, &1).is_ok()
    {
        match rustix::net::sendto(&socket, data, MSG_FASTOPEN, &to) {
            Ok(said) => return Ok((socket.into(), said)),
            Err(Errno::INPROGRESS) => return Ok((socket.into(), 0)),
            Err(Errno::OPNOTSUPP) => {} // switched off
            Err(error) => return Err(error.into()),
        }
    }
    if let Telling::Option(program, option) = telling {
        program.set(socket.as_fd(), option)?;
    }
    if let Telling::Offer(offers) = telling {
        offers.offer(socket.as_fd())?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok((socket.into(), 0)),
        Err(error) => {
            if let Telling::Option(program, _) = telling {
                program.clear(socket.as_fd());
            }
            Err(error.into())
        }
    }
}

/// The headers of the SYN that has begun an accepted connection, from its IP header on, without its
/// data; once only, and empty if its listener did not save them.
///
/// # Errors
/// None are known.
pub fn saved_syn(stream: impl AsFd) -> io::Result<Vec<u8>> {
    let mut syn = vec![0u8; SYN_HEADERS];
    let mut length = SYN_HEADERS as libc::socklen_t;
    let fd = stream.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `syn`, which is that long.
    os::check(unsafe {
        libc::getsockopt(fd, libc::SOL_TCP, TCP_SAVED_SYN, syn.as_mut_ptr().cast(), &raw mut length)
    })?;
    syn.truncate(length as usize);
    Ok(syn)
}

/// Has the stream end by a reset when it is closed.
///
/// # Errors
/// None are known.
pub fn reset_on_close(stream: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(stream, Some(Duration::ZERO))?)
}

/// Has the stream end as usual when it is closed, which undoes [`reset_on_close`].
///
/// # Errors
/// None are known.
pub fn end_on_close(stream: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(stream, None)?)
}

/// Has the other end probed when nothing was said for `quiet`, and the connection given up when four
/// probes, `quiet` apart at most, have no answer.
///
/// # Errors
/// It is no TCP socket.
pub fn keep_alive(stream: impl AsFd, quiet: Duration) -> io::Result<()> {
    // The kernel counts seconds.
    let quiet = Duration::from_secs(quiet.as_secs().clamp(1, 32_767));
    let socket = stream.as_fd();
    sockopt::set_tcp_keepidle(socket, quiet)?;
    sockopt::set_tcp_keepintvl(socket, quiet.min(Duration::from_secs(75)))?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Has the kernel send at most `bytes` a second, evenly (`SO_MAX_PACING_RATE`).
///
/// # Errors
/// None are known.
pub fn pace(stream: impl AsFd, bytes: u64) -> io::Result<()> {
    os::setsockopt(stream.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes)
}

/// Has the kernel take no more while so many bytes wait that were not sent once
/// (`TCP_NOTSENT_LOWAT`): what is written next need not wait behind them.
///
/// # Errors
/// None are known.
pub fn set_unsent_most(socket: impl AsFd, bytes: i32) -> io::Result<()> {
    os::setsockopt(socket.as_fd(), libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT, &bytes)
}

/// Bytes that were written and not yet sent once (`SIOCOUTQNSD`).
///
/// # Errors
/// None are known.
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    os::unsent(socket.as_fd())
}

/// Bytes a second at which the kernel sends what there is, as its congestion control has it now;
/// `None` while it has no measure yet.
///
/// # Errors
/// None are known.
pub fn pacing_rate(socket: impl AsFd) -> io::Result<Option<u64>> {
    let info: os::TcpInfo = os::getsockopt(socket.as_fd(), libc::SOL_TCP, libc::TCP_INFO)?;
    Ok(Some(info.pacing_rate).filter(|rate| (1..u64::MAX).contains(rate)))
}

/// What the kernel has measured of a connection that sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    /// Bytes that the other end has acknowledged.
    pub acked: u64,
    /// Bytes that were written and are not acknowledged; and those of them that were never sent.
    pub held: u64,
    /// See `held`.
    pub unsent: u64,
    /// Segments that were sent again.
    pub again: u64,
    /// The round trip, smoothed; 0 while there is no measure.
    pub rtt: Duration,
    /// The shortest of the last minutes; 0 while there is no measure.
    pub shortest: Duration,
    /// Bytes of a full segment.
    pub segment: u32,
}

/// How a connection's sending goes (`TCP_INFO`, `SIOCOUTQ`).
///
/// # Errors
/// It is no TCP connection.
pub fn sending(stream: impl AsFd) -> io::Result<Sending> {
    let fd = stream.as_fd();
    let info: os::TcpInfo = os::getsockopt(fd, libc::SOL_TCP, libc::TCP_INFO)?;
    let micros = |of: u32| Duration::from_micros(if of == u32::MAX { 0 } else { of.into() });
    Ok(Sending {
        acked: info.bytes_acked,
        held: os::unacknowledged(fd)? as u64,
        unsent: info.unsent.into(),
        again: info.sent_again().into(),
        // There is none before something was acknowledged.
        rtt: micros(info.rtt()),
        shortest: micros(info.min_rtt),
        segment: info.segment(),
    })
}

/// How a connection across a long link is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LongHaul {
    /// The congestion control, by the kernel's name; its default if `None`.
    pub congestion_control: Option<String>,
    /// Bytes that may wait to be sent or acknowledged; the kernel's choice if `None`. As root it may
    /// be beyond `net.core.wmem_max`.
    pub buffer: Option<usize>,
}

impl LongHaul {
    /// Sets up `stream`.
    ///
    /// # Errors
    /// The kernel has no such congestion control.
    pub fn apply(&self, stream: impl AsFd) -> io::Result<()> {
        let socket = stream.as_fd();
        if let Some(name) = &self.congestion_control {
            sockopt::set_tcp_congestion(socket, name)?;
        }
        if let Some(bytes) = self.buffer {
            // The kernel doubles it for its own bookkeeping.
            let half = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX);
            let forced = os::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &half);
            forced.or_else(|_| os::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &half))?;
        }
        Ok(())
    }
}

/// Sets up a listener that somebody else has opened as [`listen`] would have: what it accepts
/// follows.
///
/// # Errors
/// It is no TCP socket, or a right is missing.
pub fn adopt(listener: TcpListener, options: TcpOptions) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    apply(listener.as_fd(), listener.local_addr()?.is_ipv4(), options)?;
    Ok(listener)
}

fn socket(address: SocketAddr, options: TcpOptions) -> io::Result<rustix::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    apply(socket.as_fd(), address.is_ipv4(), options)?;
    Ok(socket)
}

fn apply(socket: BorrowedFd<'_>, v4: bool, options: TcpOptions) -> io::Result<()> {
    // An urgent byte stays where it stands in the stream, and whoever writes has put together what
    // is to be sent at once. What is accepted follows.
    sockopt::set_socket_oobinline(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    if options.transparent {
        set_transparent(socket, v4)?;
    }
    if options.inside {
        // Without the right there is nobody to tell.
        let _ = os::setsockopt(socket, libc::SOL_SOCKET, libc::SO_MARK, &INSIDE);
    }
    if options.save_syn {
        os::setsockopt(socket, libc::SOL_TCP, TCP_SAVE_SYN, &1)?;
    }
    if let Some(bytes) = options.send_buffer {
        // Beyond the system's limit, if we may.
        sockopt::set_socket_send_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_send_buffer_size(socket, bytes))?;
    }
    if let Some(bytes) = options.receive_buffer {
        sockopt::set_socket_recv_buffer_size_force(socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))?;
    }
    Ok(())
}

fn set_transparent(socket: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (level, name) = match v4 {
        true => (libc::SOL_IP, libc::IP_TRANSPARENT),
        false => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    };
    os::setsockopt(socket, level, name, &on)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_kernel_says_how_a_connection_sends() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        stream.write_all(&[7; 5_000]).unwrap();
        other.read_exact(&mut [0; 5_000]).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while sending(&stream).unwrap().held > 0 && std::time::Instant::now() < deadline {}
        let Sending { acked, held, unsent, again, rtt, shortest, segment } =
            sending(&stream).unwrap();
        // The SYN counts for a byte.
        assert_eq!((acked, held, unsent, again), (5_001, 0, 0, 0));
        assert!(rtt >= shortest && shortest > Duration::ZERO && rtt < Duration::from_secs(1));
        assert!(segment >= 536);
        assert!(pacing_rate(&stream).unwrap() > Some(0));
    }
}
