//! Tests of the filters: a small interpreter runs them, and the results are compared with the same
//! rules in plain Rust.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{PACKET_HOST, PACKET_OTHERHOST, PACKET_OUTGOING};

use super::*;

/// A packet as the kernel passes it to a filter.
struct Packet {
    kind: u8,
    vlan: Option<u16>,
    bytes: Vec<u8>,
}

impl Packet {
    fn meta(&self, which: i32) -> u32 {
        match which {
            SKF_AD_PKTTYPE => self.kind.into(),
            SKF_AD_VLAN_TAG_PRESENT => self.vlan.is_some().into(),
            SKF_AD_VLAN_TAG => self.vlan.unwrap_or(0).into(),
            SKF_AD_PROTOCOL => match self.bytes[0] >> 4 {
                4 => ETH_P_IP as u32,
                6 => ETH_P_IPV6 as u32,
                _ => 0x0806,
            },
            _ => panic!("unknown ancillary load {which}"),
        }
    }

    fn load(&self, size: u32, at: u32) -> Option<u32> {
        let at = at as usize;
        let bytes = |n: usize| self.bytes.get(at..at + n);
        match size {
            libc::BPF_W => bytes(4).map(|b| u32::from_be_bytes(b.try_into().unwrap())),
            libc::BPF_H => bytes(2).map(|b| u16::from_be_bytes(b.try_into().unwrap()).into()),
            _ => bytes(1).map(|b| b[0].into()),
        }
    }
}

/// Converts an offset of a program to an offset in a packet that begins at its network header.
fn place(at: u32) -> u32 {
    if at.cast_signed() < 0 { at.wrapping_sub(libc::SKF_NET_OFF.cast_unsigned()) } else { at }
}

/// Returns the number of bytes that the kernel would keep of the packet: 0 if a load is beyond its
/// end.
fn run(program: &[BpfInsn], packet: &Packet) -> u32 {
    let (mut a, mut x, mut cells, mut pc) = (0_u32, 0_u32, [0_u32; 16], 0_usize);
    loop {
        let BpfInsn { code, jt, jf, k } = program[pc];
        let code = u32::from(code);
        pc += 1;
        match code & 7 {
            libc::BPF_LD => {
                let loaded = match code & 0xe0 {
                    libc::BPF_ABS if k.cast_signed() >= libc::SKF_AD_OFF && k.cast_signed() < 0 => {
                        Some(packet.meta(k.cast_signed() - libc::SKF_AD_OFF))
                    }
                    libc::BPF_ABS => packet.load(code & 0x18, place(k)),
                    libc::BPF_IND => packet.load(code & 0x18, place(x.wrapping_add(k))),
                    libc::BPF_IMM => Some(k),
                    _ => panic!("load {code:#x}"),
                };
                let Some(value) = loaded else { return 0 };
                a = value;
            }
            libc::BPF_LDX if code & 0xe0 == libc::BPF_MEM => x = cells[k as usize],
            libc::BPF_LDX => x = 4 * (u32::from(packet.bytes[place(k) as usize]) & 15),
            libc::BPF_ST => cells[k as usize] = a,
            libc::BPF_ALU => {
                let by = if code & libc::BPF_X != 0 { x } else { k };
                a = match code & 0xf0 {
                    libc::BPF_ADD => a.wrapping_add(by),
                    libc::BPF_MUL => a.wrapping_mul(by),
                    libc::BPF_RSH => a >> by,
                    libc::BPF_MOD => a % by,
                    libc::BPF_XOR => a ^ by,
                    _ => a & by,
                }
            }
            libc::BPF_MISC => x = a,
            libc::BPF_RET if code & 0x18 == libc::BPF_A => return a,
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JA => pc += k as usize,
            libc::BPF_JMP => {
                let holds = match code & 0xf0 {
                    libc::BPF_JEQ => a == k,
                    libc::BPF_JGE => a >= k,
                    libc::BPF_JGT => a > k,
                    _ => a & k != 0,
                };
                pc += usize::from(if holds { jt } else { jf });
            }
            _ => return k,
        }
    }
}

