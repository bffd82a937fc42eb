//! The queue that an interface's packets wait in before they leave: its queueing discipline.

use std::io;
use std::os::fd::OwnedFd;

use crate::interface;
use crate::netlink::{self, Message};

/// `struct tcmsg`: family and padding, then interface, handle, parent and info.
const HEAD: usize = 20;
/// Attributes of an answer: statistics, and those of the queue (`struct gnet_stats_queue`) among them.
const STATISTICS: u16 = 7;
const QUEUE: u16 = 3;
/// Where the packets dropped stand in those: behind the packets and bytes that wait.
const DROPPED: usize = 8;
/// Packets that can be dropped between two questions, at most: a discipline that was replaced counts anew.
const MOST: u32 = 1 << 20;
/// The parent of the outermost discipline (`TC_H_ROOT`).
const ROOT: u32 = u32::MAX;

/// Asks for the outermost queueing discipline of one interface, which counts what those within drop.
#[derive(Debug)]
pub struct OwnQueue {
    socket: OwnedFd,
    index: u32,
    /// Packets that it had dropped when it was last asked; `None` where packets wait in none.
    dropped: Option<u32>,
}

impl OwnQueue {
    /// Of the interface `name` in the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no such interface, or no socket is left.
    pub fn of(name: &str) -> io::Result<OwnQueue> {
        let index = interface::index(name)?;
        let socket = netlink::hear(libc::NETLINK_ROUTE, 0)?;
        let mut queue = OwnQueue { socket, index, dropped: None };
        queue.dropped = queue.ask();
        Ok(queue)
    }

    /// Packets that it has dropped since it was last asked.
    pub fn take_drops(&mut self) -> u32 {
        let now = self.ask();
        let before = std::mem::replace(&mut self.dropped, now);
        let more = now.zip(before).map_or(0, |(now, before)| now.wrapping_sub(before));
        if more <= MOST { more } else { 0 }
    }

    fn ask(&self) -> Option<u32> {
        let mut head = [0; HEAD];
        head[4..8].copy_from_slice(&self.index.to_ne_bytes());
        head[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        // The kernel answers a question about one discipline as it echoes a change, and only if asked to.
        let question = Message::of_routing(libc::RTM_GETQDISC, netlink::NLM_F_ECHO, &head);
        let answer = netlink::ask(&self.socket, question, libc::RTM_NEWQDISC).ok()??;
        dropped(&answer)
    }
}

/// Packets dropped, as an answer tells them.
fn dropped(answer: &[u8]) -> Option<u32> {
    let statistics = netlink::find(answer.get(HEAD..)?, STATISTICS)?;
    let queue = netlink::find(statistics, QUEUE)?;
    Some(u32::from_ne_bytes(*queue.get(DROPPED..)?.first_chunk()?))
}
