use std::net::SocketAddr;

use proptest::prelude::*;

use crate::wire::{Answer, Call, Request, WELCOME, Welcome};
use crate::*;

const TCP: Socket = Socket { domain: 2, kind: 1, protocol: 6 };
const UDP: Socket = Socket { domain: 2, kind: 2, protocol: 17 };
const TCP6: Socket = Socket { domain: 10, kind: 1, protocol: 0 };

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn rules(said: &[(Fate, &str)]) -> Rules {
    let mut rules = Rules::EVERYTHING;
    said.iter().for_each(|(fate, pattern)| rules.add(*fate, pattern).unwrap());
    rules
}

fn connect(rules: &Rules, socket: Socket, to: &str) -> Verdict {
    let (bytes, length) = socket.sockaddr(at(to));
    rules.connect(socket, &bytes[..length])
}

#[test]
fn without_rules_every_stream_is_diverted_and_datagrams_pass() {
    let all = Rules::EVERYTHING;
    assert_eq!(connect(&all, TCP, "192.0.2.1:80"), Verdict::Divert(at("192.0.2.1:80")));
    assert_eq!(connect(&all, UDP, "192.0.2.1:53"), Verdict::Pass);
    let unix = Socket { domain: 1, kind: 1, protocol: 0 };
    assert_eq!(all.connect(unix, b"\x01\0/run/x"), Verdict::Pass);
}

#[test]
fn the_precedence_of_rules_does_not_depend_on_their_order() {
    let lines =
        [(Fate::Divert, "tcp:443"), (Fate::Leave, "10.0.0.0/8"), (Fate::Refuse, "10.0.0.1:443")];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let rules = rules(&order.map(|n| lines[n]));
        let meant = |to| connect(&rules, TCP, to);
        assert_eq!(meant("192.0.2.1:443"), Verdict::Divert(at("192.0.2.1:443")));
        assert_eq!(meant("192.0.2.1:80"), Verdict::Pass);
        assert_eq!(meant("10.0.0.2:443"), Verdict::Pass);
        assert_eq!(meant("10.0.0.1:443"), Verdict::Refuse(Errno::PERM));
    }
}

#[test]
fn patterns_select_transport_address_and_ports() {
    let cases = [
        ("tcp", "[2001:db8::1]:1", "udp"),
        ("443", "192.0.2.1:443", "192.0.2.1:80"),
        (":8000-8999", "192.0.2.1:8080", "192.0.2.1:80"),
        ("192.0.2.0/24", "192.0.2.255:1", "192.0.3.0:1"),
        ("192.0.2.1:22", "192.0.2.1:22", "192.0.2.2:22"),
        ("2001:db8::/32", "[2001:db8:1::]:9", "[2001:db9::]:9"),
        ("tcp:[2001:db8::]/32:80", "[2001:db8:1::]:80", "[2001:db8:1::]:81"),
        ("[2001:db8::1]", "[2001:db8::1]:80", "[2001:db8::2]:80"),
        ("0.0.0.0/0", "192.0.2.1:1", "[2001:db8::1]:1"),
    ];
    for (pattern, fits, other) in cases {
        // A plain number is a port only after a transport.
        let pattern = if pattern == "443" { "tcp:443" } else { pattern };
        let rules = rules(&[(Fate::Refuse, pattern)]);
        assert_eq!(rules.fate(Transport::Tcp, at(fits)), Fate::Refuse, "{pattern}");
        match other {
            "udp" => assert_eq!(rules.fate(Transport::Udp, at(fits)), Fate::Divert),
            other => assert_eq!(rules.fate(Transport::Tcp, at(other)), Fate::Divert, "{pattern}"),
        }
    }
}

