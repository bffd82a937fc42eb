//! Handler offers from another end. Any parsed offer is one that an end can make. The agreed
//! handlers are among the offered ones, and include all that this end requires.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::negotiate::{MAX_HANDLERS, NUMBERS, Offer, Refusal, Required, Terms};

fuzz_target!(|input: &[u8]| {
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
