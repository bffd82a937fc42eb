//! Handshakes in which clients name their destination, by PROXY, SOCKS5 or HTTP CONNECT: from the
//! accepted connection to the start of the connection to the server.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use mio::net::TcpStream;
use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::split::preface::{LONGEST, Preface, Refusal, Step};
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp;

use super::accept::by_option;
use super::account::outcome;
use super::conn::Conn;
use super::destination::{Route, Target, Terms, failure, is_here};
use super::flow::{End, Flow, ReadStop};
use super::policy::{Plan, holds, holds_all};
use super::worker::{MAX_READS, Worker};
use crate::access_log::authentication_failed;
use crate::rate_limited::RateLimitedLog;
use crate::source::Source;
use crate::tunnel::Tunnels;

/// Maximum number of addresses of a name that are tried, one after the other.
const MAX_ADDRESSES: usize = 8;

/// Rate-limited log of failed authentication, by source.
static PASSWORDS: RateLimitedLog<Source> = RateLimitedLog::new(10);

impl Worker {
    /// Accepts a client that has named its destination in the SYN, or names it in a handshake.
    pub(super) fn start_handshake(
        &mut self,
        client: TcpStream,
        tuple: Tuple,
        terms: &Terms,
        now: Instant,
    ) {
        if !terms.allows_client(tuple.client.ip()) {
            debug!("{}: refused, not in allow-from", tuple.client);
            self.stats.refused.denied += 1;
            self.log_refused(tuple.client, None, (403, "not in allow-from".to_owned()), now);
            let _ = tcp::reset_on_close(&client);
            return;
        }
        if terms.protocols.option
            && let Some(signalled) = by_option(&client)
        {
            return self.join(client, tuple, Some(signalled), now);
        }
        if !terms.protocols.have_prefaces() {
            debug!("the SYN of {} has no hop option", tuple.client);
            self.stats.refused.unclear += 1;
            self.log_refused(tuple.client, None, (400, "no hop option in its SYN".to_owned()), now);
            let _ = tcp::reset_on_close(&client);
            return;
        }
        let preface = Preface::new(terms.protocols, terms.secret.clone());
        match self.flows.insert(Flow::requesting(client, tuple, preface, now)) {
            Some(key) => self.read_request(key, now),
            None => {
                self.stats.refused.full += 1;
                self.log_refused(tuple.client, None, outcome(Failure::Full), now);
            }
        }
    }

    /// Reads and handles the handshake of a client whose flow waits for its destination.
    pub(super) fn read_request(&mut self, key: usize, now: Instant) {
        let mut past = false;
        if self.flows.at(key).request().is_some_and(|request| request.preface.is_done()) {
            // The name is being resolved. Bytes that follow the request are for the server, and are
            // not read here.
            let [client, _] = self.flows.at(key).conns();
            let has_gone = client.is_some_and(|client| client.check_connected().is_err());
            if has_gone {
                self.end(key, false);
            }
            return;
        }
        loop {
            let flow = self.flows.at(key);
            // A client that has closed its side may have sent a complete request before that.
            let Ok(stop) = flow.read_preface(LONGEST, past) else { return self.end(key, false) };
            past = false;
            let Some(request) = flow.request().filter(|request| !request.begun) else { return };
            match request.preface.handle(&mut request.bytes) {
                Step::Wait => match stop {
                    ReadStop::All => return,
                    // In the handshake the urgent byte is read like any other byte.
                    ReadStop::Mark => past = true,
                    ReadStop::End => return self.end(key, false),
                },
                Step::Say(words) => flow.queue_preface(End::Client, &words),
                Step::Deny(words) => {
                    flow.queue_preface(End::Client, &words);
                    self.denied_password(key);
                }
                Step::Connect { to, source } => {
                    if self.access_log.is_on() {
                        let (protocol, user) = (request.preface.protocol(), request.preface.user());
                        let user = user.map(str::to_owned);
                        flow.account.set_request(protocol.unwrap_or("tcp"), &to, user);
                    }
                    return self.open(key, to, source, now);
                }
                Step::Report(networks) => {
                    let words = self.report(&networks, now);
                    let flow = self.flows.at(key);
                    flow.reject(&words);
                    flow.account.refuse(Refusal::HealthCheck);
                    return self.end(key, false);
                }
                Step::Refuse(words, why) => {
                    debug!("{} is refused: {why}", flow.source());
                    flow.reject(&words);
                    flow.account.refuse(why);
                    match why {
                        Refusal::Unclear(_) => self.stats.refused.unclear += 1,
                        Refusal::Denied => self.denied_password(key),
                        // The client may only have asked whether a password is required.
                        Refusal::Unauthenticated | Refusal::HealthCheck => {}
                    }
                    return self.end(key, false);
                }
            }
        }
    }