#[test]
fn invalid_patterns_are_reported() {
    let wrong = |pattern: &str| rules(&[]).add(Fate::Leave, pattern).unwrap_err();
    assert_eq!(wrong(""), RuleError::Empty);
    assert!(matches!(wrong("example.com"), RuleError::Address(_)));
    assert!(matches!(wrong("10.0.0.0/33"), RuleError::Length(_)));
    assert!(matches!(wrong("tcp:70000"), RuleError::Ports(_)));
    assert!(matches!(wrong("10.0.0.0/8:9-1"), RuleError::Ports(_)));
    let mut rules = Rules::EVERYTHING;
    rules.read("# mine\n\nonly tcp:443 # web\nexcept 10.0.0.0/8\n").unwrap();
    assert_eq!(rules.lines().len(), 2);
    assert!(matches!(rules.read("only 1.2.3.4\nallow x"), Err((2, RuleError::Word(_)))));
}

#[test]
fn mapped_addresses_are_treated_as_ipv4_addresses() {
    let rules = rules(&[(Fate::Leave, "10.0.0.0/8")]);
    let flags = Socket { kind: 1 | 0o2_000_000 | 0o4_000, ..TCP6 };
    assert_eq!(connect(&rules, flags, "10.1.1.1:1"), Verdict::Pass);
    assert_eq!(connect(&rules, flags, "192.0.2.1:1"), Verdict::Divert(at("192.0.2.1:1")));
    assert_eq!(connect(&rules, TCP, "0.0.0.0:80"), Verdict::Divert(at("127.0.0.1:80")));
    assert_eq!(connect(&rules, TCP6, "[::]:80"), Verdict::Divert(at("[::1]:80")));
    assert_eq!(rules.connect(TCP, &[0; 16]), Verdict::Pass, "AF_UNSPEC disconnects");
    assert_eq!(rules.connect(TCP, &[2, 0, 0]), Verdict::Pass, "the kernel returns EINVAL");
}

#[test]
fn a_send_connects_a_stream_only_with_fast_open() {
    let all = Rules::EVERYTHING;
    let (bytes, length) = TCP.sockaddr(at("192.0.2.1:80"));
    let send = |flags| all.send(TCP, flags, &bytes[..length]);
    assert_eq!(send(0), Verdict::Pass);
    assert_eq!(send(MSG_FASTOPEN), Verdict::Divert(at("192.0.2.1:80")));
}

#[test]
fn strict_mode_refuses_sockets_that_could_bypass_the_chain() {
    let mut rules = rules(&[]);
    let packets = Socket { domain: 17, kind: 3, protocol: 0 };
    assert_eq!((rules.socket(UDP), rules.socket(packets)), (Verdict::Pass, Verdict::Pass));
    assert_eq!(rules.datagrams(), Datagrams::Free);
    rules.strict = true;
    let no = Verdict::Refuse(Errno::PERM);
    assert_eq!((rules.socket(UDP), rules.socket(packets)), (no, no));
    assert_eq!(connect(&rules, UDP, "192.0.2.1:53"), no);
    assert_eq!((rules.socket(TCP), rules.datagrams()), (Verdict::Pass, Datagrams::Refused));
    rules.add(Fate::Leave, "udp:53").unwrap();
    assert_eq!((rules.socket(UDP), rules.datagrams()), (Verdict::Pass, Datagrams::Judged));
    assert_eq!(connect(&rules, UDP, "192.0.2.1:53"), Verdict::Pass);
    assert_eq!(connect(&rules, UDP, "192.0.2.1:54"), no);
}

#[test]
fn dns_queries_are_answered_by_the_carrier_of_datagrams() {
    let mut rules = rules(&[]);
    (rules.names, rules.strict) = (true, true);
    let ask = |rules: &Rules| connect(rules, UDP, "192.0.2.1:53");
    assert_eq!(ask(&rules), Verdict::Resolve(at("192.0.2.1:53")));
    assert_eq!(connect(&rules, UDP, "192.0.2.1:54"), Verdict::Refuse(Errno::PERM));
    rules.carries = true;
    assert_eq!(ask(&rules), Verdict::Pass);
    assert_eq!(connect(&rules, UDP, "192.0.2.1:54"), Verdict::Pass);
}

