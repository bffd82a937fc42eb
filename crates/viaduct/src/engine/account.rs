//! Entries of the access log: a line for each client's flow that has ended or was refused.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::preface::Refusal;
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::AccountRecord;

use super::flow::Flow;
use super::worker::Worker;
use crate::access_log::Entry;

/// Status of a flow whose client left before its server had answered, as some web servers log it.
const CLIENT_LEFT: u16 = 499;

/// Maximum length in bytes of a destination or a name in a handover record.
const MAX_TEXT: usize = 1 << 10;

/// Data of a flow for its access log entry.
#[derive(Clone, Debug)]
pub struct Account {
    begun: Instant,
    /// Bytes from the client, and bytes to the client.
    bytes: [u64; 2],
    protocol: &'static str,
    /// Destination that the client has named; set only if the access log is on.
    to: Option<String>,
    /// Name that the client has authenticated as, or the public key of the near end of its tunnel.
    user: Option<String>,
    /// Status and reason, if this proxy refused or ended the flow.
    ended: Option<(u16, String)>,
    /// True for a health check. Health checks are frequent, and not logged.
    is_check: bool,
}

impl Account {
    /// Returns the account of a flow that begins now.
    pub fn new(begun: Instant) -> Account {
        Account {
            begun,
            bytes: [0; 2],
            protocol: "tcp",
            to: None,
            user: None,
            ended: None,
            is_check: false,
        }
    }

    /// Account of a further flow of the same client to the same destination, which begins now.
    pub fn further(&self, begun: Instant) -> Account {
        let Account { protocol, to, user, .. } = self.clone();
        Account { protocol, to, user, ..Account::new(begun) }
    }

    /// Records the client's destination, the protocol of its request, and the client's name.
    pub fn set_request(&mut self, protocol: &'static str, to: &Address, user: Option<String>) {
        (self.protocol, self.to, self.user) = (protocol, Some(to.to_string()), user);
        // Clears the refusal of an earlier attempt, which may have lacked the password.
        self.ended = None;
    }

    /// Returns whether an [`AccountRecord`] can hold all the data.
    pub fn is_portable(&self) -> bool {
        let texts = self.to.iter().chain(&self.user);
        self.ended.is_none() && texts.map(String::len).all(|len| len <= MAX_TEXT)
    }

    /// Record of the data, for the handover to a new process.
    pub fn record(&self) -> AccountRecord {
        AccountRecord {
            begun: self.begun.as_nanos(),
            bytes: self.bytes,
            protocol: self.protocol.to_owned(),
            to: self.to.clone(),
            user: self.user.clone(),
        }
    }

    /// Restores the data of `record`, which the old process wrote before `now`.
    pub fn restore(&mut self, record: &AccountRecord, now: Instant) {
        let protocols = ["http", "socks5", "proxy", "tunnel"];
        *self = Account {
            begun: Instant::from_nanos(record.begun.min(now.as_nanos())),
            bytes: record.bytes,
            protocol: protocols.into_iter().find(|it| *it == record.protocol).unwrap_or("tcp"),
            to: record.to.clone(),
            user: record.user.clone(),
            ended: None,
            is_check: false,
        };
    }

    /// Bytes from the client, and bytes to the client.
    pub fn bytes(&self) -> [u64; 2] {
        self.bytes
    }

    /// Adds bytes that were transferred in each direction.
    pub fn add(&mut self, bytes: [u64; 2]) {
        self.bytes.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
    }

    /// Records the refusal of the client's request.
    pub fn refuse(&mut self, why: Refusal) {
        let status = match why {
            Refusal::Unclear(_) => 400,
            Refusal::Denied | Refusal::Unauthenticated => 407,
            Refusal::HealthCheck => 200,
        };
        self.is_check = why == Refusal::HealthCheck;
        self.ended = Some((status, why.to_string()));
    }

    /// Records that the proxy stops before the flow has ended.
    fn cut(&mut self, is_connected: bool) {
        self.ended = Some((if is_connected { 200 } else { 503 }, "the proxy stopped".to_owned()));
    }

    /// Records the idle timeout.
    pub fn idle(&mut self) {
        self.ended = Some((200, "idle".to_owned()));
    }
}

impl Worker {
    /// Logs the end of a client's flow.
    pub(super) fn log_end(&self, flow: &Flow, now: Instant) {
        if !self.access_log.is_on() || !flow.is_clients() || flow.account.is_check {
            return;
        }
        let opened = flow.is_connected() && flow.has_client();
        let (status, reason) = match (&flow.account.ended, flow.broken()) {
            (Some((status, reason)), _) => (*status, Some(reason.clone())),
            (None, Some(why)) if opened => (200, Some(why.to_string())),
            (None, Some(why)) => {
                let (status, reason) = outcome(why);
                (status, Some(reason))
            }
            (None, None) if opened => (200, None),
            (None, None) => (CLIENT_LEFT, Some("the client left".to_owned())),
        };
        self.log(flow.source(), &flow.account, (status, reason), now);
    }

    /// Logs the clients' flows that are cut because the proxy stops, and removes them.
    pub(super) fn log_cut(&mut self, now: Instant) {
        if !self.access_log.is_on() {
            return;
        }
        for key in self.flows.pick(Flow::is_clients) {
            let Some(mut flow) = self.flows.remove(key) else { continue };
            flow.account.cut(flow.is_connected() && flow.has_client());
            self.log_end(&flow, now);
        }
    }

    /// Logs a client that is refused before it has a flow.
    pub(super) fn log_refused(
        &self,
        client: SocketAddr,
        to: Option<SocketAddr>,
        (status, reason): (u16, String),
        now: Instant,
    ) {
        if self.access_log.is_on() {
            let mut account = Account::new(now);
            if let Some(to) = to {
                account.set_request("tcp", &Address::Ip(to), None);
            }
            self.log(client, &account, (status, Some(reason)), now);
        }
    }

    fn log(
        &self,
        client: SocketAddr,
        account: &Account,
        (status, reason): (u16, Option<String>),
        now: Instant,
    ) {
        let duration: Duration = now.since(account.begun);
        let to = account.to.as_deref().unwrap_or("-");
        let version = match account.protocol {
            "http" => " HTTP/1.1",
            "socks5" => " SOCKS5",
            "proxy" => " PROXY",
            "tunnel" => " TUNNEL",
            _ => " TCP",
        };
        let [received, sent] = account.bytes;
        self.access_log.write(Entry {
            start: SystemTime::now() - duration,
            duration: Some(duration),
            client,
            user: account.user.clone(),
            protocol: account.protocol,
            request: format!("CONNECT {to}{version}"),
            status,
            sent,
            received,
            reason,
        });
    }
}

/// Status and reason of a flow that failed before it was open.
pub(super) fn outcome(why: Failure) -> (u16, String) {
    (status(why), why.to_string())
}

/// HTTP status for a failure, as clients of CONNECT get it.
fn status(why: Failure) -> u16 {
    match why {
        Failure::Denied => 403,
        Failure::TimedOut => 504,
        Failure::Refused | Failure::Unreachable | Failure::Reset => 502,
        Failure::Full => 503,
    }
}
