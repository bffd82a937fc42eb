use std::net::SocketAddr;

use proptest::prelude::*;

use super::option::{Hop, LEN};
use super::proxy::Addresses;
use super::syn::Syn;
use super::*;
use crate::flow::{Address, Failure};

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Asserts that every proper prefix of `message` is too short, and that the whole message is
/// parsed to its end, whatever follows.
fn is_cut_anywhere<T: PartialEq + std::fmt::Debug>(
    message: &[u8],
    parse: impl Fn(&[u8]) -> Parsed<T>,
    meant: T,
) {
    for cut in 0..message.len() {
        assert_eq!(parse(&message[..cut]), Parsed::Short, "{cut} of {} bytes", message.len());
    }
    let longer = [message, b"and more"].concat();
    assert_eq!(parse(&longer), Parsed::Whole(meant, message.len()));
}

#[test]
fn the_option_is_found_among_others() {
    let hop = Hop {
        source: "10.0.0.1:40000".parse().unwrap(),
        destination: "192.0.2.7:443".parse().unwrap(),
    };
    let option = hop.emit();
    let bytes = [253, 16, 0x56, 0x68, 10, 0, 0, 1, 192, 0, 2, 7, 0x9c, 0x40, 1, 187];
    assert_eq!(option, bytes);
    // Linux's options (MSS, SACK permitted, timestamps, NOP, window scale), then another
    // experiment.
    let usual = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let other = [253, 4, 0xf9, 0x89];
    assert_eq!(Hop::find(&[&usual[..], &option].concat()), Some(hop));
    assert_eq!(Hop::find(&[&other[..], &option, &[0]].concat()), Some(hop));
    assert_eq!(Hop::find(&usual), None);
    for broken in [&option[..LEN - 1], &[253], &[253, 0], &[253, 1], &[0, 253]] {
        assert_eq!(Hop::find(broken), None, "{broken:?}");
    }
    let nowhere = Hop { destination: "0.0.0.0:0".parse().unwrap(), ..hop };
    assert_eq!(Hop::find(&nowhere.emit()), None);
}

/// SYN from 10.0.0.9:4000 to 10.0.0.1:7000 with data and these options, a multiple of 4 bytes.
fn syn(options: &[u8], data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(40 + options.len() + data.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend([10, 0, 0, 9, 10, 0, 0, 1, 0x0f, 0xa0, 0x1b, 0x58]);
    packet.extend([0; 8]);
    packet.extend([(5 + u8::try_from(options.len()).unwrap() / 4) << 4, 2]);
    packet.extend([0; 6]);
    [&packet[..], options, data].concat()
}

#[test]
fn a_syn_signals_by_its_option_or_by_its_data() {
    let addresses = Addresses::new(socket("10.0.0.8:5"), socket("192.0.2.7:443"));
    let hop = Hop::of(&addresses).unwrap();
    let header = proxy::emit(&addresses);
    let more = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
    for (options, data, told) in [
        (&hop.emit()[..], &b""[..], Some(addresses)),
        (&hop.emit(), b"GET / HTTP/1.1\r\n", Some(addresses)),
        (&[], &header, Some(addresses)),
        (&[1, 1, 1, 0], &more, Some(addresses)),
        (&[], &header[..header.len() - 1], None),
        (&[], b"GET / HTTP/1.1\r\n", None),
        (&[], b"", None),
    ] {
        let packet = syn(options, data);
        let parsed = Syn::parse(&packet).unwrap();
        assert_eq!((parsed.tuple.client, parsed.addresses()), (socket("10.0.0.9:4000"), told));
        // A frame may be longer than its packet, and the kernel saves only the headers.
        assert_eq!(Syn::parse(&[&packet[..], &header].concat()), Some(parsed));
        let headers = &packet[..packet.len() - data.len()];
        assert_eq!(Syn::parse_headers(headers), Some(Syn { header: None, ..parsed }));
        assert_eq!(Syn::parse(&packet[..packet.len() - 1]), None);
    }
    let mut answer = syn(&[], b"");
    answer[33] = 0x12;
    assert_eq!(Syn::parse(&answer), None, "SYN and ACK");
    let mapped = Addresses { source: socket("[::ffff:10.0.0.8]:5"), ..addresses };
    assert_eq!(Hop::of(&mapped), Some(hop));
    let v6 = Addresses { destination: socket("[2001:db8::2]:80"), ..addresses };
    assert_eq!(Hop::of(&v6), None);
}

#[test]
fn a_proxy_header_is_read_as_it_is_written() {
    for (source, destination) in [
        ("10.0.0.1:1", "10.0.0.2:65535"),
        ("[2001:db8::1]:1", "[2001:db8::2]:80"),
        ("10.0.0.1:1", "[2001:db8::2]:80"),
    ] {
        let addresses = Addresses::new(socket(source), socket(destination));
        is_cut_anywhere(&proxy::emit(&addresses), proxy::parse, Some(addresses));
    }
}

#[test]
fn a_proxy_header_may_be_local_or_extended_and_must_be_valid() {
    let header = |command: u8, family: u8, body: &[u8]| {
        let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        bytes.extend([command, family]);
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        [&bytes[..], body].concat()
    };
    is_cut_anywhere(&header(0x20, 0, &[]), proxy::parse, None);
    let extended = header(0x21, 0x11, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0, 10, 4, 0, 1, 0]);
    let meant = Addresses::new(socket("1.2.3.4:9"), socket("5.6.7.8:10"));
    is_cut_anywhere(&extended, proxy::parse, Some(meant));
    for wrong in [
        header(0x21, 0x11, &[0; 11]),
        header(0x21, 0x21, &[0; 35]),
        header(0x21, 0x12, &[0; 12]),
        header(0x11, 0x11, &[0; 12]),
        b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n".to_vec(),
    ] {
        assert!(matches!(proxy::parse(&wrong), Parsed::Wrong(_)), "{wrong:?}");
    }
}

