//! Two ends with chains of their own, and the results of their negotiation.

use proptest::prelude::*;

use super::*;
use crate::flow::{Action, Address, Chain, Half};
use crate::handlers::testing::{Net, factories, shell};
use crate::time::{Duration, Instant};

const NAMES: [&str; 4] = ["compress", "crypt", "migrate", "stripe"];

fn chain() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(NAMES.to_vec(), 1..=NAMES.len()).prop_shuffle()
}

fn terms(chain: &[&str], required: &Required) -> Terms {
    let chain: Vec<_> = chain.iter().map(|name| (*name, true)).collect();
    Terms::new(&chain, required).unwrap()
}

fn offer() -> impl Strategy<Value = Offer> {
    let numbers: Vec<u8> = (1..16).collect();
    let items = proptest::sample::subsequence(numbers, 0..=MAX_HANDLERS).prop_shuffle();
    (items, any::<bool>(), 0u8..16).prop_map(|(numbers, insists, format)| {
        let items = numbers.into_iter().map(|number| Item { number, format }).collect();
        Offer { items, insists }
    })
}

proptest! {
    #[test]
    fn both_ends_agree(client in chain(), server in chain()) {
        let [ours, theirs] = [&client, &server].map(|chain| terms(chain, &Required::None));
        let here = ours.negotiate(true, Some(theirs.offer())).unwrap();
        let there = theirs.negotiate(false, Some(ours.offer())).unwrap();
        prop_assert_eq!(&here, &there);
        let both: Vec<_> = client.iter().filter(|name| server.contains(name)).collect();
        let agreed: Vec<_> = here.iter().map(|&number| wire::name(number)).collect();
        prop_assert_eq!(agreed.iter().map(String::as_str).collect::<Vec<_>>(),
            both.into_iter().copied().collect::<Vec<_>>(), "what both have, as the client has it");
    }

    #[test]
    fn required_handlers_apply_or_fail(client in chain(), server in chain(), n in 0usize..4) {
        let wanted = client[n % client.len()].to_owned();
        let ours = terms(&client, &Required::These(vec![wanted.clone()]));
        let theirs = terms(&server, &Required::None);
        let settled = ours.negotiate(true, Some(theirs.offer()));
        prop_assert_eq!(settled.is_ok(), server.contains(&wanted.as_str()));
        prop_assert!(ours.negotiate(true, None).is_err(), "no plain flow is accepted");
        let all = terms(&client, &Required::All).negotiate(true, Some(theirs.offer()));
        prop_assert_eq!(all.is_ok(), client.iter().all(|name| server.contains(name)));
    }

    #[test]
    fn an_offer_is_read_as_it_was_written(offer in offer(), before in 0usize..3) {
        let option = offer.emit();
        prop_assert_eq!(Offer::parse(&option), Some(offer.clone()));
        let options: Vec<u8> = [&[1, 1, 1][..before], &[2, 4, 5, 0xb4], &option, &[0]].concat();
        prop_assert_eq!(Offer::find(&options), Some(offer));
        for cut in 0..LEN {
            prop_assert_eq!(Offer::parse(&option[..cut]), None);
        }
    }

    #[test]
    fn a_garbled_offer_is_another_or_none(
        offer in offer(),
        at in 0usize..LEN,
        by in 1u8..,
        noise in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut option = offer.emit();
        option[at] ^= by;
        let read = Offer::parse(&option);
        // The flag bits that are not used yet may have any value.
        prop_assert!(read != Some(offer) || at == 4 && by & 0xf1 == 0);
        if let Some(read) = Offer::find(&noise) {
            prop_assert!(read.items.len() <= MAX_HANDLERS);
        }
    }
}

#[test]
fn a_difference_is_reported_with_both_values() {
    let ours = terms(&["compress", "crypt"], &Required::None);
    let mut theirs = ours.offer().clone();
    theirs.items[0].format = 3;
    let refusal = ours.negotiate(true, Some(&theirs)).unwrap_err();
    assert_eq!(refusal.to_string(), "compress: this end speaks format 1, the other end format 3");
    let refusal = terms(&["crypt"], &Required::All).negotiate(false, Some(&Offer::default()));
    assert!(
        refusal.unwrap_err().to_string().contains("no crypt, which is required here; it has none")
    );
}