#[test]
fn rules_may_keep_all_datagrams_out_of_the_chain() {
    let wants = |said: &[(Fate, &str)]| rules(said).want_datagrams();
    assert!(wants(&[]) && wants(&[(Fate::Divert, ":53")]) && wants(&[(Fate::Leave, "udp:53")]));
    assert!(wants(&[(Fate::Refuse, "tcp")]) && wants(&[(Fate::Leave, "0.0.0.0/0")]));
    assert!(!wants(&[(Fate::Divert, "tcp:443")]) && !wants(&[(Fate::Leave, "udp")]));
    assert!(!wants(&[(Fate::Refuse, "udp"), (Fate::Divert, "udp:53")]));
}

#[test]
fn mptcp_is_refused_so_that_programs_use_tcp() {
    let mptcp = Socket { protocol: 262, ..TCP };
    assert_eq!(Rules::EVERYTHING.socket(mptcp), Verdict::Refuse(Errno::PROTONOSUPPORT));
    assert_eq!(connect(&Rules::EVERYTHING, mptcp, "192.0.2.1:1"), Verdict::Refuse(Errno::PERM));
}

#[test]
fn records_round_trip() {
    let to = at("[fe80::1%7]:443");
    for request in [
        Request::Hello,
        Request::Connect { to, wait: true },
        Request::Connect { to: at("192.0.2.1:80"), wait: false },
        Request::Names { cookie: 0x1234_5678_9abc },
        Request::Error { cookie: u64::MAX },
        Request::Refused { call: Call::Send, datagrams: true, to: None, errno: Errno::PERM },
    ] {
        assert_eq!(Request::parse(&request.emit()), Some(request));
        assert_eq!(Request::parse(&request.emit()[1..]), None);
    }
    let mut bytes = [0; WELCOME];
    let length = Answer::Done(Errno::INPROGRESS).emit(&mut bytes);
    assert!(matches!(Answer::parse(&bytes[..length]), Some(Answer::Done(Errno::INPROGRESS))));
    let named = Answer::Named { peer: Some(to), own: None };
    let length = named.emit(&mut bytes);
    let Some(Answer::Named { peer, own: None }) = Answer::parse(&bytes[..length]) else { panic!() };
    assert_eq!(peer, Some(to));
}

#[test]
fn rules_round_trip() {
    let mut rules = Rules::EVERYTHING;
    rules.strict = true;
    for port in 0..MAX_LINES {
        rules.add(Fate::Leave, &format!("udp:10.0.0.0/8:{port}-9999")).unwrap();
    }
    assert_eq!(rules.add(Fate::Leave, "tcp"), Err(RuleError::TooMany));
    let rendezvous = [Some(at("127.0.0.1:7")), None];
    let mut bytes = [0; WELCOME];
    let length = Answer::Welcome(Welcome {
        rules,
        rendezvous,
        offload: Some(7),
        reports: true,
        has_seccomp: true,
    })
    .emit(&mut bytes);
    assert_eq!(length, WELCOME);
    let Some(Answer::Welcome(welcome)) = Answer::parse(&bytes) else { panic!() };
    assert_eq!((welcome.rules.lines(), welcome.rendezvous), (rules.lines(), rendezvous));
    assert_eq!(welcome.offload, Some(7));
    assert!(welcome.rules.strict && Answer::parse(&bytes[..length - 1]).is_none());
}

/// Generates a few rules over few addresses, so that they often overlap.
fn some_rules() -> impl Strategy<Value = Rules> {
    let fate = prop_oneof![Just(Fate::Refuse), Just(Fate::Leave), Just(Fate::Divert)];
    let place =
        prop_oneof![Just(""), Just("10.0.0.0/8"), Just("10.1.0.0/16"), Just("[2001:db8::]/32")];
    let ports = prop_oneof![Just(""), Just(":80"), Just(":1-100"), Just(":50-443")];
    let transport = prop_oneof![Just(""), Just("tcp"), Just("udp")];
    let line = (fate, transport, place, ports).prop_filter_map("an empty pattern", |of| {
        let (fate, transport, place, ports) = of;
        let rest = format!("{place}{ports}");
        let colon = if transport.is_empty() || rest.starts_with(':') { "" } else { ":" };
        let text = if rest.is_empty() {
            transport.to_owned()
        } else {
            format!("{transport}{colon}{rest}")
        };
        (!text.is_empty()).then_some((fate, text))
    });
    proptest::collection::vec(line, 0..5).prop_map(|lines| {
        let mut rules = Rules::EVERYTHING;
        lines.iter().for_each(|(fate, pattern)| rules.add(*fate, pattern).unwrap());
        rules
    })
}