    /// Records that the client of flow `key` does not know the password, and logs its address,
    /// for programs that ban such clients.
    fn denied_password(&mut self, key: usize) {
        self.stats.refused.denied += 1;
        let flow = self.flows.at(key);
        flow.account.refuse(Refusal::Denied);
        let client = flow.source().ip();
        let Some(request) = flow.request() else { return };
        if PASSWORDS.allows(client.into()) {
            let method =
                if request.preface.protocol() == Some("socks5") { "socks5" } else { "basic" };
            authentication_failed(client, method, request.preface.user());
        }
    }

    /// Handles a client's request to connect to `to`, for itself or for `source`.
    pub(super) fn open(
        &mut self,
        key: usize,
        to: Address,
        source: Option<SocketAddr>,
        now: Instant,
    ) {
        self.flows.at(key).set_source(source);
        match to {
            Address::Ip(at) => self.connect_to(key, at, now),
            Address::Name(name, port) => self.connect_by_name(key, name, port, now),
        }
    }

    /// Connects a flow to a host name. The name is passed on unresolved to the far end of a tunnel,
    /// or to a handler that accepts names, unless a policy or `allow-to` of this proxy depends on
    /// the address. Otherwise this proxy resolves the name first.
    fn connect_by_name(&mut self, key: usize, name: String, port: u16, now: Instant) {
        let requester = (key, self.flows.at(key).id);
        let source = self.flows.at(key).source();
        let unseen = holds_all(self.allowed(key));
        match Route::by_name(&self.config.policies, source, &name, port) {
            Some(Err(why)) => {
                let plan = self.config.policies.plan_unseen(source.ip(), port).cloned();
                self.count_denied_by(plan.as_deref());
                self.refuse(key, why);
            }
            Some(Ok(route)) if unseen => self.connect_route(key, route, now),
            _ => {
                if !self
                    .upstream
                    .resolver
                    .as_ref()
                    .is_some_and(|r| r.ask(requester, source, name, port))
                {
                    self.refuse(key, Failure::Unreachable);
                }
            }
        }
    }

    /// Handles resolved names.
    pub(super) fn read_answers(&mut self, now: Instant) {
        for _ in 0..MAX_READS {
            let answer = self.upstream.resolver.as_ref().and_then(|r| r.answer());
            let Some(((key, id), found)) = answer else { return };
            // The client may have disconnected meanwhile, and another flow may have its key.
            if self.flows.get(key).is_none_or(|flow| flow.id != id) {
                continue;
            }
            let allowed = self.allowed(key);
            let mut may = found.iter().copied().filter(|at| holds(allowed, at.ip()));
            let first = may.next();
            let others = may.take(MAX_ADDRESSES - 1).collect();
            self.flows.at(key).set_further_addresses(others);
            match first.or(found.first().copied()) {
                Some(at) => self.connect_to(key, at, now),
                None => self.refuse(key, Failure::Unreachable),
            }
        }
        self.unread.names = true;
    }

    /// Tries the next address of the name that the client of flow `key` requested, if there is one
    /// (RFC 1123, 2.3). Called when the previous address did not answer, or refused the connection.
    pub(super) fn try_next_address(&mut self, key: usize, now: Instant) -> bool {
        let next = self.flows.get(key).and_then(Flow::next_address);
        if let Some(at) = next {
            self.connect_to(key, at, now);
        }
        next.is_some()
    }

