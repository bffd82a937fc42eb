//! Handler offers from another end. Every parsed offer is an offer that an end can make. The agreed
//! handlers are among the offered ones, and include all that this end requires. Where offers are
//! the first bytes of a connection, only an equal offer opens the connection.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use viaduct_proto::flow::{Action, Chain, Factory, HandlerSpec};
use viaduct_proto::handlers::{Shell, registry};
use viaduct_proto::negotiate::{
    MAX_HANDLERS, NUMBERS, Offer, Refusal, Required, Terms, offer_in_band,
};
use viaduct_proto::time::Instant;

/// Terms of an end with `compress`, and its chain.
static IN_BAND: LazyLock<(Terms, Arc<[Arc<dyn Factory>]>)> = LazyLock::new(|| {
    let shell = Shell {
        files: Arc::new(|_| Err("there is no such file".to_owned())),
        entropy: Arc::new(|out: &mut [u8]| out.fill(7)),
        overlays: Arc::new(|_| Arc::new(|| None)),
    };
    let spec = "compress".parse::<HandlerSpec>().expect("a handler");
    let chain = registry(&shell).chain(&[spec]).expect("a chain");
    let terms = Terms::new(&[("compress", true)], &Required::All).expect("it can be negotiated");
    let chain = offer_in_band(&terms, &chain, &[true]);
    (terms, chain)
});

fuzz_target!(|input: &[u8]| {
    is_opened_by_its_own_offer(input);
    let _ = Offer::in_headers(input);
    let Some(offer) = Offer::find(input) else { return };
    assert!(offer.items.len() <= MAX_HANDLERS);
    assert_eq!(Offer::parse(&offer.emit()), Some(offer.clone()));
    let chain: Vec<_> = NUMBERS.iter().map(|(name, ..)| (*name, true)).collect();
    for required in [Required::None, Required::These(vec!["crypt".to_owned()]), Required::All] {
        let terms = Terms::new(&chain, &required).expect("all can be negotiated");
        for connects in [true, false] {
            match terms.negotiate(connects, Some(&offer)) {
                Ok(agreed) => {
                    let offered = |number| offer.items.iter().any(|item| item.number == number);
                    assert!(agreed.iter().all(|&number| offered(number)));
                    assert!(required != Required::All || agreed.len() == chain.len());
                }
                Err(Refusal::Format(_, ours, theirs)) => assert_ne!(ours, theirs),
                Err(_) => assert_ne!(required, Required::None),
            }
        }
    }
});

/// Delivers the input as the first bytes of a connection, in pieces.
fn is_opened_by_its_own_offer(input: &[u8]) {
    let (terms, factories) = &*IN_BAND;
    let mut chain = Chain::new(factories.clone(), 1 << 16, Instant::ZERO);
    chain.accepted(Instant::ZERO);
    let bottom = chain.bottom().expect("a new chain has one connection");
    let length = input.first().map_or(1, |first| usize::from(*first).max(1));
    for piece in input.chunks(length) {
        chain.avail(Instant::ZERO, bottom, piece.to_vec().into());
        chain.handle_timeout(Instant::ZERO);
    }
    let offer = terms.offer().emit();
    let theirs = input.get(..offer.len()).and_then(Offer::parse);
    let is_equal = theirs.is_some_and(|theirs| theirs.items == terms.offer().items);
    assert!(is_equal || chain.incoming().is_empty(), "data arrives without an equal offer");
    let has_failed = std::iter::from_fn(|| chain.poll_action())
        .any(|action| matches!(action, Action::Failed(_)));
    assert!(is_equal || has_failed || offer.starts_with(input) || input.len() < offer.len());
}
