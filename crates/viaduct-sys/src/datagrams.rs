//! Datagrams of a group's programs, each held by the kernel until we say that it may go on.
//!
//! Nothing of a datagram changes: its socket, its addresses and what it carries are the program's and
//! its peer's. So there is nothing that a program could notice but the time that passes.
//!
//! ```text
//!   program ─▶ [ rule: of the group? queue ]─┐                  ┌─▶ the network
//!   network ─▶ [ rule: to the group? queue ]─┴─▶ recv, verdict ─┴─▶ the program's socket
//! ```
//!
//! The rules are a table of nftables that the kernel keeps for as long as our socket is open, and
//! takes away when this process ends, however it ends, and whoever it was given to. What is held then is
//! dropped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::bpf::Group;
use crate::netlink::{self, Attributes, Message, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};
use crate::nfqueue::{self, Held, SynQueue, Verdict};

/// Datagrams that the kernel holds at once; what finds no room is dropped.
pub const MOST: u32 = 16_384;
/// Verdicts in one message: more might find no room in the socket.
const AT_ONCE: usize = 256;
/// Bytes of a datagram that are read: its headers.
const COPY: u32 = 160;
/// Those where all of it is: as many as an attribute of netlink's holds.
const WHOLE_PACKET: u32 = 65_531;
/// Queues of other services have low numbers, as people give them; ours begin here.
const FIRST: u16 = 30_000;
/// How often it is looked whether others hold anything.
const LOOK: Duration = Duration::from_millis(2);
/// Numbers that are tried.
const TRIES: u16 = 256;

/// Why datagrams cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum DatagramError {
    /// There is no queue.
    #[error("the kernel gives no queue for packets: this takes CAP_NET_ADMIN and NFQUEUE")]
    Queue(#[source] io::Error),
    /// There are no rules.
    #[error(
        "the kernel takes no rule for a group's datagrams: this takes nftables with `socket \
         cgroupv2` and tables that have an owner (Linux 5.13)"
    )]
    Rules(#[source] io::Error),
}

/// The reading end.
#[derive(Debug)]
pub struct Datagrams {
    queue: SynQueue,
    number: u16,
    /// The table is there while this is open.
    rules: Mutex<Option<OwnedFd>>,
}

impl Datagrams {
    /// Holds the datagrams of `group`'s sockets from now on, in the calling thread's network namespace; of
    /// each the headers are read, or all of it.
    ///
    /// # Errors
    /// A right is missing, or the kernel lacks something.
    pub fn hold(group: &Group, whole: bool) -> Result<Datagrams, DatagramError> {
        let copy = if whole { WHOLE_PACKET } else { COPY };
        let (number, queue) = any_queue(copy).map_err(DatagramError::Queue)?;
        let (level, id) = group.identity().map_err(DatagramError::Rules)?;
        let own = Rules { number, level, id, queue: native(number) };
        // Some kernels have iptables' queue only.
        let rules = own.apply().or_else(|_| {
            let queue = nfqueue::borrowed(number, false);
            Rules { queue, ..own }.apply()
        });
        let rules = Mutex::new(Some(rules.map_err(DatagramError::Rules)?));
        Ok(Datagrams { queue, number, rules })
    }

    /// Reads the next into `buffer`, of [`nfqueue::SNAP`] or [`nfqueue::WHOLE`] bytes; `None` if none waits.
    /// Its headers are there, and not all the rest unless that was asked for.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn recv<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<Held<'a>>> {
        self.queue.recv(buffer)
    }

    /// How many found no room in the kernel so far, and were dropped: none in the queue, or none in the
    /// socket.
    pub fn lost(&self) -> u64 {
        let ours = queues().find(|queue| queue[0] == u64::from(self.number));
        ours.map_or(0, |queue| queue[5] + queue[6])
    }

    /// Holds no more. Taking rules away has the kernel drop all that any queue of this network namespace
    /// holds, so this waits until the others hold nothing, for as long as `patience` lasts.
    pub fn end(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let others = || queues().any(|queue| queue[0] != u64::from(self.number) && queue[2] > 0);
        while others() && Instant::now() < until {
            thread::sleep(LOOK);
        }
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// What the rules last as long as: should this process be killed while somebody else has it, datagrams
    /// are dropped, and do not go by themselves.
    pub fn rules(&self) -> Option<OwnedFd> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.as_ref().and_then(|rules| rules.try_clone().ok())
    }

    /// Says what becomes of some, in this order.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn verdicts(&self, of: &[(u32, Verdict)]) -> io::Result<()> {
        of.chunks(AT_ONCE).try_for_each(|some| self.queue.verdicts(some))
    }
}