    fn connect_to(&mut self, key: usize, to: SocketAddr, now: Instant) {
        if !holds(self.allowed(key), to.ip()) {
            debug!("{to}: refused, not in allow-to");
            return self.refuse(key, Failure::Denied);
        }
        let source = self.flows.at(key).source();
        // A tunnel's stream has no SYN, and so no early connection.
        let request = self.flows.at(key).request();
        let asked = request.map(|request| (request.tuple, request.preface.onward()));
        let onward = asked.map_or(Onward::Open, |(_, onward)| onward);
        if let Some((tuple, _)) = asked {
            let signalled = Addresses { onward, ..Addresses::new(source, to) };
            if let Some(early) = self.started(&tuple, Some(signalled)) {
                return self.take_over(early, key, now);
            }
        }
        // If a connection to this machine itself used the client's address, its replies would leave
        // through the WAN.
        let from = (self.keeps_client(key) && !is_here(to)).then_some(source);
        let Some(route) = Route::by(&self.config.policies, source, (to, onward), from) else {
            debug!("{source} to {to}: denied by a policy");
            self.count_denied(source.ip(), to);
            return self.refuse(key, Failure::Denied);
        };
        self.connect_route(key, Route { keeps_client: from.is_some(), ..route }, now);
    }

    /// Counts a denied flow of `client` to `to` for the policy that denies it, if one does.
    pub(super) fn count_denied(&mut self, client: IpAddr, to: SocketAddr) {
        let plan = self.config.policies.plan(client, to).clone();
        self.count_denied_by(Some(&plan));
    }

    fn count_denied_by(&mut self, plan: Option<&Plan>) {
        if let Some(name) = plan.filter(|plan| plan.deny).and_then(|plan| plan.policy.as_ref()) {
            self.stats.policy(name).denied += 1;
        }
    }

    /// Connects a flow, whose client is already present, to its destination.
    fn connect_route(&mut self, key: usize, mut route: Route, now: Instant) {
        route.copied = matches!(self.flows.at(key).conns(), [Some(Conn::Tunnel(_)), _]);
        let mut begun = match self.upstream.begin(route, &self.config, now) {
            Ok(begun) => begun,
            Err(_) if self.try_next_address(key, now) => return,
            Err(error) => return self.refuse(key, failure(&error)),
        };
        if self.flows.watch(&mut begun.opened.conn, key, End::Server).is_err() {
            return self.refuse(key, Failure::Unreachable);
        }
        self.flows.at(key).set_server(begun, now);
        self.flows.set_alarm(key);
    }

    /// Moves to flow `key` the early connection that was begun for the destination in the
    /// SYN's data.
    fn take_over(&mut self, early: usize, key: usize, now: Instant) {
        if let Some(why) = self.flows.at(early).broken() {
            self.end(early, true);
            return self.refuse(key, why);
        }
        // The claims of the early flow's handlers move to flow `key` too.
        self.claims.hand_over(early, key);
        if self.flows.hand_over(early, key, now).is_err() {
            self.refuse(key, Failure::Unreachable);
        }
    }

    /// Returns whether a flow has come through a tunnel, and its server is to see the
    /// client's address.
    fn keeps_client(&mut self, key: usize) -> bool {
        let keeps = self.upstream.tunnels.as_ref().is_some_and(Tunnels::keeps_clients);
        keeps && matches!(self.flows.at(key).conns(), [Some(Conn::Tunnel(_)), _])
    }

    /// Permitted destinations of the client of a flow.
    fn allowed(&mut self, key: usize) -> &[IpNet] {
        let [client, _] = self.flows.at(key).conns();
        match (client, &self.upstream.tunnels, &self.config.target) {
            (Some(Conn::Tunnel(_)), Some(tunnels), _) => tunnels.allowed(),
            (_, _, Target::Requested(terms)) => &terms.to,
            _ => &[],
        }
    }

    /// Refuses a client in its protocol, and ends its flow.
    pub(super) fn refuse(&mut self, key: usize, why: Failure) {
        self.stats.refused.count(why);
        let flow = self.flows.at(key);
        flow.set_broken(why);
        let words =
            flow.request().map(|request| request.preface.answer(Err(why))).unwrap_or_default();
        flow.reject(&words);
        self.end(key, words.is_empty());
    }
}
