//! Writes the first inputs of each target into the corpus: valid messages, so that the fuzzer need
//! not find their format by chance.
//!
//! Usage: `seeds CORPUS` writes `CORPUS/<target>/seed-<n>`.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use viaduct_fuzz::{first_code, packet, plane, settle};
use viaduct_proto::fec::{Code, reed_solomon, window};
use viaduct_proto::negotiate::{Required, Terms};
use viaduct_proto::placement::Prefix;
use viaduct_proto::repair::Plane;
use viaduct_proto::repair::identity::IdentityKey;
use viaduct_proto::repair::report::{REPORT, Report};
use viaduct_proto::repair::section::{self, Manner, Name, Need, Part};
use viaduct_proto::repair::stats::LossReport;
use viaduct_proto::rng::Rng;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::split::{option, proxy};
use viaduct_proto::trickles::packet::{Numbers, Return, Role, tcp, udp};
use viaduct_proto::wire::datagram;
use viaduct_proto::wire::ip::MutableFields;
use viaduct_proto::wrap::shared::{Down, Up};
use viaduct_proto::wrap::wire::{Answer, Request, WELCOME, Welcome};
use viaduct_proto::wrap::{Rules, SECRET, Secret, Socket};

const LINKS: [&str; 6] = [
    "rate=200M,delay=50ms,jitter=500us,queue=100ms/256kB",
    "loss=0.1%+0.1%x30,reorder=1%:5ms,duplicate=0.5%,corrupt=0.01%",
    "loss=1%,burst=8",
    "loss=ge:0.1%:10%:0:100%",
    "loss=trace:1000:3:500:1:once",
    "",
];

const JOURNAL: &str =
    r#"{"owner":{"pid":1,"started":2,"boot":"b","namespace":"net:[3]"},"changes":[]}"#;

fn main() -> io::Result<()> {
    let Some(corpus) = env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds CORPUS");
        std::process::exit(2);
    };
    let fields = MutableFields { ttl: 63, tos: 0x2e };
    let packets = [(false, 40), (true, 40), (false, 1_000)];
    let packets = packets.map(|(v6, len)| packet(0, v6, len, 7, fields)).to_vec();
    let messages = messages(&packets);
    write(&corpus, "link", &LINKS.map(|text| text.as_bytes().to_vec()))?;
    write(&corpus, "ip", &packets)?;
    write(&corpus, "wire", &[messages, datagrams(&packets)].concat())?;
    write(&corpus, "split", &hops())?;
    write(&corpus, "wrap", &wrapped())?;
    write(&corpus, "shared", &shared())?;
    write(&corpus, "datagram", &udp_packets())?;
    write(&corpus, "journal", &[JOURNAL.as_bytes().to_vec()])?;
    write(&corpus, "upgrade", &upgrades())?;
    write(&corpus, "agree", &offers())?;
    write(&corpus, "names", &questions())?;
    write(&corpus, "trickles_packets", &trickles_packets())?;
    write(&corpus, "tcp", &segments())?;
    write(&corpus, "preface", &prefaces())?;
    // These targets interpret their input as a sequence of operations, so any bytes are valid.
    for target in [
        "decoders",
        "codes",
        "messages",
        "plane",
        "query",
        "tunnel",
        "tunnel_streams",
        "handlers",
        "mux",
        "trickles",
        "trickles_streams",
        "trickles_crypt",
    ] {
        write(&corpus, target, &noise(target))?;
    }
    Ok(())
}

/// Records of runs and of the master that they share; a secret, as bytes and as digits.
fn shared() -> Vec<Vec<u8>> {
    let (to, source) =
        ("10.0.0.1:80".parse().expect("an address"), "[fd00::1]:9".parse().expect("an address"));
    let ups = [
        Up::Hello { network: 1 },
        Up::Call { id: 1, to, source, lent: false, is_bound: true, options: [Some(1); 11] },
        Up::Arrival { id: 2, client: to, own: source, lent: true },
        Up::Another { id: 3, of: 2 },
        Up::NoOther { of: 2 },
    ];
    let downs = [Down::Named { id: 1, own: to }, Down::Meet { id: 1 }, Down::Gone { id: 2 }];
    let ups = ups.iter().map(|up| up.emit().to_vec());
    let downs = downs.iter().map(|down| down.emit().to_vec());
    let secret = Secret::new([7; SECRET]);
    ups.chain(downs).chain([secret.bytes().to_vec(), secret.digits().into_bytes()]).collect()
}

