//! Datagrams of the programs in a cgroup, each held by the kernel until we give a verdict.
//!
//! A datagram is not changed: it is sent from and received at the program's own socket, with its
//! addresses and its payload. A program can only notice the delay.
//!
//! ```text
//!   program ─▶ [ rule: of the group? queue ]─┐                  ┌─▶ the network
//!   network ─▶ [ rule: to the group? queue ]─┴─▶ recv, verdict ─┴─▶ the program's socket
//! ```
//!
//! The rules are in an nftables table that the kernel deletes when our socket is closed, that is,
//! once this process and every process that was given the socket have ended, even by a crash. The
//! kernel then drops the datagrams that it holds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::bpf::Group;
use crate::nft::nfqueue::{self, NfQueue, QueuedPacket, Verdict};
use crate::route::netlink::{self, Attributes, Message, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};

/// Max datagrams that the kernel holds at a time; further datagrams are dropped.
pub const MAX_QUEUED: u32 = 16_384;
/// Max verdicts in one message; more might not fit into the socket's buffer.
const MAX_VERDICTS: usize = 256;
/// Max bytes of a datagram that are read: its headers.
const MAX_HEADERS: u32 = 160;
/// Max bytes if whole datagrams are read: the maximum of a netlink attribute.
const MAX_DATAGRAM: u32 = 65_531;
/// Lowest queue number tried: low numbers are the usual choice of other services.
const FIRST_NUMBER: u16 = 30_000;
/// Poll interval while other queues hold packets.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// End of the queue numbers that are tried.
const END_NUMBER: u16 = FIRST_NUMBER + 256;

/// Errors of holding datagrams.
#[derive(Debug, thiserror::Error)]
pub enum DatagramError {
    /// No queue could be opened.
    #[error("cannot open a packet queue (requires CAP_NET_ADMIN and NFQUEUE)")]
    Queue(#[source] io::Error),
    /// The kernel refused the rules.
    #[error(
        "cannot add rules for a cgroup's datagrams (requires nftables with `socket \
         cgroupv2` and tables that have an owner, Linux 5.13)"
    )]
    Rules(#[source] io::Error),
}

/// Reading end of the queue.
#[derive(Debug)]
pub struct DatagramQueue {
    queue: NfQueue,
    number: u16,
    /// Socket that owns the table; closing it deletes the table.
    rules: Mutex<Option<OwnedFd>>,
}

impl DatagramQueue {
    /// Holds the datagrams of `group`'s sockets from now on, in the calling thread's network
    /// namespace. Reads whole datagrams if `whole` is set, otherwise only their headers. Errors:
    /// CAP_NET_ADMIN is missing, or the kernel lacks a feature.
    pub fn open(group: &Group, whole: bool) -> Result<DatagramQueue, DatagramError> {
        let copy = if whole { MAX_DATAGRAM } else { MAX_HEADERS };
        let group = group.identity().map_err(DatagramError::Rules)?;
        let mut from = FIRST_NUMBER;
        loop {
            let (number, queue) = any_queue(from, copy).map_err(DatagramError::Queue)?;
            match Rules::install(number, group) {
                Ok(rules) => {
                    return Ok(DatagramQueue { queue, number, rules: Mutex::new(Some(rules)) });
                }
                // The table of this number still exists: its process was killed, but another one
                // holds the descriptor that owns the table ([`DatagramQueue::rules`]).
                Err(error) if number + 1 < END_NUMBER && is_taken(&error) => from = number + 1,
                Err(error) => return Err(DatagramError::Rules(error)),
            }
        }
    }

    /// Reads the next datagram into `buffer`, which has [`nfqueue::SNAP`] bytes, or
    /// [`nfqueue::WHOLE`] if the queue reads whole datagrams. `None` if none is queued. In a
    /// queue that reads headers, the datagram may be truncated after its headers. Errors: the
    /// socket is broken.
    pub fn recv<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<QueuedPacket<'a>>> {
        self.queue.recv(buffer)
    }

    /// Returns the number of datagrams dropped so far for lack of room in the queue or the socket.
    pub fn lost(&self) -> u64 {
        let ours = queues().find(|queue| queue[0] == u64::from(self.number));
        ours.map_or(0, |queue| queue[5] + queue[6])
    }

    /// Removes the rules. The kernel then drops all packets held in any queue of this network
    /// namespace, so this function first waits, for at most `timeout`, until the other queues are
    /// empty.
    pub fn end(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let others = || queues().any(|queue| queue[0] != u64::from(self.number) && queue[2] > 0);
        while others() && Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
        }
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Returns a duplicate of the descriptor that owns the rules. While another process holds the
    /// duplicate, datagrams are dropped if this process is killed, rather than bypassing the
    /// handlers.
    pub fn rules(&self) -> Option<OwnedFd> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.as_ref().and_then(|rules| rules.try_clone().ok())
    }

    /// Gives several verdicts, in order. Errors: the kernel is out of memory.
    pub fn verdicts(&self, of: &[(u32, Verdict)]) -> io::Result<()> {
        of.chunks(MAX_VERDICTS).try_for_each(|some| self.queue.verdicts(some))
    }
}

