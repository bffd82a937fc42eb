//! Input from wrapped programs: addresses, records, and rules of their users.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::wrap::aware::Ask;
use viaduct_proto::wrap::wire::{Answer, Request, WELCOME};
use viaduct_proto::wrap::{Fate, MSG_FASTOPEN, Rules, Sockaddr, Socket, Verdict, parse_sockaddr};

fuzz_target!(|input: &[u8]| {
    if let Some(request) = Request::parse(input) {
        assert_eq!(Request::parse(&request.emit()), Some(request));
    }
    if let Some(ask) = Ask::parse(input) {
        assert_eq!(ask.emit().as_deref(), Some(input));
    }
    if let Some(answer) = Answer::parse(input) {
        let [mut once, mut again] = [[0; WELCOME]; 2];
        let length = answer.emit(&mut once);
        let same = Answer::parse(&once[..length]).expect("an emitted answer parses");
        assert_eq!((same.emit(&mut again), once), (length, again));
    }
    // The first byte is the length of the rules; an address follows them.
    let Some((&length, rest)) = input.split_first() else { return };
    let (text, sockaddr) = rest.split_at(rest.len().min(length.into()));
    let mut rules = Rules::EVERYTHING;
    if let Ok(text) = std::str::from_utf8(text) {
        // Rules before the first invalid one apply.
        let _ = rules.read(text);
        let _ = rules.add(Fate::Refuse, text);
    }
    assert!(rules.lines().is_sorted_by_key(|line| line.fate));
    for (domain, kind) in [(2, 1), (10, 1), (2, 2), (17, 3), (1, 1)] {
        let socket = Socket { domain, kind, protocol: 0 };
        has_meaning(&mut rules, socket, sockaddr);
    }
});

/// Checks that an address parses to itself after it is emitted, and that strict rules divert a TCP
/// Fast Open send as they divert a connect to its address.
fn has_meaning(rules: &mut Rules, socket: Socket, sockaddr: &[u8]) {
    if let Sockaddr::Ip(to) = parse_sockaddr(sockaddr)
        && socket.is_of_ip()
        && (socket.is_v6() || to.is_ipv4())
    {
        let (bytes, length) = socket.sockaddr(to);
        assert_eq!(parse_sockaddr(&bytes[..length]), Sockaddr::Ip(to));
    }
    rules.strict = true;
    if let Verdict::Divert(to) = rules.send(socket, MSG_FASTOPEN, sockaddr) {
        assert_eq!(Sockaddr::Ip(to), parse_sockaddr(sockaddr));
        assert_eq!(rules.connect(socket, sockaddr), Verdict::Divert(to));
    }
}
