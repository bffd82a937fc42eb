//! Classification of connects and datagrams by the user's rules.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use super::endpoints::MAPPED;
use crate::bpf::asm::{Asm, FP, Label, R2, R6, Width};

// Fields of `struct bpf_sock_addr`.
pub(super) const IP4: i16 = 4;
pub(super) const IP6: i16 = 8;
pub(super) const PORT: i16 = 24;

/// Action for a connect or a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Redirects the connect or the datagram.
    Redirect,
    /// Lets the connect or the datagram pass untouched.
    Pass,
    /// Refuses the connect or the datagram: the call fails.
    Refuse,
}

/// A destination and its action.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Address prefix; an IPv4 prefix is mapped, and therefore 96 bits longer.
    pub prefix: (Ipv6Addr, u8),
    /// Ports.
    pub ports: RangeInclusive<u16>,
    /// Action.
    pub action: RuleAction,
}

/// All rules. The first one that matches decides.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The rules in order.
    pub list: Vec<Rule>,
    /// Action if no rule matches.
    pub otherwise: RuleAction,
}

#[derive(Clone, Copy)]
pub(super) struct ActionLabels {
    pub(super) redirect: Label,
    pub(super) pass: Label,
    pub(super) refuse: Label,
}

impl Rules {
    /// Returns whether any rule has this action. Code for other actions is not emitted, as the
    /// verifier rejects unreachable instructions.
    pub(super) fn has_action(&self, action: RuleAction) -> bool {
        self.otherwise == action || self.list.iter().any(|rule| rule.action == action)
    }

    /// Emits jumps to the action for the destination that is noted at `at` on the stack.
    pub(super) fn emit(&self, asm: &mut Asm, at: i16, labels: ActionLabels) {
        for rule in &self.list {
            let other = asm.label();
            rule.test(asm, at, other);
            asm.goto(labels.of(rule.action));
            asm.place(other);
        }
        asm.goto(labels.of(self.otherwise));
    }
}

impl ActionLabels {
    fn of(self, action: RuleAction) -> Label {
        match action {
            RuleAction::Redirect => self.redirect,
            RuleAction::Pass => self.pass,
            RuleAction::Refuse => self.refuse,
        }
    }
}

impl Rule {
    /// Emits a jump to `other` unless the destination matches.
    fn test(&self, asm: &mut Asm, at: i16, other: Label) {
        let (ip, length) = self.prefix;
        for (n, word) in (0..).step_by(4).zip(ip.octets().as_chunks::<4>().0) {
            let bits = u32::from(length).saturating_sub(8 * n as u32).min(32);
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            if bits > 0 {
                asm.load(Width::Word, R2, FP, at + n);
                asm.and(R2, u32::from_ne_bytes(mask.to_be_bytes()));
                let word = u32::from_be_bytes(*word) & mask;
                asm.if_different(R2, u32::from_ne_bytes(word.to_be_bytes()), other);
            }
        }
        if self.ports != (0..=u16::MAX) {
            asm.load(Width::Half, R2, FP, at + 16);
            asm.network_order(R2);
            asm.if_below(R2, (*self.ports.start()).into(), other);
            asm.if_above(R2, (*self.ports.end()).into(), other);
        }
    }
}

/// Emits code that notes the destination of the context in R6. The note is at `at` on the stack,
/// padded with zeros to `room` bytes. The unspecified address becomes the loopback address, as in
/// the kernel. Clobbers R2.
pub(super) fn note_destination(asm: &mut Asm, at: i16, room: usize, v4: bool) {
    asm.set(R2, 0);
    for n in (0..room as i16).step_by(8) {
        asm.store(Width::Double, FP, at + n, R2);
    }
    let some = asm.label();
    if v4 {
        asm.set(R2, MAPPED.cast_signed());
        asm.store(Width::Word, FP, at + 8, R2);
        asm.load(Width::Word, R2, R6, IP4);
        asm.store(Width::Word, FP, at + 12, R2);
        asm.if_different(R2, 0, some);
        put(asm, at + 12, Ipv4Addr::LOCALHOST.to_bits());
    } else {
        for n in [0, 4, 8, 12] {
            asm.load(Width::Word, R2, R6, IP6 + n);
            asm.store(Width::Word, FP, at + n, R2);
        }
        let native = asm.label();
        for n in [0, 4, 12] {
            asm.load(Width::Word, R2, FP, at + n);
            asm.if_different(R2, 0, some);
        }
        asm.load(Width::Word, R2, FP, at + 8);
        asm.if_equal(R2, 0, native);
        asm.if_different(R2, MAPPED, some);
        put(asm, at + 12, Ipv4Addr::LOCALHOST.to_bits());
        asm.goto(some);
        asm.place(native);
        put(asm, at + 12, 1);
    }
    asm.place(some);
    asm.load(Width::Word, R2, R6, PORT);
    asm.store(Width::Half, FP, at + 16, R2);
}

/// Emits a store of `word`, in network byte order, at `at` on the stack.
fn put(asm: &mut Asm, at: i16, word: u32) {
    asm.set(R2, word.to_be().cast_signed());
    asm.store(Width::Word, FP, at, R2);
}
