//! Attempt by one path: a connection, and the SOCKS5 exchange with a node on it.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use crate::flow::{Address, Failure, Output};
use crate::split::socks::Method;
use crate::split::{Parsed, socks_client};

/// Attempt to connect by one path.
pub(super) struct Attempt {
    pub(super) output: Output,
    /// Node whose SOCKS5 server is used; `None` for the direct path.
    pub(super) node: Option<SocketAddr>,
    /// The connection takes bytes.
    pub(super) room: bool,
    /// The CONNECT request was sent.
    asked: bool,
    inbox: BytesMut,
}

/// Result of a message from a node.
pub(super) enum Heard {
    /// Send these bytes, if any, and wait for more.
    Say(Bytes),
    /// Connected: the flow's data follows.
    There,
    /// The attempt has failed.
    No(Failure, String),
}

impl Attempt {
    pub(super) fn new(output: Output, node: Option<SocketAddr>) -> Attempt {
        Attempt { output, node, room: true, asked: false, inbox: BytesMut::new() }
    }

    /// Greeting, the first message to the node.
    pub(super) fn greet(&self) -> Bytes {
        socks_client::greeting(false).into()
    }

    /// Handles bytes from the node, which is to connect to `to`.
    pub(super) fn hear(&mut self, to: &Address, data: &[u8]) -> Heard {
        self.inbox.extend_from_slice(data);
        match self.asked {
            false => self.choice(to),
            true => self.reply(),
        }
    }

    /// Bytes that followed the node's reply.
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
