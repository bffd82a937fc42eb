//! Sends with an address: datagrams, and sends that open a stream (TCP Fast Open).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, sockopt};
use viaduct_proto::wrap::{Errno, MSG_FASTOPEN, Sockaddr, Socket, Verdict, parse_sockaddr, wire};
use viaduct_sys::netns::capture_ns::is_in_this_netns;
use viaduct_sys::seccomp::{Notification, Reply};
use viaduct_sys::socket::pending::is_blocking;
use viaduct_sys::socket::sendmsg::Message;

use super::arguments::{Header, MSGHDR, Span};
use super::connects::pace;
use super::direct_sends::{DONTWAIT, Sending};
use super::{CONTINUE, Outcome, Supervisor, errno_of, reply_now};

/// Maximum number of bytes that a send with TCP Fast Open accepts: the send buffer of a new socket.
const MAX_FAST_OPEN: usize = 16 << 10;
/// Approximate limit of the bytes sent for one `sendmmsg`; the program must send the rest in
/// another call.
const MAX_BYTES: usize = 1 << 20;
/// Maximum size of a DNS query, in bytes.
const MAX_QUERY: usize = 4096;

/// Payload of a send: plain bytes, or the header of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    Plain(Span),
    Header(Header),
}

impl Payload {
    fn first(self) -> Span {
        match self {
            Payload::Plain(data) => data,
            Payload::Header(header) => header.first,
        }
    }
}

impl Supervisor {
    /// Handles a send with an address, which sends a datagram or opens a stream.
    pub(super) fn send(
        &mut self,
        call: &Notification,
        fd: u64,
        flags: u64,
        (at, size): Span,
        payload: Payload,
    ) -> Outcome {
        if at == 0 {
            return CONTINUE;
        }
        let (sockaddr, size) = self.sockaddr(call, at, size)?;
        let (socket, is) = self.duplicate(call, fd)?;
        let (sockaddr, size) = is.as_sent(&sockaddr[..size]);
        match self.interposition.rules.send(is, flags as i32, &sockaddr[..size]) {
            Verdict::Pass if !self.is_sent_here(&socket, is) => CONTINUE,
            Verdict::Pass if flags as i32 & MSG_FASTOPEN != 0 && !is.is_of_datagrams() => {
                // The kernel would read the address again, so `--strict` refuses Fast Open.
                let strict = self.interposition.rules.strict;
                if strict { Err(Errno::OPNOTSUPP) } else { CONTINUE }
            }
            Verdict::Pass => {
                let message = match payload {
                    Payload::Plain(data) => self.copy_plain(call, data)?,
                    Payload::Header(header) => self.copy(call, &header)?,
                };
                let messages = vec![Message { sockaddr: sockaddr[..size].to_vec(), ..message }];
                let sending = Sending { socket, flags: flags as i32, messages, lengths: None };
                self.send_all(call, sending)
            }
            Verdict::Refuse(errno) => Err(self.refuse(wire::Call::Send, is, &sockaddr, errno)),
            Verdict::Resolve(server) => {
                let at = self.resolver(is, server)?;
                let query = self.read_up_to(call, payload.first(), MAX_QUERY)?;
                send_query(&socket, &query, &at).map(|sent| Some(Reply::Returned(sent)))
            }
            Verdict::Divert(_) if self.interposition.offload.is_some() => {
                pace(&socket, self.interposition.offload)?;
                CONTINUE
            }
            Verdict::Divert(_) if !is_in_this_netns(&socket) => {
                Err(self.refuse(wire::Call::Send, is, &sockaddr, Errno::PERM))
            }
            Verdict::Divert(to) => {
                let bytes = self.read_up_to(call, payload.first(), MAX_FAST_OPEN)?;
                // A non-blocking call sends no data, like the kernel without a Fast Open cookie.
                let waits =
                    flags as i32 & DONTWAIT == 0 && is_blocking(&socket).map_err(errno_of)?;
                let answer = waits.then(|| self.deferred_answer(call, &socket, Some(bytes)));
                Ok(reply_now(self.interposition.begin(socket, to, answer)))
            }
        }
    }

    /// Handles `sendmmsg`. The rules are applied to each message. If a message would open a stream
    /// or is a DNS query, the call fails with `EOPNOTSUPP`.
    pub(super) fn send_many(&mut self, call: &Notification) -> Outcome {
        let [fd, headers, count, flags, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let opens = flags as i32 & MSG_FASTOPEN != 0;
        if is.is_tcp() && !opens {
            return CONTINUE;
        }
        // A stream's messages may be longer than a datagram.
        let here = !is.is_tcp() && self.is_sent_here(&socket, is);
        let (mut messages, mut lengths, mut bytes) = (Vec::new(), Vec::new(), 0);
        for n in 0..count.min(1024) {
            // A `struct mmsghdr` is a header and a length.
            let at = headers + n * (MSGHDR as u64 + 8);
            let header = self.message(call, at)?;
            let (name, mut to) = (header.name, Vec::new());
            if name.0 != 0 {
                let (sockaddr, size) = self.sockaddr(call, name.0, name.1)?;
                let (sockaddr, size) = is.as_sent(&sockaddr[..size]);
                to.extend(&sockaddr[..size]);
            }
            if here && bytes < MAX_BYTES {
                let message = self.copy(call, &header)?;
                bytes += message.data.len();
                messages.push(Message { sockaddr: to.clone(), ..message });
                lengths.push(at + MSGHDR as u64);
            }
            if name.0 == 0 {
                continue;
            }
            let sockaddr = &to;
            match self.interposition.rules.send(is, flags as i32, sockaddr) {
                // The kernel would read the address again.
                Verdict::Pass if is.is_tcp() && self.interposition.rules.strict => {
                    return Err(Errno::OPNOTSUPP);
                }
                Verdict::Pass => {}
                Verdict::Divert(_) | Verdict::Resolve(_) => return Err(Errno::OPNOTSUPP),
                Verdict::Refuse(errno) => {
                    return Err(self.refuse(wire::Call::Send, is, sockaddr, errno));
                }
            }
        }
        if messages.is_empty() {
            return CONTINUE;
        }
        let lengths = Some(lengths);
        self.send_all(call, Sending { socket, flags: flags as i32, messages, lengths })
    }

    /// Returns whether the supervisor makes the direct sends of this socket. The kernel makes those
    /// of sockets in the capture namespace, which cannot reach anything outside, and of sockets of
    /// families other than IP, whose data does not leave this host.
    fn is_sent_here(&self, socket: &OwnedFd, is: Socket) -> bool {
        is.is_of_ip() && is_in_this_netns(socket)
    }
}

/// Sends a DNS query for the program, to the address `at`. Returns the number of bytes to report as
/// sent.
fn send_query(socket: &OwnedFd, query: &[u8], at: &[u8]) -> Result<i64, Errno> {
    let Sockaddr::Ip(to) = parse_sockaddr(at) else { return Err(Errno::NETUNREACH) };
    let to = match to {
        SocketAddr::V4(v4) if sockopt::socket_domain(socket) == Ok(AddressFamily::INET6) => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
        }
        to => to,
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendto(socket, query, flags, &to) {
        Ok(sent) => Ok(sent as i64),
        Err(errno) => Err(Errno(errno.raw_os_error())),
    }
}