fn accepts(filter: &TapFilter, packet: &Packet) -> bool {
    run(&filter.build().unwrap(), packet) > 0
}

/// Builds a UDP packet to port 4500.
fn packet(kind: u8, source: &str, destination: &str) -> Packet {
    build(kind, source.parse().unwrap(), destination.parse().unwrap())
}

fn build(kind: u8, source: IpAddr, destination: IpAddr) -> Packet {
    let mut bytes = vec![0; 60];
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            bytes[0] = 0x45;
            bytes[9] = 17;
            bytes[12..16].copy_from_slice(&source.octets());
            bytes[16..20].copy_from_slice(&destination.octets());
            bytes[22..24].copy_from_slice(&4500_u16.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            bytes[0] = 0x60;
            bytes[6] = 17;
            bytes[8..24].copy_from_slice(&source.octets());
            bytes[24..40].copy_from_slice(&destination.octets());
            bytes[42..44].copy_from_slice(&4500_u16.to_be_bytes());
        }
        _ => panic!("source and destination are of different families"),
    }
    Packet { kind, vlan: None, bytes }
}

fn sites() -> TapFilter {
    let prefix = |ip: &str, length| (ip.parse().unwrap(), length);
    TapFilter {
        local: vec![prefix("10.1.0.0", 16), prefix("fd01::", 48)],
        peers: vec![prefix("10.2.0.0", 16), prefix("10.3.4.5", 32), prefix("fd02:0:0:8::", 61)],
        listen: vec!["192.0.2.1:4500".parse().unwrap(), "[2001:db8::1]:4500".parse().unwrap()],
        fake_tcp: Vec::new(),
    }
}

#[test]
fn pairs_of_sites_pass_in_their_direction_only() {
    let filter = sites();
    for (local, peer) in
        [("10.1.2.3", "10.2.0.1"), ("10.1.255.255", "10.3.4.5"), ("fd01::7", "fd02:0:0:f::1")]
    {
        assert!(accepts(&filter, &packet(PACKET_OUTGOING, local, peer)));
        assert!(accepts(&filter, &packet(PACKET_HOST, peer, local)));
        assert!(!accepts(&filter, &packet(PACKET_HOST, local, peer)));
        assert!(!accepts(&filter, &packet(PACKET_OUTGOING, peer, local)));
        assert!(!accepts(&filter, &packet(PACKET_OTHERHOST, peer, local)));
    }
    for (local, peer) in
        [("10.1.2.3", "10.3.4.6"), ("10.0.2.3", "10.2.0.1"), ("fd01::7", "fd02:0:0:10::1")]
    {
        assert!(!accepts(&filter, &packet(PACKET_OUTGOING, local, peer)));
    }
}

#[test]
fn fragments_of_sites_pass_and_those_of_datagrams_to_us_do_not() {
    let filter = sites();
    let mut late = packet(PACKET_HOST, "10.2.0.1", "10.1.0.1");
    late.bytes[6..8].copy_from_slice(&185_u16.to_be_bytes());
    late.bytes[20..].fill(0xff);
    assert!(accepts(&filter, &late));
    for flags in [0x2000_u16, 185] {
        let mut part = packet(PACKET_HOST, "198.51.100.1", "192.0.2.1");
        assert!(accepts(&filter, &part));
        part.bytes[6..8].copy_from_slice(&flags.to_be_bytes());
        assert!(!accepts(&filter, &part));
    }
    let mut part = packet(PACKET_HOST, "2001:db8::9", "2001:db8::1");
    assert!(accepts(&filter, &part));
    part.bytes[6] = 44;
    assert!(!accepts(&filter, &part));
}

