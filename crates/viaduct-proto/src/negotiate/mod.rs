//! Negotiation: the two ends of a flow agree on its handlers while its connection is set up. This
//! costs no round trip, and works with peers that do not support it.
//!
//! ```text
//!   client                                                  server
//!     SYN,  option: compress crypt migrate    ──▶             a plain server ignores it
//!             ◀──    SYN-ACK, option: crypt compress          … and sends no option
//!     ─────────────────────────────────────────────────
//!     both: Terms::negotiate ─▶ compress, crypt: the handlers of both, in the client's order
//!                            └▶ or a Refusal, as text for the log
//! ```
//!
//! Only handlers that need both ends are negotiated. The other handlers of a chain keep their
//! places. The options themselves are not protected. An end that requires handlers ([`Required`])
//! therefore refuses a flow without them, for instance when a middlebox has removed an option. If
//! `crypt` is agreed on, its handshake is bound to both options ([`binding`]), and fails if one of
//! them was altered. Without `crypt`, a host on the path can change which of the handlers that
//! neither end requires are used, just as it can alter the flow itself.
//!
//! An end that cannot write options into SYNs, and requires all handlers, sends its offer in the
//! first bytes ([`offer_in_band`]).

mod in_band;
mod wire;

use std::sync::Arc;

use crate::flow::Factory;

pub use in_band::offer_in_band;
pub use wire::{EXID, Item, LEN, MAX_HANDLERS, NUMBERS, Offer};

/// Handlers that connect to a host other than the flow's destination.
const PROXYING: [&str; 2] = ["socks", "route"];

/// Handlers without which an end refuses a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Required {
    /// No handler: a peer without negotiation gets a plain flow.
    None,
    /// All handlers of the chain that need both ends.
    All,
    /// These handlers.
    These(Vec<String>),
}

/// Terms of an end: the offer that describes its chain, and the handlers that it requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    offer: Offer,
    required: Vec<u8>,
}

/// Reason why a chain cannot be negotiated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// No handler of the chain needs the other end.
    #[error(
        "no handler of the chain needs the other end: nothing can be negotiated; negotiable are \
         compress, crypt, migrate, mux and stripe"
    )]
    Nothing,
    /// The handler has no number.
    #[error("{0} cannot be negotiated: it needs both ends, and has no handler number")]
    Unknown(String),
    /// The handler is in the chain twice.
    #[error("{0} cannot be negotiated twice in a chain")]
    Twice(String),
    /// The handler connects to a host other than the far end, so the ends cannot negotiate.
    #[error("{0} connects to another host, which would get the offer instead of the far end")]
    Elsewhere(String),
    /// A required handler is not in the chain.
    #[error("{0} is required, but the chain has no such handler that needs both ends")]
    Absent(String),
    /// More handlers than an option holds.
    #[error("more than {MAX_HANDLERS} handlers that need both ends")]
    TooMany,
}

/// Reason why a flow is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The other end has sent no offer.
    #[error(
        "the other end does not negotiate, or a middlebox has removed its option; \
            required: \
         {0}"
    )]
    Plain(String),
    /// The other end lacks handlers that are required here.
    #[error("the other end has no {0}, which is required here; it has {1}")]
    Missing(String, String),
    /// The other end uses another format for a handler of the same name.
    #[error("{0}: this end speaks format {1}, the other end format {2}")]
    Format(String, u8, u8),
    /// The two ends have different handlers, although they must have the same.
    #[error(
        "offers in the first bytes must name the same handlers in the same order; here {0}, \
            there {1}"
    )]
    Differs(String, String),
}