impl AsFd for DatagramQueue {
    /// Readable when a datagram is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// Reads the list of all packet queues of the calling thread's network namespace: number, reader's
/// port ID, queued packets, copy mode and range, and packets dropped by the queue and by its
/// socket.
pub(crate) fn queues() -> impl Iterator<Item = [u64; 7]> {
    let table = std::fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue")
        .unwrap_or_default();
    let line = |line: &str| {
        let numbers: Vec<u64> =
            line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        numbers.first_chunk().copied()
    };
    table.lines().filter_map(line).collect::<Vec<_>>().into_iter()
}

/// Opens the first free queue whose number is `from` or higher.
fn any_queue(from: u16, copy: u32) -> io::Result<(u16, NfQueue)> {
    let mut number = from;
    loop {
        match NfQueue::open_closed(number, MAX_QUEUED, copy) {
            Ok(queue) => return Ok((number, queue)),
            // The queue has another reader.
            Err(error) if number + 1 < END_NUMBER && is_taken(&error) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EBUSY))
}

/// Rules that send a group's datagrams to a queue.
struct Rules {
    /// Number of the queue and of the table; unique to this process.
    number: u16,
    level: u32,
    id: u64,
    /// Expression that sends packets to the queue.
    queue: Attributes,
}

// Netfilter subsystem and message types of nftables.
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const INET: u8 = 1;
/// Table flag: the table belongs to the socket that creates it.
const OWNER: u32 = 2;
/// Hooks of packets to this machine and from it.
const HOOKS: [(&str, u32); 2] = [("in", 1), ("out", 3)];
/// Priority after the firewall's rules, so that packets that the firewall drops are not queued.
const PRIORITY: i32 = 10;
/// Register into which expressions load their result.
const REGISTER: u32 = 1;
const TRANSPORT: u32 = 16;
const CGROUP: u32 = 3;
const UDP: u8 = libc::IPPROTO_UDP as u8;

impl Rules {
    /// Installs the rules that send datagrams of the group with this level and identity to queue
    /// `number`. They exist until the returned descriptor is closed.
    fn install(number: u16, (level, id): (u32, u64)) -> io::Result<OwnedFd> {
        let own = Rules { number, level, id, queue: nft_expression(number) };
        own.apply().or_else(|error| {
            // Some kernels have only iptables' NFQUEUE target. Elsewhere the error of the `queue`
            // expression is clearer.
            let queue = nfqueue::xtables_expression(number, false);
            Rules { queue, ..own }.apply().map_err(|_| error)
        })
    }

    /// Installs the rules atomically. They exist until the returned descriptor is closed.
    fn apply(&self) -> io::Result<OwnedFd> {
        let table = format!("viaduct_run_{}\0", self.number);
        let begin = |kind, flags| Message::new(NFTABLES, kind, flags | NLM_F_ACK, INET, 0);
        let mut batch = vec![batch_bound(BATCH_BEGIN)];
        batch.push(
            begin(NEW_TABLE, NLM_F_CREATE)
                .with(1, table.as_bytes())
                .with(2, &OWNER.to_be_bytes())
                .bytes(),
        );
        for (name, hook) in HOOKS {
            let name = format!("{name}\0");
            let at =
                Attributes::default().with(1, &hook.to_be_bytes()).with(2, &PRIORITY.to_be_bytes());
            let chain = begin(NEW_CHAIN, NLM_F_CREATE)
                .with(1, table.as_bytes())
                .with(3, name.as_bytes())
                .nest(4, &at)
                .with(7, b"filter\0");
            let rule = begin(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND)
                .with(1, table.as_bytes())
                .with(2, name.as_bytes())
                .nest(4, &self.expressions());
            batch.extend([chain.bytes(), rule.bytes()]);
        }
        batch.push(batch_bound(BATCH_END));
        let socket = netlink::socket()?;
        netlink::send(&socket, &batch.concat())?;
        netlink::read_acks(&socket)?;
        Ok(socket)
    }

    /// Builds the rule that sends UDP datagrams of the group's sockets to the queue.
    fn expressions(&self) -> Attributes {
        let register = REGISTER.to_be_bytes();
        let transport = Attributes::default().with(1, &register).with(2, &TRANSPORT.to_be_bytes());
        let group = Attributes::default()
            .with(1, &CGROUP.to_be_bytes())
            .with(2, &register)
            .with(3, &self.level.to_be_bytes());
        let all = [
            expression("meta", &transport),
            equals(&[UDP]),
            expression("socket", &group),
            equals(&self.id.to_ne_bytes()),
        ];
        let list = all.iter().fold(Attributes::default(), |list, one| list.nest(1, one));
        list.nest(1, &self.queue)
    }
}

/// Builds nftables' `queue` expression. Without a reader of the queue, packets are dropped.
fn nft_expression(number: u16) -> Attributes {
    let one = 1u16.to_be_bytes();
    expression("queue", &Attributes::default().with(1, &number.to_be_bytes()).with(2, &one))
}

/// Builds the comparison of the register with `value`.
fn equals(value: &[u8]) -> Attributes {
    let compared = Attributes::default()
        .with(1, &REGISTER.to_be_bytes())
        .with(2, &0u32.to_be_bytes())
        .nest(3, &Attributes::default().with(1, value));
    expression("cmp", &compared)
}

fn expression(name: &str, data: &Attributes) -> Attributes {
    Attributes::default().with(1, format!("{name}\0").as_bytes()).nest(2, data)
}

/// Builds the start or end of a batch, which the kernel applies atomically.
fn batch_bound(kind: u16) -> Vec<u8> {
    Message::new(0, kind, 0, 0, NFTABLES).bytes()
}