proptest! {
    #[test]
    fn joined_rules_agree_with_their_parts(
        one in some_rules(),
        other in some_rules(),
        third in some_rules(),
    ) {
        let Ok(both) = one.both(&other) else { return Ok(()) };
        let Ok(above) = one.above(&other) else { return Ok(()) };
        let Ok(third_of_above) = third.both(&above) else { return Ok(()) };
        let mut bytes = [0; WELCOME];
        let welcome = Welcome {
            rules: above,
            rendezvous: [None; 2],
            offload: None,
            reports: false,
            has_seccomp: false,
        };
        let length = Answer::Welcome(welcome).emit(&mut bytes);
        let Some(Answer::Welcome(heard)) = Answer::parse(&bytes[..length]) else {
            panic!("not a Welcome")
        };
        for ip in ["10.0.0.1", "10.1.0.1", "192.0.2.1", "2001:db8::1", "2001:db9::1"] {
            for port in [22, 50, 80, 100, 443, 1000] {
                for transport in [Transport::Tcp, Transport::Udp] {
                    let to = SocketAddr::new(ip.parse().unwrap(), port);
                    let of = |rules: &Rules| rules.fate(transport, to);
                    let upper = if of(&one) == Fate::Leave { of(&other) } else { of(&one) };
                    prop_assert_eq!(of(&both), of(&one).min(of(&other)));
                    prop_assert_eq!(of(&above), upper);
                    prop_assert_eq!(of(&heard.rules), upper);
                    prop_assert_eq!(of(&third_of_above), upper.min(of(&third)));
                }
            }
        }
    }
}

#[test]
fn an_address_without_a_family_is_checked_where_the_kernel_reads_it() {
    let rules = rules(&[(Fate::Refuse, "192.0.2.1"), (Fate::Refuse, "2001:db8::1")]);
    let of = |domain, kind| Socket { domain, kind, protocol: 0 };
    let refused = Verdict::Refuse(Errno::PERM);
    for (socket, to, sent) in [
        (UDP, "192.0.2.1:53", refused),
        (UDP, "192.0.2.2:53", Verdict::Pass),
        (of(2, 3), "192.0.2.1:0", refused),
        (of(10, 3), "[2001:db8::1]:0", refused),
        // Such a datagram goes to the socket's peer.
        (of(10, 2), "[2001:db8::1]:53", Verdict::Pass),
        (TCP, "192.0.2.1:80", Verdict::Pass),
    ] {
        let (mut bytes, length) = socket.sockaddr(at(to));
        bytes[..2].fill(0);
        assert_eq!(rules.send(socket, 0, &bytes[..length]), sent, "{socket:?} {to}");
        // `AF_UNSPEC` disconnects the socket.
        assert_eq!(rules.connect(socket, &bytes[..length]), Verdict::Pass, "{socket:?} {to}");
    }
}

#[test]
fn ipv4_rules_apply_to_mapped_addresses() {
    let rules = rules(&[(Fate::Refuse, "10.0.0.0/8"), (Fate::Leave, "192.0.2.0/24")]);
    for socket in [TCP, TCP6] {
        assert_eq!(connect(&rules, socket, "10.1.2.3:80"), Verdict::Refuse(Errno::PERM));
        assert_eq!(connect(&rules, socket, "192.0.2.9:80"), Verdict::Pass);
        let other = "198.51.100.1:80";
        assert_eq!(connect(&rules, socket, other), Verdict::Divert(at(other)));
    }
}