impl Terms {
    /// Terms for a chain, given as the name of each handler and whether it needs both ends, in
    /// order from the application. Errors: the chain cannot be negotiated.
    pub fn new(chain: &[(&str, bool)], required: &Required) -> Result<Terms, TermsError> {
        if let Some((name, _)) = chain.iter().find(|(name, _)| PROXYING.contains(name)) {
            return Err(TermsError::Elsewhere((*name).to_owned()));
        }
        let mut items: Vec<Item> = Vec::new();
        for (name, _) in chain.iter().filter(|(_, both_ends)| *both_ends) {
            let item = wire::item(name).ok_or_else(|| TermsError::Unknown((*name).to_owned()))?;
            if items.contains(&item) {
                return Err(TermsError::Twice((*name).to_owned()));
            }
            items.push(item);
        }
        match items.len() {
            0 => return Err(TermsError::Nothing),
            1..=MAX_HANDLERS => {}
            _ => return Err(TermsError::TooMany),
        }
        let known = |name: &String| {
            let item = wire::item(name).filter(|item| items.contains(item));
            item.map(|item| item.number).ok_or_else(|| TermsError::Absent(name.clone()))
        };
        let required: Vec<u8> = match required {
            Required::None => Vec::new(),
            Required::All => items.iter().map(|item| item.number).collect(),
            Required::These(names) => names.iter().map(known).collect::<Result<_, _>>()?,
        };
        Ok(Terms { offer: Offer { items, insists: !required.is_empty() }, required })
    }

    /// Offer that this end sends.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Numbers of the handlers that apply to the flow, in order from the application: those that
    /// both ends have, in the order of the end that connects. `theirs` is the other end's offer, if
    /// it sent one. Errors: the flow is refused.
    pub fn negotiate(&self, connects: bool, theirs: Option<&Offer>) -> Result<Vec<u8>, Refusal> {
        let Some(theirs) = theirs else {
            let none = self.required.is_empty();
            return if none { Ok(Vec::new()) } else { Err(Refusal::Plain(names(&self.required))) };
        };
        let (first, second) = if connects { (&self.offer, theirs) } else { (theirs, &self.offer) };
        let mut agreed = Vec::new();
        for item in &first.items {
            let Some(other) = second.items.iter().find(|other| other.number == item.number) else {
                continue;
            };
            if other.format != item.format {
                let (ours, theirs) = if connects { (item, other) } else { (other, item) };
                let name = wire::name(item.number);
                return Err(Refusal::Format(name, ours.format, theirs.format));
            }
            agreed.push(item.number);
        }
        let missing: Vec<u8> =
            self.required.iter().copied().filter(|number| !agreed.contains(number)).collect();
        if missing.is_empty() {
            return Ok(agreed);
        }
        let has: Vec<u8> = theirs.items.iter().map(|item| item.number).collect();
        Err(Refusal::Missing(names(&missing), names(&has)))
    }
}

/// Handlers of `chain` that apply to a flow if the two ends have agreed on `agreed`. Handlers with
/// a handshake are bound to `binding`. Handlers that work at one end keep their places.
pub fn select_handlers(
    chain: &[Arc<dyn Factory>],
    both_ends: &[bool],
    agreed: &[u8],
    binding: &[u8],
) -> Arc<[Arc<dyn Factory>]> {
    let number = |factory: &Arc<dyn Factory>| wire::item(factory.name()).map(|item| item.number);
    let of = |wanted: u8| chain.iter().find(|factory| number(factory) == Some(wanted));
    let mut in_order = agreed.iter().filter_map(|&wanted| of(wanted));
    let stays = |(factory, both): (&Arc<dyn Factory>, &bool)| match both {
        false => Some(factory.clone()),
        true if number(factory).is_some_and(|number| agreed.contains(&number)) => {
            let next = in_order.next()?;
            Some(next.bound(binding).unwrap_or_else(|| next.clone()))
        }
        true => None,
    };
    chain.iter().zip(both_ends).filter_map(stays).collect()
}

/// Bytes to which a handshake is bound: the offers of the end that connects and of the other end.
pub fn binding(client: &Offer, server: &Offer) -> Vec<u8> {
    [&b"viaduct agree 1"[..], &client.emit(), &server.emit()].concat()
}

/// Names of handlers, for a log.
pub fn names(numbers: &[u8]) -> String {
    match numbers {
        [] => "none".to_owned(),
        all => all.iter().map(|&number| wire::name(number)).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests;