#[test]
fn datagrams_to_us_need_our_address_port_and_protocol() {
    let filter = sites();
    let good = || packet(PACKET_HOST, "198.51.100.1", "192.0.2.1");
    let mut options = good();
    options.bytes[0] = 0x47;
    options.bytes.copy_within(20..40, 28);
    options.bytes[20..28].fill(1);
    assert!(accepts(&filter, &options), "the port follows the IP options");
    let change = |at: usize, value: u8| {
        let mut other = good();
        other.bytes[at] = value;
        other
    };
    assert!(!accepts(&filter, &change(9, 6)), "TCP");
    let fake_tcp = TapFilter { fake_tcp: filter.listen.clone(), ..sites() };
    assert!(accepts(&fake_tcp, &change(9, 6)) && accepts(&fake_tcp, &good()));
    assert!(!accepts(&TapFilter { listen: Vec::new(), ..fake_tcp.clone() }, &good()));
    let mut v6 = packet(PACKET_HOST, "2001:db8::9", "2001:db8::1");
    v6.bytes[6] = 6;
    assert!(accepts(&fake_tcp, &v6) && !accepts(&filter, &v6));
    assert!(!accepts(&filter, &change(23, 1)), "another port");
    assert!(!accepts(&filter, &change(19, 2)), "another address");
    assert!(!accepts(&filter, &Packet { kind: PACKET_OUTGOING, ..good() }));
    assert!(!accepts(&filter, &Packet { vlan: Some(7), ..good() }));
    let priority = Packet { vlan: Some(0x6000), ..good() };
    assert!(accepts(&filter, &priority), "a priority is not a VLAN");
    let mut arp = good();
    arp.bytes[0] = 0;
    assert!(!accepts(&filter, &arp));
    let mut short = good();
    short.bytes.truncate(14);
    assert!(!accepts(&filter, &short));

    let any = |listen: &str| TapFilter { listen: vec![listen.parse().unwrap()], ..sites() };
    assert!(accepts(&any("0.0.0.0:4500"), &change(19, 2)));
    assert!(accepts(&any("[::]:4500"), &change(19, 2)));
    assert!(accepts(&any("[::]:4500"), &packet(PACKET_HOST, "2001:db8::9", "2001:db8::5")));
    assert!(!accepts(&any("0.0.0.0:4500"), &packet(PACKET_HOST, "2001:db8::9", "2001:db8::5")));
}

/// Pseudorandom numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 20
    }

    fn v4(&mut self) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 | self.next() as u32 & 0xf_ffff).into()
    }

    fn v6(&mut self) -> IpAddr {
        let low = u128::from(self.next() & 0x7ff) << 64;
        Ipv6Addr::from_bits((0xfd << 120) | low | u128::from(self.next() & 3)).into()
    }
}

fn contains(prefixes: &[(IpAddr, u8)], address: IpAddr) -> bool {
    prefixes.iter().any(|&(network, length)| match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(32 - u32::from(length)).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
        }
        _ => false,
    })
}

#[test]
fn long_lists_agree_with_the_plain_rule() {
    let mut numbers = Numbers(7);
    for round in 0..6 {
        let mut list = |count: u64| -> Vec<(IpAddr, u8)> {
            let v6_lengths = [58, 60, 62, 63, 64, 127, 128];
            let prefix = |i| match i % 2 {
                0 => (numbers.v4(), 20 + (numbers.next() % 13) as u8),
                _ => (numbers.v6(), v6_lengths[(i % 14 / 2) as usize]),
            };
            (0..count).map(prefix).collect()
        };
        let filter =
            TapFilter { local: list(40 * round), peers: list(70 * round), ..TapFilter::default() };
        let program = filter.build().unwrap();
        let [local, peers] = [&filter.local, &filter.peers].map(|of| PrefixSet::new(of).unwrap());
        let is_exact = filter.assemble(&local, &peers).len() <= MAX_TAP_INSNS;
        assert!(round < 2 || program.len() > 600, "too short to need far jumps");
        let mut passed = 0;
        for i in 0..4000 {
            let (source, destination) = match i % 2 {
                0 => (numbers.v4(), numbers.v4()),
                _ => (numbers.v6(), numbers.v6()),
            };
            let kind = if i % 3 == 0 { PACKET_HOST } else { PACKET_OUTGOING };
            let (local, peer) =
                if kind == PACKET_HOST { (destination, source) } else { (source, destination) };
            let expected = contains(&filter.local, local) && contains(&filter.peers, peer);
            let kept = run(&program, &build(kind, source, destination)) > 0;
            let is_right = kept == expected || kept && !is_exact;
            assert!(is_right, "{source} > {destination} in round {round}");
            passed += u32::from(kept);
        }
        assert!(round == 0 || (20..3980).contains(&passed), "one outcome is too rare: {passed}");
    }
}

