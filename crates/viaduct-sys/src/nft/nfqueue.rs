//! Packet queue (NFQUEUE): the kernel holds each packet until we give a verdict. Used for SYNs, and
//! by [`crate::nft::datagram_queue`].
//!
//! ```text
//!   SYN ──▶ [ rule: queue ] ── copy ──▶ recv()   …   verdict(id, Pass)   ──▶ continues unchanged
//!                 │ held in the kernel               verdict(id, Mark(m))──▶ continues, marked
//!                 └ no reader, or full: passes       verdict(id, Drop)
//! ```
//!
//! The rules that send SYNs to a queue are in [`crate::nft::syn_hold`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, recv};

use crate::os;
use crate::route::netlink;
use netlink::{Attributes, Message, NETFILTER_HEAD};

/// Buffer size for [`NfQueue::recv`]: a Fast Open SYN up to the MTU, and netlink headers.
pub const SNAP: usize = 4096;
/// Buffer size for a queue that copies packets whole: the longest packet, and netlink headers.
pub const WHOLE: usize = 65_536 + SNAP;
/// Max bytes of a SYN that are copied to us.
const MAX_COPY: u32 = 2048;
/// Size of the socket's receive buffer in bytes.
const BACKLOG: usize = 4 << 20;

const SUBSYSTEM: u16 = 3;
const PACKET: u16 = 0;
const VERDICT: u16 = 1;
const CONFIG: u16 = 2;
/// Type of a configuration message.
const CONFIG_MESSAGE: u16 = SUBSYSTEM << 8 | CONFIG;
// Attributes of a configuration.
const CFG_COMMAND: u16 = 1;
const CFG_PARAMETERS: u16 = 2;
const CFG_QUEUE_MAXLEN: u16 = 3;
const CFG_MASK: u16 = 4;
const CFG_FLAGS: u16 = 5;
const BIND: u8 = 1;
const UNBIND: u8 = 2;
const COPY_PACKET: u8 = 2;
/// Flag: packets pass when the queue is full.
const FAIL_OPEN: u32 = 1;
// Attributes of packets and verdicts.
const PACKET_HEAD: u16 = 1;
const VERDICT_HEAD: u16 = 2;
const MARK: u16 = 3;
const PAYLOAD: u16 = 10;
/// Netfilter hook of packets to this machine.
const LOCAL_IN: u8 = 1;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;
const SOL_NETLINK: libc::c_int = 270;
const NO_ENOBUFS: libc::c_int = 5;

/// A packet that the kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedPacket<'a> {
    /// Packet ID, for the verdict.
    pub id: u32,
    /// True if the packet is addressed to this machine, false if this machine sends or forwards it.
    pub is_inbound: bool,
    /// Packet mark; 0 for none.
    pub mark: u32,
    /// Packet, beginning with its IP header.
    pub packet: &'a [u8],
}

/// Verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Lets the packet continue.
    Pass,
    /// Lets the packet continue with this mark, which later rules see.
    Mark(u32),
    /// Drops the packet silently.
    Drop,
}

/// Reading end of a queue. When this end is closed, the kernel drops the held packets; later
/// packets pass if the rule has `bypass`.
#[derive(Debug)]
pub struct NfQueue {
    socket: OwnedFd,
    number: u16,
    most: u32,
    config: QueueConfig,
}

#[derive(Clone, Copy, Debug)]
struct QueueConfig {
    /// Max bytes of a packet that are copied to us.
    copy: u32,
    /// True if packets pass when the queue is full, false if they are dropped.
    fail_open: bool,
}

const SYNS: QueueConfig = QueueConfig { copy: MAX_COPY, fail_open: true };

impl NfQueue {
    /// Reads queue `number` of the calling thread's network namespace, which holds up to `most`
    /// packets. Further packets pass. Errors: the queue already has a reader or CAP_NET_ADMIN is
    /// missing (`EPERM`), or the kernel has no NFQUEUE.
    pub fn open(number: u16, most: u32) -> io::Result<NfQueue> {
        NfQueue::open_as(number, most, SYNS)
    }

    /// Opens a queue that drops packets when full, and copies the first `copy` bytes of each.
    pub(crate) fn open_closed(number: u16, most: u32, copy: u32) -> io::Result<NfQueue> {
        NfQueue::open_as(number, most, QueueConfig { copy, fail_open: false })
    }

    fn open_as(number: u16, most: u32, config: QueueConfig) -> io::Result<NfQueue> {
        let queue = NfQueue { socket: netlink::socket()?, number, most, config };
        // A full receive buffer is not an error: further packets pass or are dropped, as if the
        // queue were full.
        os::setsockopt(queue.socket.as_fd(), SOL_NETLINK, NO_ENOBUFS, &1)?;
        os::set_receive_buffer(queue.socket.as_fd(), BACKLOG)?;
        queue.bind()?;
        Ok(queue)
    }

