//! Negotiation with a proxy, until it grants a request.

use std::sync::Arc;

use bytes::{Buf as _, BytesMut};

use super::Proxy;
use crate::flow::{Address, Failure};
use crate::split::socks::Method;
use crate::split::{Parsed, socks_client};

pub(super) struct Dialogue {
    proxy: Arc<Proxy>,
    stage: Stage,
    /// Request to send; `None` if SOCKS5 cannot express it.
    request: Option<Vec<u8>>,
    /// True if the request is for a relay of datagrams (UDP ASSOCIATE).
    associates: bool,
}

/// Reply code "command not supported".
const UNSUPPORTED: u8 = 7;

/// Message that is expected next.
enum Stage {
    Choice,
    Verdict,
    Reply,
}

/// Result of a message from the proxy.
pub(super) enum Progress {
    /// More bytes are needed.
    Incomplete,
    /// Send these bytes.
    Send(Vec<u8>),
    /// The request is granted. The address is BND.ADDR of the reply, which for UDP ASSOCIATE is
    /// that of the relay. Bytes after the reply stay in the inbox.
    Granted(Address),
}

/// Failure of the negotiation, with a text for the log.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Failure, pub(super) String);

impl Dialogue {
    /// Starts a negotiation; returns the greeting to send.
    pub(super) fn begin(proxy: Arc<Proxy>, request: Option<Vec<u8>>) -> (Dialogue, Vec<u8>) {
        let greeting = socks_client::greeting(proxy.user.is_some());
        let associates = request.as_deref() == Some(&socks_client::associate()[..]);
        (Dialogue { proxy, stage: Stage::Choice, request, associates }, greeting)
    }

    /// Handles the next message at the front of `inbox`, if it is complete.
    pub(super) fn handle_message(&mut self, inbox: &mut BytesMut) -> Result<Progress, Refusal> {
        let code = inbox.get(1).copied();
        let said = match self.stage {
            Stage::Choice => take(inbox, socks_client::choice)?.map(|method| self.greeted(method)),
            Stage::Verdict => take(inbox, socks_client::verdict)?.map(|right| match right {
                true => self.ask(),
                false => Err(denied("the proxy refuses the user or the password")),
            }),
            Stage::Reply => take(inbox, socks_client::reply)?.map(|result| match result {
                Ok(at) => Ok(Progress::Granted(at)),
                Err(why) if code == Some(UNSUPPORTED) && self.associates => {
                    Err(Refusal(why, "the proxy does not support UDP ASSOCIATE".to_owned()))
                }
                Err(why) => Err(Refusal(why, format!("the proxy says: {why}"))),
            }),
        };
        said.unwrap_or(Ok(Progress::Incomplete))
    }

    fn greeted(&mut self, method: Option<Method>) -> Result<Progress, Refusal> {
        match (method, &self.proxy.user) {
            (Some(Method::None), _) => self.ask(),
            (Some(Method::Password), Some(user)) => {
                self.stage = Stage::Verdict;
                let user = socks_client::credentials(user);
                user.map(Progress::Send).ok_or(denied("the password is too long"))
            }
            _ => Err(denied("the proxy requires another authentication method")),
        }
    }

    fn ask(&mut self) -> Result<Progress, Refusal> {
        self.stage = Stage::Reply;
        let unsaid = || Refusal(Failure::Unreachable, "SOCKS5 cannot express the name".to_owned());
        self.request.take().map(Progress::Send).ok_or_else(unsaid)
    }
}

/// Takes a message, if it is complete.
fn take<T>(inbox: &mut BytesMut, parse: impl Fn(&[u8]) -> Parsed<T>) -> Result<Option<T>, Refusal> {
    match parse(inbox) {
        Parsed::Whole(message, length) => {
            inbox.advance(length);
            Ok(Some(message))
        }
        Parsed::Short => Ok(None),
        Parsed::Wrong(why) => Err(Refusal(Failure::Unreachable, format!("the proxy: {why}"))),
    }
}

fn denied(why: &str) -> Refusal {
    Refusal(Failure::Denied, why.to_owned())
}