#[test]
fn thousands_of_prefixes_fit_and_all_their_packets_pass() {
    let mut numbers = Numbers(5);
    for family in 0..3 {
        let is_v4 = |i: u32| family == 0 || family == 1 && i.is_multiple_of(2);
        let prefix = |i: u32| match is_v4(i) {
            true => (Ipv4Addr::from_bits(0x0b00_0000 | i << 9).into(), 24),
            false => (Ipv6Addr::from_bits((0xfc << 120) | u128::from(i) << 73).into(), 56),
        };
        let peers: Vec<(IpAddr, u8)> = (0..8_192).map(prefix).collect();
        let filter = TapFilter { peers, ..sites() };
        let program = filter.build().unwrap();
        assert!((500..=MAX_TAP_INSNS).contains(&program.len()), "{}", program.len());
        for &(network, _) in &filter.peers {
            let local: IpAddr = match network {
                IpAddr::V4(_) => "10.1.2.3".parse().unwrap(),
                IpAddr::V6(_) => "fd01::7".parse().unwrap(),
            };
            assert!(run(&program, &build(PACKET_OUTGOING, local, network)) > 0, "{network}");
            assert!(run(&program, &build(PACKET_HOST, network, local)) > 0, "{network}");
            assert_eq!(run(&program, &build(PACKET_HOST, local, network)), 0, "{network}");
        }
        for _ in 0..1_000 {
            let other = Ipv4Addr::from_bits(0xc000_0000 | numbers.next() as u32 & 0xff_ffff);
            let local = "10.1.2.3".parse().unwrap();
            assert_eq!(run(&program, &build(PACKET_OUTGOING, local, other.into())), 0);
        }
    }
}

#[test]
fn the_ipv6_wildcard_listener_receives_ipv4_datagrams_too() {
    let listen: Vec<SocketAddr> = vec!["[::]:4500".parse().unwrap()];
    let filter = TapFilter { listen, ..TapFilter::default() };
    assert!(accepts(&filter, &packet(PACKET_HOST, "10.0.0.1", "10.0.0.2")));
    assert!(!accepts(&filter, &packet(PACKET_OUTGOING, "10.0.0.1", "10.0.0.2")), "no prefixes");
}

/// Builds a TCP packet without options and with these flags.
fn segment(to: SocketAddr, flags: u8) -> Packet {
    let mut tcp = vec![0; 20];
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    (tcp[12], tcp[13]) = (5 << 4, flags);
    let mut ip = match to.ip() {
        IpAddr::V4(_) => vec![0; 20],
        IpAddr::V6(_) => vec![0; 40],
    };
    match to.ip() {
        IpAddr::V4(address) => {
            (ip[0], ip[9]) = (0x45, 6);
            ip[16..20].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            (ip[0], ip[6]) = (0x60, 6);
            ip[24..40].copy_from_slice(&address.octets());
        }
    }
    ip.extend(tcp);
    Packet { kind: PACKET_HOST, vlan: None, bytes: ip }
}

