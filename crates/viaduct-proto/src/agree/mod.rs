//! Negotiation: the two ends of a flow agree on its handlers while its connection is set up, so that
//! it costs no round trip, and who knows nothing of it is not harmed.
//!
//! ```text
//!   client                                                  server
//!     SYN,  option: compress crypt migrate    ──▶             a plain one ignores it
//!             ◀──    SYN-ACK, option: crypt compress          … and says nothing of its own
//!     ─────────────────────────────────────────────────
//!     both: Terms::settle ─▶ compress, crypt: what both have, in the client's order
//!                         └▶ or a Refusal, in words for the log
//! ```
//!
//! Only handlers that need both ends are agreed on; the others of a chain stay where they stand.
//! Nothing protects the options themselves. So who insists ([`Required`]) goes on with nothing less,
//! whatever was taken out of a packet; and where `crypt` is agreed on its handshake is bound to both
//! options ([`binding`]), and fails if one of them was altered. Without `crypt` somebody on the path
//! may choose among what neither end insists on, as he may alter the flow itself.
//!
//! Who may not write into SYNs and insists on all says so in the first bytes ([`greeting`]).

mod greet;
mod wire;

use std::sync::Arc;

use crate::flow::Factory;

pub use greet::greeting;
pub use wire::{EXID, Item, LEN, MOST, NUMBERS, Offer};

/// Handlers that lead elsewhere: whom they connect to is not whom the flow is for.
const ELSEWHERE: [&str; 2] = ["socks", "route"];

/// Which handlers an end goes on without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Required {
    /// All: a plain peer is spoken to plainly.
    None,
    /// None of the chain's.
    All,
    /// All but these.
    These(Vec<String>),
}

/// What an end was told of a chain, and holds the other end to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    offer: Offer,
    required: Vec<u8>,
}

/// Why there is nothing to agree on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// All handlers work at one end.
    #[error(
        "none of the handlers needs the other end: there is nothing to agree on; agreed on are \
         compress, crypt, migrate, mux and stripe"
    )]
    Nothing,
    /// It has no number.
    #[error("{0} cannot be agreed on: it needs both ends, and has no number that both know")]
    Unknown(String),
    /// It stands there twice.
    #[error("{0} cannot be agreed on twice in a chain")]
    Twice(String),
    /// The connection that is agreed on is not that to the far end.
    #[error("{0} goes elsewhere first: who is there would be asked, and not the far end")]
    Elsewhere(String),
    /// One that is insisted on and not there.
    #[error("{0} is required and is no handler of the chain that needs both ends")]
    Absent(String),
    /// More than an option holds.
    #[error("more than {MOST} handlers that need both ends")]
    TooMany,
}

/// Why a flow cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The other end has said nothing.
    #[error(
        "the other end does not negotiate, or something between has taken its option out; \
            required: \
         {0}"
    )]
    Plain(String),
    /// It has not all that it takes.
    #[error("the other end has no {0}, which is required here; it has {1}")]
    Missing(String, String),
    /// It means something else by the same name.
    #[error("{0}: this end speaks format {1}, the other end format {2}")]
    Format(String, u8, u8),
    /// It has others, where both must have the same.
    #[error(
        "by first bytes both ends agree on the same handlers in the same order alone; here {0}, \
            there {1}"
    )]
    Differs(String, String),
}

impl Terms {
    /// For a chain: of each handler its name and whether it needs both ends, the application's first.
    ///
    /// # Errors
    /// It cannot be agreed on.
    pub fn new(chain: &[(&str, bool)], required: &Required) -> Result<Terms, TermsError> {
        if let Some((name, _)) = chain.iter().find(|(name, _)| ELSEWHERE.contains(name)) {
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
            1..=MOST => {}
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

    /// What this end says.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The numbers of the handlers that the flow passes, the application's first: those of both, in the
    /// order of the one that connects. `theirs` is what the other end has said, if it has.
    ///
    /// # Errors
    /// The flow cannot be.
    pub fn settle(&self, connects: bool, theirs: Option<&Offer>) -> Result<Vec<u8>, Refusal> {
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

/// The handlers of `chain` that a flow passes when `agreed` is what was agreed on; each that can be is
/// bound to `binding`. Those that work at one end stay where they stand.
pub fn chosen(
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

/// What a handshake is bound to: what the end that connects has said, and the other.
pub fn binding(client: &Offer, server: &Offer) -> Vec<u8> {
    [&b"viaduct agree 1"[..], &client.emit(), &server.emit()].concat()
}

/// In words, for a log.
pub fn names(numbers: &[u8]) -> String {
    match numbers {
        [] => "none".to_owned(),
        all => all.iter().map(|&number| wire::name(number)).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests;