    /// Wraps the socket of a queue that another process has opened with [`NfQueue::open`].
    pub fn inherited(socket: OwnedFd, number: u16, most: u32) -> NfQueue {
        NfQueue { socket, number, most, config: SYNS }
    }

    /// Drops all held packets and binds the queue again, after the process that gave the verdicts
    /// has died. Errors: those of [`NfQueue::open`].
    pub fn reset(&self) -> io::Result<()> {
        self.configure(&[(CFG_COMMAND, &[UNBIND, 0, 0, 0])])?;
        let mut packet = [0; SNAP];
        while self.recv(&mut packet)?.is_some() {}
        self.bind()
    }

    fn bind(&self) -> io::Result<()> {
        let copy = [&self.config.copy.to_be_bytes()[..], &[COPY_PACKET]].concat();
        let flags = if self.config.fail_open { FAIL_OPEN } else { 0 };
        self.configure(&[
            (CFG_COMMAND, &[BIND, 0, 0, 0]),
            (CFG_PARAMETERS, &copy),
            (CFG_QUEUE_MAXLEN, &self.most.to_be_bytes()),
            (CFG_MASK, &FAIL_OPEN.to_be_bytes()),
            (CFG_FLAGS, &flags.to_be_bytes()),
        ])
    }

    fn configure(&self, settings: &[(u16, &[u8])]) -> io::Result<()> {
        let message = Message::new(SUBSYSTEM, CONFIG, netlink::NLM_F_ACK, 0, self.number);
        let message = settings.iter().fold(message, |all, (kind, value)| all.with(*kind, value));
        netlink::send(&self.socket, &message.bytes())?;
        self.answer()
    }

    /// Reads the answer to a configuration. Packets that precede it in the socket are passed or
    /// dropped, as they would be if the queue were full.
    fn answer(&self) -> io::Result<()> {
        let verdict = if self.config.fail_open { Verdict::Pass } else { Verdict::Drop };
        let mut buffer = vec![0; WHOLE];
        loop {
            let len = match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => len,
                // The answer did not fit into the receive buffer.
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOBUFS) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(packet) = parse(&buffer[..len]) {
                self.verdict(packet.id, verdict)?;
            } else if let Some(answer) = netlink::answer_to(&buffer[..len], CONFIG_MESSAGE) {
                return answer;
            }
        }
    }

    /// Reads the next packet into `buffer`, which has [`SNAP`] bytes, or [`WHOLE`] for a queue that
    /// copies packets whole. `None` if none is queued. Errors: the socket is broken.
    pub fn recv<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<QueuedPacket<'a>>> {
        loop {
            let len = match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => len,
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOBUFS) => continue,
                Err(error) => return Err(error.into()),
            };
            // Other messages are errors about late verdicts, whose packets are gone.
            if parse(&buffer[..len]).is_some() {
                // Parsed twice, to satisfy the borrow checker.
                return Ok(parse(&buffer[..len]));
            }
        }
    }

    /// Gives the verdict on a packet. Errors: the kernel is out of memory.
    pub fn verdict(&self, id: u32, verdict: Verdict) -> io::Result<()> {
        netlink::send(&self.socket, &self.message(id, verdict))
    }

    /// Gives several verdicts, in order. Errors: those of [`NfQueue::verdict`].
    pub fn verdicts(&self, of: &[(u32, Verdict)]) -> io::Result<()> {
        let messages = of.iter().flat_map(|&(id, verdict)| self.message(id, verdict));
        netlink::send(&self.socket, &messages.collect::<Vec<u8>>())
    }

    fn message(&self, id: u32, verdict: Verdict) -> Vec<u8> {
        let code = if verdict == Verdict::Drop { NF_DROP } else { NF_ACCEPT };
        let head = [code.to_be_bytes(), id.to_be_bytes()].concat();
        let mut message =
            Message::new(SUBSYSTEM, VERDICT, 0, 0, self.number).with(VERDICT_HEAD, &head);
        if let Verdict::Mark(mark) = verdict {
            message = message.with(MARK, &mark.to_be_bytes());
        }
        message.bytes()
    }
}

impl AsFd for NfQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Option<QueuedPacket<'_>> {
    let (kind, message) = netlink::messages(bytes).next()?;
    if kind != SUBSYSTEM << 8 | PACKET {
        return None;
    }
    let attributes = message.get(NETFILTER_HEAD..)?;
    // Packet ID u32, protocol u16, hook u8.
    let head = netlink::find(attributes, PACKET_HEAD)?;
    let id = u32::from_be_bytes(*head.first_chunk()?);
    let is_inbound = head.get(6) == Some(&LOCAL_IN);
    let mark = netlink::find(attributes, MARK).and_then(<[u8]>::first_chunk);
    let mark = mark.map_or(0, |mark| u32::from_be_bytes(*mark));
    Some(QueuedPacket { id, is_inbound, mark, packet: netlink::find(attributes, PAYLOAD)? })
}

