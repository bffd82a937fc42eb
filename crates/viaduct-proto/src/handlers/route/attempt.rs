//! Attempt over one path: a connection, and the SOCKS5 exchange over it if it leads to a node.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use crate::flow::{Address, Failure, Output};
use crate::split::socks::Method;
use crate::split::{Parsed, socks_client};

/// Attempt to connect over one path.
pub(super) struct Attempt {
    pub(super) output: Output,
    /// Node whose SOCKS5 server is used; `None` for the direct path.
    pub(super) node: Option<SocketAddr>,
    /// True if the connection takes bytes.
    pub(super) room: bool,
    /// True if the CONNECT request was sent.
    asked: bool,
    inbox: BytesMut,
}

/// Result of a message from a node.
pub(super) enum Progress {
    /// Send these bytes, if any, and wait for more.
    Send(Bytes),
    /// Connected: the flow's data follows.
    Connected,
    Failed(Failure, String),
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
    pub(super) fn handle_bytes(&mut self, to: &Address, data: &[u8]) -> Progress {
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

    fn choice(&mut self, to: &Address) -> Progress {
        match socks_client::choice(&self.inbox) {
            Parsed::Short => Progress::Send(Bytes::new()),
            Parsed::Wrong(why) => self.failed(Failure::Unreachable, why),
            Parsed::Whole(Some(Method::None), length) => {
                let _ = self.inbox.split_to(length);
                self.asked = true;
                match socks_client::request(to) {
                    Some(request) => Progress::Send(request.into()),
                    None => self.failed(Failure::Unreachable, "SOCKS5 cannot express the name"),
                }
            }
            Parsed::Whole(..) => self.failed(Failure::Denied, "it requires authentication"),
        }
    }

    fn reply(&mut self) -> Progress {
        match socks_client::reply(&self.inbox) {
            Parsed::Short => Progress::Send(Bytes::new()),
            Parsed::Wrong(why) => self.failed(Failure::Unreachable, why),
            Parsed::Whole(Err(why), _) => self.failed(why, &format!("it replied: {why}")),
            Parsed::Whole(Ok(_), length) => {
                let _ = self.inbox.split_to(length);
                Progress::Connected
            }
        }
    }

    fn failed(&self, why: Failure, what: &str) -> Progress {
        let node = self.node.map(|node| node.to_string()).unwrap_or_default();
        Progress::Failed(why, format!("the node at {node}: {what}"))
    }
}
