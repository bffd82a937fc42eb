//! Queueing disciplines of an interface: drop counter, and detection of ingress disciplines.

use std::io;

use crate::route::interface;
use crate::route::netlink::{NLM_F_ECHO, find};
use crate::route::rtnetlink::{Body, RouteSocket};

/// Max packets dropped between two queries. A larger difference means that the discipline was
/// replaced and its counter restarted.
const MAX_DROPS: u32 = 1 << 20;
/// Parents, from `linux/pkt_sched.h`: `TC_H_ROOT` and `TC_H_INGRESS`.
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
/// Attributes: statistics, and within them those of the queue.
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
/// Bytes before the attributes of a message.
const HEAD: usize = 20;
/// Offset of the number of drops in the statistics of the queue.
const DROPS: usize = 8;

/// Query of an interface's root queueing discipline, whose counter includes its children's drops.
#[derive(Debug)]
pub struct QdiscDrops {
    socket: RouteSocket,
    index: u32,
    /// Value of the counter at the last query; `None` if the interface had no queueing discipline.
    dropped: Option<u32>,
}

impl QdiscDrops {
    /// Opens a query of the interface `name` in the calling thread's network namespace. Errors:
    /// there is no such interface, or no descriptor is left.
    pub fn of(name: &str) -> io::Result<QdiscDrops> {
        let index = interface::index(name)?;
        let socket = RouteSocket::open()?;
        let mut queue = QdiscDrops { socket, index, dropped: None };
        queue.dropped = queue.ask();
        Ok(queue)
    }

    /// Returns the number of packets dropped since the last call.
    pub fn take_drops(&mut self) -> u32 {
        let now = self.ask();
        let before = std::mem::replace(&mut self.dropped, now);
        let more = now.zip(before).map_or(0, |(now, before)| now.wrapping_sub(before));
        if more <= MAX_DROPS { more } else { 0 }
    }

    fn ask(&self) -> Option<u32> {
        let question = Qdisc { index: self.index, parent: ROOT, dropped: None };
        // The kernel answers a query about a single discipline only with `NLM_F_ECHO`.
        self.socket.get(&question, NLM_F_ECHO).ok()??.dropped
    }
}

/// Returns whether the interface `name` of the calling thread's network namespace has a queueing
/// discipline for `tc` rules about received packets: `ingress` or `clsact`.
///
/// # Errors
/// There is no such interface, or the netlink request fails.
pub fn has_ingress(name: &str) -> io::Result<bool> {
    let question = Qdisc { index: interface::index(name)?, parent: 0, dropped: None };
    let all = RouteSocket::open()?.dump(&question)?;
    Ok(all.iter().any(|one| one.index == question.index && one.parent == INGRESS))
}

/// Message about a queueing discipline.
///
/// ```text
///   family u8 │ - u8 │ - u16 │ interface u32 │ handle u32 │ parent u32 │ - u32 │ attributes
/// ```
#[derive(Debug)]
struct Qdisc {
    /// Index of the interface.
    index: u32,
    /// Handle of the parent, such as [`ROOT`].
    parent: u32,
    /// Packets dropped, if the kernel counts them.
    dropped: Option<u32>,
}

impl Body for Qdisc {
    const NEW: u16 = libc::RTM_NEWQDISC;

    fn bytes(&self) -> Vec<u8> {
        [0, self.index, 0, self.parent, 0].into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    fn parse(bytes: &[u8]) -> Option<Qdisc> {
        let (head, attributes) = bytes.split_at_checked(HEAD)?;
        let drops = || {
            let queue = find(find(attributes, TCA_STATS2)?, TCA_STATS_QUEUE)?;
            field(queue, DROPS)
        };
        Some(Qdisc { index: field(head, 4)?, parent: field(head, 12)?, dropped: drops() })
    }
}

fn field(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|&number| u32::from_ne_bytes(number))
}