#[test]
fn chains_that_cannot_be_negotiated_are_reported() {
    let wrong = |chain: &[(&str, bool)], required| Terms::new(chain, &required).unwrap_err();
    assert_eq!(wrong(&[("count", false)], Required::None), TermsError::Nothing);
    assert_eq!(wrong(&[("rot13", true)], Required::None), TermsError::Unknown("rot13".to_owned()));
    assert_eq!(
        wrong(&[("crypt", true), ("crypt", true)], Required::All),
        TermsError::Twice("crypt".to_owned())
    );
    assert_eq!(
        wrong(&[("socks", false), ("crypt", true)], Required::None),
        TermsError::Elsewhere("socks".to_owned())
    );
    assert_eq!(
        wrong(&[("crypt", true)], Required::These(vec!["compress".to_owned()])),
        TermsError::Absent("compress".to_owned())
    );
}

/// Chain whose handlers all need both ends, with an offer in the first bytes.
fn in_band(chain: &[&str]) -> Arc<[Arc<dyn Factory>]> {
    let chain = factories(chain, &shell());
    let named: Vec<_> = chain.iter().map(|factory| (factory.name(), true)).collect();
    let terms = Terms::new(&named, &Required::All).unwrap();
    offer_in_band(&terms, &chain, &vec![true; chain.len()])
}

#[test]
fn ends_negotiate_in_the_first_bytes() {
    for chain in [&["compress", "crypt:key=1.key"][..], &["compress"], &["stripe:paths=3"]] {
        let mut net = Net::of(in_band(chain), in_band(chain));
        net.connect();
        net.wait(Duration::from_secs(1));
        net.write(0, 1_000);
        net.write(1, 2_000);
        net.wait(Duration::from_secs(30));
        net.assert_whole();
    }
}

#[test]
fn an_end_with_another_chain_or_none_is_refused() {
    let compress = || in_band(&["compress"]);
    let both = in_band(&["compress", "crypt:key=1.key"]);
    let plain = || factories(&[], &shell());
    for (client, server, why) in [
        (compress(), both, "no crypt, which is required here; it has compress"),
        (
            in_band(&["crypt:key=1.key", "compress"]),
            in_band(&["compress", "crypt:key=1.key"]),
            "here compress, crypt, there crypt, compress",
        ),
        (plain(), compress(), "does not negotiate"),
        (compress(), plain(), "does not negotiate"),
    ] {
        let plain = server.is_empty();
        let mut net = Net::of(client, server);
        net.connect();
        // A plain program would read bytes that are not part of its flow.
        net.ends[1].iter_mut().for_each(|end| end.takes &= !plain);
        net.write(0, 100);
        net.wait(Duration::from_secs(60));
        assert!(plain || net.ends[1].iter().all(|end| !end.is_there), "{why}");
        assert!(net.said.iter().any(|line| line.contains(why)), "{why}: {:?}", net.said);
    }
}

#[test]
fn data_written_before_the_connection_waits_at_its_source_and_follows_the_offer() {
    let now = Instant::ZERO;
    let mut chain = Chain::new(in_band(&["compress"]), 64 << 10, now);
    let bottom = chain.bottom().unwrap();
    assert!(chain.write(now, vec![7; 9_000].into()));
    chain.connect(now, Address::Name("server".to_owned(), 80));
    chain.handle_timeout(now);
    assert!(!chain.may_write(), "a server that does not answer must not fill memory");
    assert!(chain.held() > 0);
    chain.shutdown(now, Half::Write);
    assert!(
        !std::iter::from_fn(|| chain.poll_action())
            .any(|action| matches!(action, Action::Shutdown(..)))
    );
    chain.connected(now, bottom, Ok(()));
    let sent: Vec<u8> = chain.outgoing(bottom).pieces().flatten().copied().collect();
    assert_eq!(Offer::parse(&sent[..LEN]).unwrap().items.len(), 1);
    assert!(sent.len() > LEN + 4);
    chain.sent(now, bottom, sent.len());
    let mut actions = std::iter::from_fn(|| chain.poll_action());
    assert!(actions.any(|action| action == Action::Shutdown(bottom, Half::Write)));
    assert_eq!(chain.held(), 0);
}
