//! Policy routing of marked packets: a rule for each address family that selects the routing table
//! with the mark's number, and the routes of that table.
//!
//! The functions take an address family as its unspecified address, `any`.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage};

use crate::route::netlink::{NLM_F_CREATE, NLM_F_REPLACE};
use crate::route::rtnetlink::{self, RouteSocket};

/// Priority of our policy rules.
const RULE_PRIORITY: u32 = 118;

/// Policy routing of the packets with a mark.
pub(super) struct Policy {
    socket: RouteSocket,
    /// Mark of the packets, and number of the table.
    mark: u32,
}

impl Policy {
    /// Opens a netlink socket for routing messages.
    pub(super) fn open(mark: u32) -> io::Result<Policy> {
        Ok(Policy { socket: RouteSocket::open()?, mark })
    }

    /// Returns the mark of the packets, which is also the number of the table.
    pub(super) fn mark(&self) -> u32 {
        self.mark
    }

    /// Installs the rule of a family. An existing rule is not replaced, as flows may depend on it.
    pub(super) fn add_rule(&self, any: IpAddr) -> io::Result<()> {
        match self.has_rule(any)? {
            true => Ok(()),
            false => self.socket.add(&self.rule(any), NLM_F_CREATE),
        }
    }

    /// Installs a route, or replaces it.
    pub(super) fn put_route(&self, route: &RouteMessage) -> io::Result<()> {
        self.socket.add(route, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes the rule and the routes of a family, if they still exist.
    pub(super) fn undo(&self, any: IpAddr) {
        let _ = self.socket.delete(&self.rule(any));
        for route in self.routes(any).unwrap_or_default() {
            let _ = self.socket.delete(&route);
        }
    }

    /// Returns whether a family has its rule and a route; false if the kernel returns an error.
    pub(super) fn is_installed(&self, any: IpAddr) -> bool {
        let has_route = || self.routes(any).is_ok_and(|routes| !routes.is_empty());
        self.has_rule(any).unwrap_or(false) && has_route()
    }

    fn has_rule(&self, any: IpAddr) -> io::Result<bool> {
        let mut question = RuleMessage::default();
        question.header.family = rtnetlink::family(any);
        let mark = RuleAttribute::FwMark(self.mark);
        Ok(self.socket.dump(&question)?.iter().any(|rule| rule.attributes.contains(&mark)))
    }

    /// Returns the routes of a family in the table.
    fn routes(&self, any: IpAddr) -> io::Result<Vec<RouteMessage>> {
        let mut routes = self.socket.routes(rtnetlink::family(any))?;
        routes.retain(|route| rtnetlink::table(route) == self.mark);
        Ok(routes)
    }

    fn rule(&self, any: IpAddr) -> RuleMessage {
        let mut rule = RuleMessage::default();
        let (family, action) = (rtnetlink::family(any), RuleAction::ToTable);
        rule.header = RuleHeader { family, action, ..RuleHeader::default() };
        rule.attributes = vec![
            RuleAttribute::FwMark(self.mark),
            RuleAttribute::Table(self.mark),
            RuleAttribute::Priority(RULE_PRIORITY),
        ];
        rule
    }
}
