//! Messages that give a hop the destination of a flow. A message that parses is no longer than the
//! input, and still parses to the same when the bytes after it are removed; each proper prefix of
//! the message is incomplete.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use viaduct_proto::split::option::{Hop, LEN};
use viaduct_proto::split::syn::Syn;
use viaduct_proto::split::{Parsed, connect, proxy, socks, socks_client, socks_datagram};
use viaduct_proto::wire::ip::Header;

fuzz_target!(|input: &[u8]| {
    is_cut_anywhere(input, proxy::parse);
    is_cut_anywhere(input, |bytes| socks::greeting(bytes, socks::Method::None));
    is_cut_anywhere(input, socks::credentials);
    is_cut_anywhere(input, socks::request);
    is_cut_anywhere(input, socks_client::choice);
    is_cut_anywhere(input, socks_client::verdict);
    is_cut_anywhere(input, socks_client::reply);
    if let Ok((from, data)) = socks_datagram::parse(input) {
        assert!(input.ends_with(data));
        let again = socks_datagram::emit(&from, data).expect("a parsed address can be emitted");
        assert_eq!(socks_datagram::parse(&again), Ok((from, data)));
    }
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
        is_a_syn(input, syn);
    }
    let _ = Syn::parse_headers(input);
    hop_is_parsed(input);
});

/// Checks that all fields of `syn` are in `input`, and that the headers alone give the same
/// addresses and options.
fn is_a_syn(input: &[u8], syn: Syn) {
    assert_eq!(syn.tuple.client.is_ipv4(), syn.tuple.to.is_ipv4());
    let header = Header::parse(input).unwrap();
    let data = header.header_len + usize::from(input[header.header_len + 12] >> 4) * 4;
    let data = &input[data..header.total_len];
    let told = match proxy::parse(data) {
        Parsed::Whole(told, _) => told,
        _ => None,
    };
    assert_eq!(syn.header, told);
    let headers = &input[..header.total_len - data.len()];
    assert_eq!(Syn::parse_headers(headers), Some(Syn { header: None, ..syn }));
}

/// Checks the SYN whose options and data are these bytes.
fn hop_is_parsed(input: &[u8]) {
    let Some((&cut, rest)) = input.split_first() else { return };
    let (options, data) = rest.split_at(rest.len().min(usize::from(cut % 11) * 4) / 4 * 4);
    let data = &data[..data.len().min(1460)];
    let length = (40 + options.len() + data.len()) as u16;
    let mut packet = vec![0; 40];
    (packet[0], packet[9]) = (0x45, 6);
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    (packet[32], packet[33]) = ((5 + options.len() as u8 / 4) << 4, 2);
    packet.extend(options);
    packet.extend(data);
    let syn = Syn::parse(&packet).expect("a complete SYN");
    assert_eq!(syn.hop, Hop::find(options));
    is_a_syn(&packet, syn);
}

fn is_cut_anywhere<T: PartialEq + Debug>(input: &[u8], parse: impl Fn(&[u8]) -> Parsed<T>) {
    let Parsed::Whole(meant, len) = parse(input) else { return };
    assert!(len > 0 && len <= input.len());
    assert_eq!(parse(&input[..len]), Parsed::Whole(meant, len));
    for cut in [0, len / 2, len - 1] {
        assert_eq!(parse(&input[..cut]), Parsed::Short);
    }
}
