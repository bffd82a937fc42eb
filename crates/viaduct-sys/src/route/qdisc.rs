//! Drop counter of an interface's queueing discipline.

use std::io;
use std::os::fd::OwnedFd;

use crate::route::interface;
use crate::route::netlink::{self, Message};

/// `struct tcmsg`: family and padding, then interface, handle, parent and info.
const HEAD: usize = 20;
/// Attributes of an answer: statistics, and in them those of the queue
/// (`struct gnet_stats_queue`).
const STATISTICS: u16 = 7;
const QUEUE: u16 = 3;
/// Offset of the number of dropped packets in them, after the number and bytes of waiting ones.
const DROPPED: usize = 8;
/// Max packets dropped between two queries; beyond it the discipline was replaced and counts
/// anew.
const MAX_DROPS: u32 = 1 << 20;
/// Parent of the root discipline (`TC_H_ROOT`).
const ROOT: u32 = u32::MAX;

/// Query of an interface's root queueing discipline, whose counter includes inner ones.
#[derive(Debug)]
pub struct QdiscDrops {
    socket: OwnedFd,
    index: u32,
    /// Packets dropped as of the last query; `None` without a queue.
    dropped: Option<u32>,
}

impl QdiscDrops {
    /// Opens a query of the interface `name` in the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, or no descriptor is left.
    pub fn of(name: &str) -> io::Result<QdiscDrops> {
        let index = interface::index(name)?;
        let socket = netlink::open(libc::NETLINK_ROUTE, 0)?;
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
        let mut head = [0; HEAD];
        head[4..8].copy_from_slice(&self.index.to_ne_bytes());
        head[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        // The kernel answers a query about one discipline as an echo, and only if that is
        // requested.
        let question = Message::of_routing(libc::RTM_GETQDISC, netlink::NLM_F_ECHO, &head);
        let answer = netlink::ask(&self.socket, question, libc::RTM_NEWQDISC).ok()??;
        dropped(&answer)
    }
}

/// Parses the number of dropped packets from an answer.
fn dropped(answer: &[u8]) -> Option<u32> {
    let statistics = netlink::find(answer.get(HEAD..)?, STATISTICS)?;
    let queue = netlink::find(statistics, QUEUE)?;
    Some(u32::from_ne_bytes(*queue.get(DROPPED..)?.first_chunk()?))
}
