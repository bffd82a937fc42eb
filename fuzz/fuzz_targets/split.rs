//! What tells a hop where a flow goes: whatever the bytes, a message takes no more than there are,
//! means the same without what follows it, and each beginning of it is too short.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use viaduct_proto::split::option::{Hop, LEN};
use viaduct_proto::split::syn::Syn;
use viaduct_proto::split::{Parsed, connect, proxy, socks};

fuzz_target!(|input: &[u8]| {
    is_cut_anywhere(input, proxy::parse);
    is_cut_anywhere(input, |bytes| socks::greeting(bytes, socks::Method::None));
    is_cut_anywhere(input, socks::credentials);
    is_cut_anywhere(input, socks::request);
    is_cut_anywhere(input, connect::parse);
    if let Parsed::Whole(Some(addresses), _) = proxy::parse(input) {
        let again = proxy::emit(&addresses);
        assert_eq!(proxy::parse(&again), Parsed::Whole(Some(addresses), again.len()));
    }
    if let Some(hop) = Hop::find(input) {
        let option = hop.emit();
        assert!(input.windows(LEN).any(|window| window == option));
    }
    if let Some(syn) = Syn::parse(input) {
        assert_eq!(syn.tuple.client.is_ipv4(), syn.tuple.to.is_ipv4());
    }
});

fn is_cut_anywhere<T: PartialEq + Debug>(input: &[u8], parse: impl Fn(&[u8]) -> Parsed<T>) {
    let Parsed::Whole(meant, len) = parse(input) else { return };
    assert!(len > 0 && len <= input.len());
    assert_eq!(parse(&input[..len]), Parsed::Whole(meant, len));
    for cut in [0, len / 2, len - 1] {
        assert_eq!(parse(&input[..cut]), Parsed::Short);
    }
}
