//! Clients that say where they want to go, by PROXY, SOCKS5 or HTTP CONNECT: what is heard from them
//! until their flow begins.

use std::net::SocketAddr;

use ipnet::IpNet;
use mio::net::TcpStream;
use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::{LONGEST, Preface, Refusal, Step};
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::time::Instant;
use viaduct_sys::tcp;

use super::arrivals::by_option;
use super::flow::{End, Flow, Heard};
use super::leg::Leg;
use super::outward::open;
use super::policy::{holds, holds_all};
use super::target::{Route, Target, Terms, failure};
use super::worker::Worker;

impl Worker {
    /// Takes a client in whose SYN says where it wants to go, or that is to say it.
    pub(super) fn welcome(&mut self, client: TcpStream, tuple: Tuple, terms: &Terms, now: Instant) {
        if !terms.may_ask(tuple.client.ip()) {
            debug!("{} may not ask", tuple.client);
            self.stats.refused.denied += 1;
            let _ = tcp::reset_on_close(&client);
            return;
        }
        if terms.languages.option
            && let Some(told) = by_option(&client)
        {
            return self.join(client, tuple, Some(told), now);
        }
        if !terms.languages.have_prefaces() {
            debug!("the SYN of {} has no option", tuple.client);
            self.stats.refused.unclear += 1;
            let _ = tcp::reset_on_close(&client);
            return;
        }
        let preface = Preface::new(terms.languages, terms.secret.clone());
        match self.flows.insert(Flow::asking(client, tuple, preface, now)) {
            Some(key) => self.hear(key, now),
            None => self.stats.refused.full += 1,
        }
    }

    /// Listens to such a client.
    pub(super) fn hear(&mut self, key: usize, now: Instant) {
        let mut past = false;
        loop {
            let flow = self.flows.at(key);
            // Who has said all that it will may have said enough.
            let Ok(heard) = flow.listen(LONGEST, past) else { return self.end(key, false) };
            past = false;
            let Some(asked) = flow.asked().filter(|asked| !asked.begun) else { return };
            match asked.preface.handle(&mut asked.bytes) {
                Step::Wait => match heard {
                    Heard::All => return,
                    // Here it is a byte like any other.
                    Heard::Mark => past = true,
                    Heard::End => return self.end(key, false),
                },
                Step::Say(words) => flow.say(End::Client, &words),
                Step::Connect { to, source } => return self.open(key, to, source, now),
                Step::Refuse(words, why) => {
                    debug!("a client is refused: {why}");
                    flow.turn_away(&words);
                    match why {
                        Refusal::Unclear(_) => self.stats.refused.unclear += 1,
                        Refusal::Denied => self.stats.refused.denied += 1,
                        Refusal::HealthCheck => {}
                    }
                    return self.end(key, false);
                }
            }
        }
    }

    /// A client has said where it wants to go, for itself or for `source`.
    pub(super) fn open(
        &mut self,
        key: usize,
        to: Address,
        source: Option<SocketAddr>,
        now: Instant,
    ) {
        let flow = self.flows.at(key);
        flow.set_source(source);
        match to {
            Address::Ip(at) => self.go(key, at, now),
            Address::Name(name, port) => self.go_by_name(key, name, port, now),
        }
    }

    /// A name goes through a tunnel as it is, for the far end to look up and to allow, unless somebody
    /// here has to know its address.
    fn go_by_name(&mut self, key: usize, name: String, port: u16, now: Instant) {
        let asker = (key, self.flows.at(key).id);
        let source = self.flows.at(key).source();
        let unseen = holds_all(self.allowed(key));
        match Route::by_name(&self.policies, source, &name, port) {
            Some(Err(why)) => self.refuse(key, why),
            Some(Ok(route)) if unseen => self.set_out(key, route, now),
            _ => {
                if !self.resolver.as_ref().is_some_and(|r| r.ask(asker, source, name, port)) {
                    self.refuse(key, Failure::Unreachable);
                }
            }
        }
    }

    /// Names that were looked up.
    pub(super) fn read_answers(&mut self, now: Instant) {
        while let Some(((key, id), found)) = self.resolver.as_ref().and_then(|r| r.answer()) {
            // Its client may have gone meanwhile.
            if self.flows.get(key).is_none_or(|flow| flow.id != id) {
                continue;
            }
            let allowed = self.allowed(key);
            let may = found.iter().find(|at| holds(allowed, at.ip()));
            match may.or(found.first()) {
                Some(&at) => self.go(key, at, now),
                None => self.refuse(key, Failure::Unreachable),
            }
        }
    }

    fn go(&mut self, key: usize, to: SocketAddr, now: Instant) {
        if !holds(self.allowed(key), to.ip()) {
            debug!("nobody may go to {to}");
            return self.refuse(key, Failure::Denied);
        }
        let source = self.flows.at(key).source();
        // A session has not come by a SYN.
        if let Some(tuple) = self.flows.at(key).asked().map(|asked| asked.tuple) {
            let told = Addresses { source, destination: to };
            if let Some(early) = self.started(&tuple, Some(told)) {
                return self.take_over(early, key, now);
            }
        }
        let Some(route) = Route::by(&self.policies, source, to, None) else {
            debug!("a policy denies {source} to go to {to}");
            return self.refuse(key, Failure::Denied);
        };
        self.set_out(key, route, now);
    }

    /// Begins the second half of a flow whose client is there.
    fn set_out(&mut self, key: usize, mut route: Route, now: Instant) {
        route.copied = matches!(self.flows.at(key).legs(), [Some(Leg::Session(_)), _]);
        let mut begun = match open(route, self.options, &self.teller, &self.limits, now) {
            Ok(begun) => begun,
            Err(error) => return self.refuse(key, failure(&error)),
        };
        if self.flows.watch(&mut begun.server, key, End::Server).is_err() {
            return self.refuse(key, Failure::Unreachable);
        }
        self.flows.at(key).set_server(begun, now);
        self.flows.set_alarm(key);
    }

    /// Goes on with what the data of a client's SYN has started.
    fn take_over(&mut self, early: usize, key: usize, now: Instant) {
        if let Some(why) = self.flows.at(early).broken() {
            self.end(early, true);
            return self.refuse(key, why);
        }
        // What its handlers have claimed goes with them.
        self.claims.values_mut().filter(|owner| **owner == early).for_each(|owner| *owner = key);
        if self.flows.hand_over(early, key, now).is_err() {
            self.refuse(key, Failure::Unreachable);
        }
    }

    /// Where the client of a flow may go.
    fn allowed(&mut self, key: usize) -> &[IpNet] {
        let [client, _] = self.flows.at(key).legs();
        match (client, &self.tunnels, &self.target) {
            (Some(Leg::Session(_)), Some(tunnels), _) => tunnels.allowed(),
            (_, _, Target::Asked(terms)) => &terms.to,
            _ => &[],
        }
    }

    /// Tells a client that its flow will not be, in its language, and ends it.
    pub(super) fn refuse(&mut self, key: usize, why: Failure) {
        self.stats.refused.count(why);
        let flow = self.flows.at(key);
        flow.set_broken(why);
        let words = flow.asked().map(|asked| asked.preface.answer(Err(why))).unwrap_or_default();
        flow.turn_away(&words);
        self.end(key, words.is_empty());
    }
}