#[test]
fn syns_pass_by_destination_port_and_flags() {
    let prefixes =
        [("10.2.0.0", 16), ("fd00:2::", 32)].map(|(ip, length)| (ip.parse().unwrap(), length));
    let some = SynFilter { sources: &[], destinations: &prefixes, ports: &[80, 443], share: None }
        .build()
        .unwrap();
    let all =
        SynFilter { sources: &[], destinations: &[], ports: &[], share: None }.build().unwrap();
    let passes = |program: &[BpfInsn], to: &str, flags| {
        run(program, &segment(to.parse().unwrap(), flags)) > 0
    };
    for to in ["10.2.7.9:80", "10.2.0.1:443", "[fd00:2::9]:80"] {
        assert!(passes(&some, to, 0x02) && passes(&all, to, 0x02), "{to}");
        for flags in [0x12, 0x10, 0x03, 0x04] {
            assert!(!passes(&some, to, flags) && !passes(&all, to, flags), "{to}, {flags:#x}");
        }
    }
    // The segments of this test have the source 0.0.0.0.
    for (from, length, expected) in [("0.0.0.0", 32, true), ("10.0.0.0", 8, false)] {
        let sources = [(from.parse().unwrap(), length)];
        let few = SynFilter { sources: &sources, destinations: &prefixes, ports: &[], share: None };
        assert_eq!(passes(&few.build().unwrap(), "10.2.7.9:80", 0x02), expected, "{from}");
    }
    for to in ["10.3.0.1:80", "10.2.0.1:81", "[fd00:3::9]:80", "[fd00:2::9]:8080"] {
        assert!(!passes(&some, to, 0x02) && passes(&all, to, 0x02), "{to}");
    }
}

#[test]
fn few_ports_are_compared_one_by_one_and_thousands_fit_as_well() {
    let mark = OptionMark { word: 0, byte: 0 };
    let passes = |ports: &[u16], port: u16| {
        let program = OptionFilter { mark, ports, plain: true, share: None }.build().unwrap();
        let reset = |ip: &str| segment(SocketAddr::new(ip.parse().unwrap(), port), 0x04);
        let [v4, v6] = ["10.2.7.9", "fd00:2::9"].map(|ip| run(&program, &reset(ip)) > 0);
        assert_eq!(v4, v6, "{port}");
        v4
    };
    let many: Vec<u16> = (20_000..40_000).step_by(2).collect();
    let few = &many[..64];
    assert!(passes(few, 20_000) && passes(few, 20_126) && !passes(few, 20_001));
    assert!(passes(&many, 20_000) && passes(&many, 39_998) && passes(&many, 20_001));
    assert!(!passes(&many, 19_999) && !passes(&many, 39_999));
}

/// Builds an ICMP packet with this type and code, about a TCP packet from port 4000.
fn icmp(v4: bool, type_and_code: [u8; 2]) -> Packet {
    let ip = |protocol: u8| match v4 {
        true => [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol][..], &[0; 10]].concat(),
        false => [&[0x60, 0, 0, 0, 0, 0, protocol, 64][..], &[0; 32]].concat(),
    };
    let quoted = [ip(6), vec![0x0f, 0xa0, 0, 80, 0, 0, 0, 1]].concat();
    let head = [type_and_code[0], type_and_code[1], 0, 0, 0, 0, 0, 0];
    let bytes = [&ip(if v4 { 1 } else { 58 })[..], &head, &quoted].concat();
    Packet { kind: PACKET_HOST, vlan: None, bytes }
}