/// Messages of an upgrade, each after the number of its descriptors.
fn upgrades() -> Vec<Vec<u8>> {
    let flow = r#"{"flows":{"worker":0,"flows":[{"source":"10.0.0.1:4000","to":"10.0.0.2:80",
        "hop":null,"rate":null,"state":"established","has_client":true,"has_opened":true,"ends":
        [{"preface":[],"ends_after_preface":false,"is_limited":true},{"preface":[1],
        "ends_after_preface":false,"is_limited":true}],"directions":[{"held":9,"ending":false,
        "ended":false,"shut":false,"urgent":false,"mark":null},{"held":0,"ending":false,
        "ended":false,"shut":false,"urgent":false,"mark":7}],"pipelined":0,"begun":1,"moved":2,
        "early":null,"account":{"begun":1,"bytes":[1,2],"protocol":"tcp","to":null,
        "user":null}}]}}"#;
    let hello = r#"{"hello":{"version":"1","oldest":1,"newest":1}}"#;
    let service = r#"{"service":{"version":"1","has_config":true,"has_metrics":false,"has_journal":
        true,"locks":["proxy_1"],"workers":[{"listeners":1,"syns":"tap"}]}}"#;
    let messages = [(0, hello), (4, service), (0, "\"ready\""), (4, flow), (0, "\"end\"")];
    messages.map(|(count, text)| [&[count], text.as_bytes()].concat()).to_vec()
}

/// Packets with a UDP datagram, over IPv4 and IPv6.
fn udp_packets() -> Vec<Vec<u8>> {
    let ends = [("10.0.0.1:53", "10.0.0.2:4000"), ("[fd00::1]:53", "[fd00::2]:4000")];
    let packet = |(a, b): (&str, &str)| {
        datagram::emit(a.parse().expect("an address"), b.parse().expect("an address"), b"question")
    };
    ends.into_iter().filter_map(packet).collect()
}

/// A SYN, its answer, a request and its answer; a datagram; messages of ICMP errors.
fn trickles_packets() -> Vec<Vec<u8>> {
    let ends = [("10.0.0.1:40000", "10.0.0.2:80"), ("[fd00::1]:40000", "[fd00::2]:80")];
    let mut packets = Vec::new();
    for (client, server) in
        ends.map(|(a, b)| (a.parse().expect("an address"), b.parse().expect("an address")))
    {
        let (mut numbers, mut packet) = (Numbers::new(client, server, 1), Vec::new());
        for _ in 0..2 {
            numbers.request(b"request", 100, 1500, &mut packet).expect("it fits");
            packets.push(packet.clone());
            let mut to = Return::of(&segment(&packet)).expect("a request");
            packets.push(to.emit());
            to.answer(b"answer", 1500, &mut packet).expect("it fits");
            packets.push(packet.clone());
            numbers.handle_answer(&segment(&packet), 1);
        }
        packets.push([&udp::head(Role::Answer, 7)[..], b"message"].concat());
    }
    let quoted = packets[0].clone();
    packets.push([&[3, 4, 0, 0, 0, 0, 5, 0][..], &quoted].concat());
    let quoted = packets[packets.len() / 2].clone();
    packets.push([&[2, 0, 0, 0, 0, 0, 5, 0][..], &quoted].concat());
    packets
}

fn segment(packet: &[u8]) -> tcp::Segment {
    match tcp::parse(packet, packet.len(), tcp::Checksum::Check) {
        Ok(tcp::Packet::Message(segment, _)) => segment,
        other => panic!("{other:?}"),
    }
}

fn write(corpus: &Path, target: &str, inputs: &[Vec<u8>]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    for (number, input) in inputs.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), input)?;
    }
    Ok(())
}

