//! One way that is tried: a connection, and what is said to a node's SOCKS5 on it.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use crate::flow::{Address, Failure, Output};
use crate::split::socks::Method;
use crate::split::{Parsed, socks_client};

/// An attempt.
pub(super) struct Attempt {
    pub(super) output: Output,
    /// Whose SOCKS5 it goes by.
    pub(super) node: Option<SocketAddr>,
    /// Whether it takes bytes.
    pub(super) room: bool,
    /// The node has agreed to be asked, and was.
    asked: bool,
    inbox: BytesMut,
}

/// What follows from what a node said.
pub(super) enum Heard {
    /// This is to be said; nothing, if more must come.
    Say(Bytes),
    /// It has connected: the flow's bytes follow.
    There,
    /// It will not.
    No(Failure, String),
}

impl Attempt {
    pub(super) fn new(output: Output, node: Option<SocketAddr>) -> Attempt {
        Attempt { output, node, room: true, asked: false, inbox: BytesMut::new() }
    }

    /// What is said first.
    pub(super) fn greet(&self) -> Bytes {
        socks_client::greeting(false).into()
    }

    /// The node says something; the flow is to go to `to`.
    pub(super) fn hear(&mut self, to: &Address, data: &[u8]) -> Heard {
        self.inbox.extend_from_slice(data);
        match self.asked {
            false => self.choice(to),
            true => self.reply(),
        }
    }

    /// What came behind the node's answer.
    pub(super) fn rest(&mut self) -> Bytes {
        self.inbox.split().freeze()
    }

    fn choice(&mut self, to: &Address) -> Heard {
        match socks_client::choice(&self.inbox) {
            Parsed::Short => Heard::Say(Bytes::new()),
            Parsed::Wrong(why) => self.no(Failure::Unreachable, why),
            Parsed::Whole(Some(Method::None), length) => {
                let _ = self.inbox.split_to(length);
                self.asked = true;
                match socks_client::request(to) {
                    Some(request) => Heard::Say(request.into()),
                    None => self.no(Failure::Unreachable, "the name is one that SOCKS5 cannot say"),
                }
            }
            Parsed::Whole(..) => self.no(Failure::Denied, "it wants to know who one is"),
        }
    }

    fn reply(&mut self) -> Heard {
        match socks_client::reply(&self.inbox) {
            Parsed::Short => Heard::Say(Bytes::new()),
            Parsed::Wrong(why) => self.no(Failure::Unreachable, why),
            Parsed::Whole(Err(why), _) => self.no(why, &format!("it says: {why}")),
            Parsed::Whole(Ok(_), length) => {
                let _ = self.inbox.split_to(length);
                Heard::There
            }
        }
    }

    fn no(&self, why: Failure, what: &str) -> Heard {
        let node = self.node.map(|node| node.to_string()).unwrap_or_default();
        Heard::No(why, format!("the node at {node}: {what}"))
    }
}