#[test]
fn socks_messages_are_parsed() {
    use socks::{Credentials, Method};
    let greeting = |bytes: &[u8]| socks::greeting(bytes, Method::Password);
    is_cut_anywhere(&[5, 2, 0, 2], greeting, true);
    is_cut_anywhere(&[5, 1, 0], greeting, false);
    let credentials = Credentials { name: b"me".to_vec(), password: b"pw!".to_vec() };
    is_cut_anywhere(b"\x01\x02me\x03pw!", socks::credentials, credentials);
    let v4 = [5, 1, 0, 1, 10, 0, 0, 1, 0, 80];
    is_cut_anywhere(&v4, socks::request, Address::Ip(socket("10.0.0.1:80")));
    let mut v6 = vec![5, 1, 0, 4];
    v6.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 187]);
    is_cut_anywhere(&v6, socks::request, Address::Ip(socket("[2001:db8::1]:443")));
    let name = b"\x05\x01\x00\x03\x0bexample.org\x01\xbb";
    is_cut_anywhere(name, socks::request, Address::Name("example.org".into(), 443));
    for wrong in [
        &b"\x04\x01"[..],
        b"\x05\x02\x00\x01",
        b"\x05\x01\x01",
        b"\x05\x01\0\x02",
        b"\x05\x01\0\x03\x03a b\0\x50",
        b"\x05\x01\0\x03\0\0\x50",
    ] {
        assert!(matches!(socks::request(wrong), Parsed::Wrong(_)), "{wrong:?}");
    }
    assert_eq!(socks::reply(Err(Failure::Refused))[..2], [5, 5]);
}

#[test]
fn connect_requests_are_parsed() {
    let whole = |text: &str, to: Address, authorization: Option<&str>| {
        let authorization = authorization.map(|text| text.as_bytes().to_vec());
        let persists = !text.contains("HTTP/1.0");
        let request = connect::Request { to, authorization, persists };
        is_cut_anywhere(text.as_bytes(), connect::parse, request);
    };
    let host = Address::Name("example.org".into(), 443);
    whole("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n", host.clone(), None);
    whole("CONNECT example.org:443 HTTP/1.0\n\n", host.clone(), None);
    let sent = "CONNECT example.org:443 HTTP/1.1\r\nproxy-authorization: Basic bWU6cHc=\r\n\r\n";
    whole(sent, host, Some("Basic bWU6cHc="));
    whole("CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n", Address::Ip(socket("10.0.0.1:80")), None);
    whole("CONNECT [::1]:80 HTTP/1.1\r\n\r\n", Address::Ip(socket("[::1]:80")), None);
    for wrong in [
        "GET / HTTP/1.1\r\n\r\n",
        "CONNECT example.org HTTP/1.1\r\n\r\n",
        "CONNECT example.org:0 HTTP/1.1\r\n\r\n",
        "CONNECT example.org:+80 HTTP/1.1\r\n\r\n",
        "CONNECT a/b:80 HTTP/1.1\r\n\r\n",
        "CONNECT a:80 SPDY/3\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\nno colon\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\nname : value\r\n\r\n",
        "BREW",
    ] {
        assert!(matches!(connect::parse(wrong.as_bytes()), Parsed::Wrong(_)), "{wrong}");
    }
    let endless = format!("CONNECT a:80 HTTP/1.1\r\nx: {}", "y".repeat(connect::LONGEST));
    assert!(matches!(connect::parse(endless.as_bytes()), Parsed::Wrong(_)));
}

proptest! {
    #[test]
    fn no_parser_fails_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        let _ = (Hop::find(&bytes), Syn::parse(&bytes), Syn::parse_headers(&bytes));
        let taken = [
            len(&proxy::parse(&bytes)),
            len(&socks::greeting(&bytes, socks::Method::None)),
            len(&socks::credentials(&bytes)),
            len(&socks::request(&bytes)),
            len(&connect::parse(&bytes)),
        ];
        prop_assert!(taken.iter().flatten().all(|&len| len <= bytes.len()));
    }
}

fn len<T>(parsed: &Parsed<T>) -> Option<usize> {
    match parsed {
        Parsed::Whole(_, len) => Some(*len),
        _ => None,
    }
}