/// Decrypted messages: a report, a request, copies, and repairs of every code.
fn messages(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let codes = [
        first_code(),
        Code::ReedSolomon(reed_solomon::Parameters { r: 3, c: 2, interleave: 1 }),
        Code::Window(window::Parameters { window: 4, repairs: 1, packets: 2 }),
    ];
    let key = IdentityKey::new(&[7; 32]);
    let mut report = Vec::new();
    let loss = LossReport { highest: 9, covered: 8, lost: 2, ..Default::default() };
    let of = Report { loss, next: 10, ..Report::default() };
    section::emit(REPORT, &mut report, |body| of.emit(body));
    let mut need = Vec::new();
    section::emit_need(Need { first: 3, packets: 5, repairs: 2 }, &mut need);
    let mut copies = Vec::new();
    let all = packets.iter().map(Vec::as_slice);
    section::emit_copies(9, MutableFields { ttl: 63, tos: 0 }, all, &mut copies);
    let mut messages = vec![report, need, copies];
    for code in codes {
        let mut encoder = code.build_encoder(1).expect("a code that works");
        for packet in packets {
            encoder.push(packet, &mut |repair| {
                let tag = key.name(packet).tag();
                let name = Name { tag, sent: 7, ttl: 63, tos: 0, is_bare: false };
                let names = vec![name; usize::from(repair.cover.count)];
                let mut message = Vec::new();
                let manner = Manner { acks: true, is_observed: false };
                let form = section::Form::Timed;
                section::emit_names(repair.cover.first, &names, form, manner, &mut message);
                section::emit_repair(&repair, Part::Whole, &mut message);
                messages.push(message);
            });
        }
    }
    messages
}

/// Datagrams between two gateways: a handshake, reports, and repairs of `packets`.
fn datagrams(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut planes = [plane(0, first_code()), plane(1, first_code())];
    let mut said = Vec::new();
    for round in 0..12 {
        let now = planes.iter().filter_map(Plane::poll_timeout).min().unwrap_or_default();
        planes.iter_mut().for_each(|plane| plane.handle_timeout(now));
        if round == 6 {
            packets
                .iter()
                .for_each(|packet| planes[0].handle_outgoing(now, now, &mut packet.clone()));
        }
        said.extend(settle(&mut planes, now).into_iter().map(|(_, datagram)| datagram));
    }
    said.truncate(16);
    said
}

/// Messages that give a hop the destination of a flow, in each of their forms.
fn hops() -> Vec<Vec<u8>> {
    let at = |text: &str| text.parse().expect("an address");
    let v4 = Addresses::new(at("10.0.0.1:1"), at("10.0.0.2:80"));
    let v6 = Addresses::new(at("[fd00::1]:1"), at("[fd00::2]:80"));
    let routed = Addresses { onward: Onward::Hop(at("[fd00::3]:7000")), ..v6 };
    let networks = ["10.0.0.2", "fd00::2"].map(|ip| Prefix::of(ip.parse().expect("an address")));
    let hop = option::Hop {
        source: "10.0.0.1:1".parse().expect("an address"),
        destination: "10.0.0.2:80".parse().expect("an address"),
    };
    let mut syn = vec![0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    syn.extend([0, 1, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 2, 0, 9, 0, 0, 0, 0]);
    syn.extend(hop.emit());
    let texts: [&[u8]; 4] = [
        b"\x05\x01\x00",
        b"\x01\x02me\x03pw!",
        b"\x05\x01\x00\x03\x0bexample.org\x01\xbb",
        b"CONNECT [::1]:80 HTTP/1.1\r\nProxy-Authorization: Basic bWU6cHc=\r\n\r\n",
    ];
    let mut seeds = texts.map(<[u8]>::to_vec).to_vec();
    seeds.extend([proxy::emit(&v4), proxy::emit(&v6), hop.emit().to_vec(), syn]);
    seeds.extend([proxy::emit(&routed), proxy::query(networks.to_vec())]);
    seeds
}

/// Prefaces of clients, some with the password of the target's hop, that arrive in pieces.
fn prefaces() -> Vec<Vec<u8>> {
    let socks = b"\x05\x02\x00\x02\x01\x04user\x04word\x05\x01\x00\x03\x0bexample.org\x01\xbb";
    let connect = b"CONNECT [::1]:80 HTTP/1.1\r\nProxy-Authorization: Basic dXNlcjp3b3Jk\r\n\r\n";
    let of = |has_secret: bool, bytes: &[u8]| {
        let head = [1, 1, 1, has_secret.into(), 1, 3, 5, 1, 20, 0];
        [&head, bytes].concat()
    };
    let open = hops().into_iter().map(|bytes| of(false, &bytes));
    open.chain([of(true, socks), of(true, connect)]).collect()
}

/// Segments with the options that gateways read, over IPv4 and IPv6.
fn segments() -> Vec<Vec<u8>> {
    const MSS: [u8; 4] = [2, 4, 5, 180];
    const STAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 5];
    const SACK: [u8; 20] = [1, 1, 5, 18, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0];
    let of = |v6: bool, flags: u8, options: &[u8]| {
        let mut input = vec![u8::from(v6), 1, 2, 3, 4];
        // Numbers, flags and words of options; the last timestamp, the MSS, a segment's length.
        input.extend([0, 0, 4, 0, 0, 0, 2, 0, flags, options.len() as u8 / 4]);
        input.extend([9, 0, 0, 0, 0, 4, 100, 0, 0]);
        [&input, options, &[7; 300]].concat()
    };
    let open = [&STAMPS[..], &SACK].concat();
    [false, true].map(|v6| [of(v6, 2, &MSS), of(v6, 0x10, &open)]).concat()
}