#[test]
fn icmp_errors_about_own_packets_pass_and_others_do_not() {
    let mark = OptionMark { word: 0, byte: 0 };
    let passes = |plain: bool, port: u16, v4: bool, type_and_code: [u8; 2]| {
        let filter = OptionFilter { mark, ports: &[port], plain, share: None }.build().unwrap();
        run(&filter, &icmp(v4, type_and_code)) > 0
    };
    for (v4, type_and_code, to_server) in [
        (true, [3, 4], true),
        (true, [3, 3], false),
        (true, [3, 13], false),
        (false, [2, 0], true),
        (false, [1, 4], false),
    ] {
        assert!(passes(true, 4000, v4, type_and_code), "{type_and_code:?}");
        assert_eq!(passes(false, 4000, v4, type_and_code), to_server, "{type_and_code:?}");
        assert!(!passes(true, 4001, v4, type_and_code), "{type_and_code:?}");
    }
    for (v4, type_and_code) in [(true, [8, 0]), (true, [11, 0]), (false, [128, 0]), (false, [3, 0])]
    {
        assert!(!passes(true, 4000, v4, type_and_code), "{type_and_code:?}");
    }
}

#[test]
fn each_client_belongs_to_one_tap_and_all_taps_receive_icmp() {
    let mark = OptionMark { word: 0xfd0c_5674, byte: 0x10 };
    let filter = |number| {
        let share = Some(Share { number, of: 3 });
        OptionFilter { mark, ports: &[80], plain: false, share }.build().unwrap()
    };
    let (filters, listener) = ([0, 1, 2].map(filter), listener_of(3));
    for to in ["10.2.7.9:80", "[fd00:2::9]:80"] {
        for port in (1_024..60_000_u16).step_by(7) {
            let mut packet = segment(to.parse().unwrap(), 0x18);
            let at = packet.bytes.len() - 20;
            packet.bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
            packet.bytes[at + 12] = 8 << 4;
            packet.bytes.extend([0xfd, 0x0c, 0x56, 0x74, 0x10, 0, 0, 0, 0, 0, 0, 0]);
            let own = filters.each_ref().map(|filter| run(filter, &packet) > 0);
            let number = run(&listener, &packet) as usize;
            assert_eq!(own, [0, 1, 2].map(|n| n == number), "{to} from {port}");
        }
    }
    let about = OptionFilter { mark, ports: &[4000], plain: false, share: None };
    for number in 0..3 {
        let one = OptionFilter { share: Some(Share { number, of: 3 }), ..about }.build().unwrap();
        assert!(run(&one, &icmp(true, [3, 4])) > 0 && run(&one, &icmp(false, [2, 0])) > 0);
    }
}

#[test]
fn each_syn_and_its_listener_belong_to_the_same_loop() {
    const LOOPS: u32 = 3;
    let filter = |number| {
        let share = Some(Share { number, of: LOOPS });
        SynFilter { sources: &[], destinations: &[], ports: &[80], share }.build().unwrap()
    };
    let (filters, listener) = ([0, 1, 2].map(filter), listener_of(LOOPS));
    for to in ["10.2.7.9:80", "[fd00:2::9]:80"] {
        let mut got = [0_usize; LOOPS as usize];
        // Ports that connect(2) chooses.
        for port in (32_768..61_000_u16).step_by(2) {
            let mut packet = segment(to.parse().unwrap(), 0x02);
            let at = packet.bytes.len() - 20;
            packet.bytes[at..at + 2].copy_from_slice(&port.to_be_bytes());
            let own: Vec<bool> = filters.iter().map(|filter| run(filter, &packet) > 0).collect();
            let number = run(&listener, &packet) as usize;
            assert!(own.iter().enumerate().all(|(n, &is)| is == (n == number)), "{port}: {own:?}");
            got[number] += 1;
        }
        assert!(got.iter().all(|&ports| ports.abs_diff(14_116 / 3) < 100), "not evenly: {got:?}");
    }
}

/// Builds a program with 64 members: member `n` gets share `n`.
fn fanout(datagrams: Option<(&str, u32)>) -> FanoutProgram {
    let listen = datagrams.map(|(at, offset)| (at.parse().unwrap(), offset));
    FanoutProgram { members: (0..64).collect(), datagrams: listen }
}

fn member(program: &FanoutProgram, packet: &Packet) -> u32 {
    run(&program.build().unwrap(), packet)
}