impl AsFd for Datagrams {
    /// Readable when one waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

/// All queues of packets: number, reader, packets that wait, how and how much is copied, packets that found
/// no room, and so on.
fn queues() -> impl Iterator<Item = [u64; 7]> {
    let table = std::fs::read_to_string("/proc/net/netfilter/nfnetlink_queue").unwrap_or_default();
    let line = |line: &str| {
        let numbers: Vec<u64> =
            line.split_whitespace().map_while(|number| number.parse().ok()).collect();
        numbers.first_chunk().copied()
    };
    table.lines().filter_map(line).collect::<Vec<_>>().into_iter()
}

/// A queue that nobody reads.
fn any_queue(copy: u32) -> io::Result<(u16, SynQueue)> {
    let mut number = FIRST;
    loop {
        match SynQueue::open_closed(number, MOST, copy) {
            Ok(queue) => return Ok((number, queue)),
            // The kernel says so of one that somebody else reads.
            Err(error) if number < FIRST + TRIES && is_taken(&error) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EBUSY))
}

/// The rules that lead a group's datagrams to a queue.
struct Rules {
    /// The queue's, and the table's: nobody else has it.
    number: u16,
    level: u32,
    id: u64,
    /// The expression that does.
    queue: Attributes,
}

// Of nftables: its part of netfilter, and what it is asked for.
const NFTABLES: u16 = 10;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const INET: u8 = 1;
/// The table belongs to the socket that makes it.
const OWNER: u32 = 2;
/// Where packets come to this machine, and where they leave it.
const HOOKS: [(&str, u32); 2] = [("in", 1), ("out", 3)];
/// Behind the firewall's rules: what those refuse does not come so far.
const PRIORITY: i32 = 10;
/// Where expressions keep what they have read.
const REGISTER: u32 = 1;
const TRANSPORT: u32 = 16;
const CGROUP: u32 = 3;
const UDP: u8 = libc::IPPROTO_UDP as u8;

impl Rules {
    /// Puts them in place, all or none, for as long as what is returned is open.
    fn apply(&self) -> io::Result<OwnedFd> {
        let table = format!("viaduct_run_{}\0", self.number);
        let begin = |kind, flags| Message::new(NFTABLES, kind, flags | NLM_F_ACK, INET, 0);
        let mut batch = vec![fence(BATCH_BEGIN)];
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
        batch.push(fence(BATCH_END));
        let socket = netlink::socket()?;
        netlink::send(&socket, &batch.concat())?;
        netlink::answers(&socket)?;
        Ok(socket)
    }

    /// If it is a datagram, and its socket the group's, it goes to the queue.
    fn expressions(&self) -> Attributes {
        let register = REGISTER.to_be_bytes();
        let transport = Attributes::default().with(1, &register).with(2, &TRANSPORT.to_be_bytes());
        let group = Attributes::default()
            .with(1, &CGROUP.to_be_bytes())
            .with(2, &register)
            .with(3, &self.level.to_be_bytes());
        let all = [
            expression("meta", &transport),
            is(&[UDP]),
            expression("socket", &group),
            is(&self.id.to_ne_bytes()),
        ];
        let list = all.iter().fold(Attributes::default(), |list, one| list.nest(1, one));
        list.nest(1, &self.queue)
    }
}

/// nftables' own expression that leads to queue `number`; where nobody reads it, packets are dropped.
fn native(number: u16) -> Attributes {
    let one = 1u16.to_be_bytes();
    expression("queue", &Attributes::default().with(1, &number.to_be_bytes()).with(2, &one))
}

/// What was read last is `value`.
fn is(value: &[u8]) -> Attributes {
    let compared = Attributes::default()
        .with(1, &REGISTER.to_be_bytes())
        .with(2, &0u32.to_be_bytes())
        .nest(3, &Attributes::default().with(1, value));
    expression("cmp", &compared)
}

fn expression(name: &str, data: &Attributes) -> Attributes {
    Attributes::default().with(1, format!("{name}\0").as_bytes()).nest(2, data)
}

/// Rules come in batches, all of one or nothing.
fn fence(kind: u16) -> Vec<u8> {
    Message::new(0, kind, 0, 0, NFTABLES).bytes()
}