/// Adds a rule to `chain` of `table` (family inet) that sends all packets to queue `number`, or
/// lets them pass if the queue has no reader. Needed on kernels whose nftables lacks the `queue`
/// expression but can use the NFQUEUE target of iptables (`CONFIG_NFT_COMPAT`). Errors: the kernel
/// lacks `CONFIG_NFT_COMPAT` too, or there is no such chain.
pub(crate) fn xtables_rule(table: &str, chain: &str, number: u16) -> io::Result<()> {
    const NFTABLES: u16 = 10;
    const NEW_RULE: u16 = 6;
    const INET: u8 = 1;
    let expression = xtables_expression(number, true);
    let flags = netlink::NLM_F_ACK | netlink::NLM_F_CREATE | netlink::NLM_F_APPEND;
    let rule = Message::new(NFTABLES, NEW_RULE, flags, INET, 0)
        .with(1, format!("{table}\0").as_bytes())
        .with(2, format!("{chain}\0").as_bytes())
        .nest(4, &Attributes::default().nest(1, &expression));
    // Rules are sent in an atomic batch.
    let batch_bound = |kind| Message::new(0, kind, 0, 0, NFTABLES).bytes();
    let socket = netlink::socket()?;
    netlink::send(&socket, &[batch_bound(0x10), rule.bytes(), batch_bound(0x11)].concat())?;
    netlink::read_acks(&socket)
}

/// Builds the expression for iptables' NFQUEUE target that sends packets to queue `number`. While
/// the queue has no reader, packets pass if `bypass` is set, and are dropped otherwise.
pub(crate) fn xtables_expression(number: u16, bypass: bool) -> Attributes {
    const REVISION: u32 = 3;
    // `struct xt_NFQ_info_v3` of xt_NFQUEUE: first queue, number of queues, flags; padded to 8
    // bytes.
    let info = [number, 1, bypass.into(), 0].map(u16::to_ne_bytes).concat();
    let target =
        Attributes::default().with(1, b"NFQUEUE\0").with(2, &REVISION.to_be_bytes()).with(3, &info);
    Attributes::default().with(1, b"target\0").nest(2, &target)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::netns::Netns;
    use crate::nft::datagram_queue::queues;
    use crate::process::tool;

    const NUMBER: u16 = 7;

    #[test]
    fn packets_that_arrive_during_a_reset_get_a_verdict() {
        let check = || {
            tool::run("ip", &["link", "set", "lo", "up"], "").unwrap();
            let table = "table inet q { chain out { type filter hook output priority 0; }; }";
            tool::run("nft", &["-f", "-"], table).unwrap();
            let queue = NfQueue::open(NUMBER, 10_000).unwrap();
            let rule = format!("add rule inet q out queue num {NUMBER} bypass");
            tool::run("nft", &["-f", "-"], &rule)
                .map(drop)
                .or_else(|_| xtables_rule("q", "out", NUMBER))
                .unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = socket.local_addr().unwrap();
            let [sends, ends] = [true, false].map(AtomicBool::new);
            let idle = AtomicU32::new(0);
            let send = || {
                while !ends.load(Ordering::SeqCst) {
                    match sends.load(Ordering::SeqCst) {
                        true => _ = socket.send_to(&[0; 10], to),
                        false => _ = idle.fetch_add(1, Ordering::SeqCst),
                    }
                }
            };
            let drain = || -> io::Result<()> {
                let mut buffer = [0; SNAP];
                while let Some(packet) = queue.recv(&mut buffer)? {
                    queue.verdict(packet.id, Verdict::Pass)?;
                }
                Ok(())
            };
            // Returns the number of packets that the queue still holds after all have been read and
            // have got a verdict: it must be 0.
            let reset = || -> io::Result<Option<u64>> {
                queue.reset()?;
                sends.store(false, Ordering::SeqCst);
                let before = idle.load(Ordering::SeqCst);
                while idle.load(Ordering::SeqCst) < before + 2 {
                    drain()?;
                }
                drain()?;
                let held = queues().find(|of| of[0] == u64::from(NUMBER)).map(|of| of[2]);
                sends.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(300));
                Ok(held)
            };
            let held: Vec<_> = thread::scope(|scope| {
                scope.spawn(send);
                let held = (0..200).map(|_| reset()).collect();
                ends.store(true, Ordering::SeqCst);
                held
            });
            assert!(held.iter().all(|held| matches!(held, Ok(Some(0)))), "{held:?}");
        };
        Netns::new().unwrap().enter(check).unwrap();
    }
}