/// The same vectors are checked against the hash of the gateways, in `viaduct-proto`.
#[test]
fn a_packets_share_is_the_hash_of_its_addresses() {
    for kind in [PACKET_HOST, PACKET_OUTGOING] {
        let program = fanout((kind == PACKET_HOST).then_some(("192.0.2.1:7400", 2)));
        for (source, destination, share) in [
            ("10.1.0.1", "10.2.0.1", 35),
            ("10.1.0.2", "10.2.0.1", 7),
            ("192.0.2.7", "203.0.113.250", 49),
            ("255.255.255.255", "0.0.0.0", 61),
            ("fd00:1::5", "fd00:2::5", 54),
            ("2001:db8::1", "2001:db8:ffff:1:2:3:4:5", 5),
        ] {
            assert_eq!(member(&program, &packet(kind, source, destination)), share);
            assert_eq!(member(&program, &packet(kind, destination, source)), share);
            for count in [1, 2, 16] {
                let fewer = FanoutProgram { members: (0..count).collect(), ..program.clone() };
                let found = member(&fewer, &packet(kind, source, destination));
                assert_eq!(found, share % count as u32, "the low bits");
            }
        }
    }
}

#[test]
fn a_datagrams_share_is_one_of_its_bytes() {
    let to = |listen: &'static str| fanout(Some((listen, 2)));
    let datagram = |source: &str, destination: &str, share: u8| {
        let mut packet = packet(PACKET_HOST, source, destination);
        let payload = if packet.bytes[0] == 0x45 { 28 } else { 48 };
        packet.bytes[payload + 2] = share;
        packet
    };
    for share in [0, 5, 63] {
        let packet = datagram("198.51.100.1", "192.0.2.1", share);
        let expected = u32::from(share);
        assert_eq!(member(&to("192.0.2.1:4500"), &packet), expected);
        assert_eq!(member(&to("0.0.0.0:4500"), &packet), expected);
        assert_eq!(member(&to("[::]:4500"), &packet), expected);
        let six = datagram("2001:db8::9", "2001:db8::1", share);
        assert_eq!(member(&to("[2001:db8::1]:4500"), &six), expected);
        assert_eq!(member(&to("[::]:4500"), &six), expected);
        let few = FanoutProgram { members: vec![7, 9], ..to("[::]:4500") };
        assert_eq!(member(&few, &six), [7, 9][usize::from(share % 2)]);
    }
    // The share of any other packet is the hash of its addresses.
    let packet = || datagram("198.51.100.1", "192.0.2.1", 9);
    let hashed = member(&fanout(None), &packet());
    assert_ne!(hashed, 9);
    assert_eq!(member(&to("192.0.2.1:4501"), &packet()), hashed, "another port");
    assert_eq!(member(&to("192.0.2.2:4500"), &packet()), hashed, "another address");
    assert_eq!(member(&to("[2001:db8::1]:4500"), &packet()), hashed, "another family");
    for (at, value) in [(9, 6), (6, 0x20), (7, 1)] {
        let mut other = packet();
        other.bytes[at] = value;
        assert_eq!(member(&to("192.0.2.1:4500"), &other), hashed, "byte {at}");
    }
    let mut options = packet();
    options.bytes[0] = 0x46;
    options.bytes.copy_within(20..40, 24);
    assert_eq!(member(&to("192.0.2.1:4500"), &options), 9, "the datagram follows the IP options");
    let mut arp = packet();
    arp.bytes[0] = 0;
    let owners = FanoutProgram { members: vec![3, 4], datagrams: None };
    assert_eq!(member(&owners, &arp), 3);
}

#[test]
fn numbers_of_shares_are_powers_of_two() {
    for count in [0, 3, 65, 128] {
        let program = FanoutProgram { members: vec![0; count], datagrams: None };
        assert_eq!(program.build(), Err(FilterError::Shares(count)));
    }
}