/// Input from wrapped programs and their users.
fn wrapped() -> Vec<Vec<u8>> {
    let to = "192.0.2.1:443".parse().expect("an address");
    let (sockaddr, length) = Socket { domain: 2, kind: 1, protocol: 0 }.sockaddr(to);
    let text = "only tcp:443\nexcept [2001:db8::]/32:80-90 # not these\nrefuse udp:53\n";
    let mut rules = Rules::EVERYTHING;
    rules.read(text).expect("rules");
    let mut bytes = [0; WELCOME];
    let rendezvous = [Some(to), None];
    let welcome = Welcome { rules, rendezvous, offload: Some(7), reports: true, has_seccomp: true };
    let welcome = Answer::Welcome(welcome).emit(&mut bytes);
    let mut seeds = vec![sockaddr[..length].to_vec(), text.into(), bytes[..welcome].to_vec()];
    let asked = [Request::Hello, Request::Connect { to, wait: true }, Request::Names { cookie: 7 }];
    seeds.extend(asked.map(|request| request.emit().to_vec()));
    seeds
}

/// Handler offers of two ends, in the options of a SYN.
fn offers() -> Vec<Vec<u8>> {
    let chains: [&[(&str, bool)]; 2] = [&[("crypt", true)], &[("compress", true), ("crypt", true)]];
    let offer = |chain: &[(&str, bool)]| {
        let terms = Terms::new(chain, &Required::All).expect("they can be negotiated");
        [&[2, 4, 5, 0xb4][..], &terms.offer().emit(), &[1, 1, 0, 0]].concat()
    };
    let in_band = Terms::new(&[("compress", true)], &Required::All).expect("can be negotiated");
    // The offer in the first bytes, and a block of plain data.
    let in_band = [&in_band.offer().emit()[..], &[0, 0, 0, 3], b"abc"].concat();
    [chains.map(offer).to_vec(), vec![in_band]].concat()
}

/// Queries of resolvers: for an address, and for the name of an address, followed by EDNS.
fn questions() -> Vec<Vec<u8>> {
    let header = [0x12, 0x34, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
    let edns = [0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0];
    let ask = |name: &[u8], kind| [&header, name, &[0, 0, kind, 0, 1], &edns].concat();
    vec![
        ask(b"\x04mars\x07example", 1),
        ask(b"\x04mars\x07example", 28),
        ask(b"\x011\x010\x0218\x03198\x07in-addr\x04arpa", 12),
    ]
}

/// Random bytes of a few lengths.
fn noise(target: &str) -> Vec<Vec<u8>> {
    let mut rng = Rng::from_seed(target.len() as u64);
    let mut bytes = |len| {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        bytes
    };
    (0..8).map(|n| bytes(64 << (n % 4 * 2))).collect()
}
