//! Queueing disciplines of an interface: their drop counter.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};

use crate::route::interface;
use crate::route::netlink::{NLM_F_DUMP, NLM_F_ECHO};
use crate::route::rtnetlink::{RouteSocket, first};

/// Max packets dropped between two queries. A larger difference means that the discipline was
/// replaced and its counter restarted.
const MAX_DROPS: u32 = 1 << 20;

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
        let mut question = TcMessage::with_index(self.index.cast_signed());
        question.header.parent = TcHandle::ROOT;
        // The kernel answers a query about a single discipline only with `NLM_F_ECHO`.
        let question = RouteNetlinkMessage::GetQueueDiscipline(question);
        match self.socket.ask(question, NLM_F_ECHO).ok()?? {
            RouteNetlinkMessage::NewQueueDiscipline(answer) => dropped(&answer),
            _ => None,
        }
    }
}

/// Returns whether the interface `name` of the calling thread's network namespace has a place for
/// `tc` rules about received packets: the discipline `ingress` or `clsact`.
///
/// # Errors
/// There is no such interface, or the netlink request fails.
pub fn has_ingress(name: &str) -> io::Result<bool> {
    let index = interface::index(name)?.cast_signed();
    let question = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index));
    let answers = RouteSocket::open()?.request(question, NLM_F_DUMP)?;
    Ok(answers.iter().any(|answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(of) => {
            of.header.index == index && of.header.parent == TcHandle::INGRESS
        }
        _ => false,
    }))
}

/// Returns the number of dropped packets in an answer.
fn dropped(answer: &TcMessage) -> Option<u32> {
    let statistics = first!(answer.attributes, TcAttribute::Stats2(statistics) => statistics)?;
    first!(statistics, TcStats2::Queue(queue) => queue.drops)
}
