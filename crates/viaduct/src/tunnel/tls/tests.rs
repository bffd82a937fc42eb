//! Tests of links over TLS between two ends, in memory and over sockets, and of the memory that
//! strangers use at a far end.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll};
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::tunnel::Settings;
use viaduct_proto::tunnel::record::{RecordError, Refusal};

use super::*;
use crate::tunnel::channel::Channel;
use crate::tunnel::link::{Credentials, record_error};
use crate::tunnel::settings::{CarrierKind, Dial, TunnelSettings};
use crate::tunnel::strangers::StrangerMemory;
use crate::tunnel::tcp::TcpLink;
use crate::tunnel::{Tunnels, entropy, time};

fn settings(own: u8, peer: u8, listen: Option<SocketAddr>) -> TunnelSettings {
    TunnelSettings {
        secret: SecretKey::from_bytes([own; 32]),
        peers: vec![SecretKey::from_bytes([peer; 32]).public()],
        listen,
        dials: Vec::new(),
        carrier: CarrierKind::Tls,
        congestion: None,
        waits: false,
        allow_to: Vec::new(),
        clients: Vec::new(),
        stranger_memory: StrangerMemory { source: 2 << 20, all: 8 << 20 },
        core: Settings::default(),
    }
}

fn dial(settings: &TunnelSettings, to: SocketAddr, name: Option<&str>) -> Dial {
    Dial {
        name: "".into(),
        to,
        peer: settings.peers[0],
        links: 1,
        server_name: name.map(|name| DnsName::try_from(name.to_owned()).unwrap()),
        is_fallback: false,
    }
}

/// An end of a link, with the bytes that it has delivered.
struct End {
    settings: TunnelSettings,
    entropy: Entropy,
    tls: TlsConfigs,
    channel: Channel,
    got: Vec<u8>,
}

impl End {
    fn listening(own: u8, peer: u8) -> End {
        End {
            settings: settings(own, peer, None),
            entropy: entropy(),
            tls: TlsConfigs::new().unwrap(),
            channel: Channel::Undecided,
            got: Vec::new(),
        }
    }

    /// Returns an end that dials, and its first bytes, a ClientHello that contains `name`.
    fn dialling(own: u8, peer: u8, name: Option<&str>) -> (End, Vec<u8>) {
        let mut end = End::listening(own, peer);
        let mut first = Vec::new();
        let to = dial(&end.settings, ([192, 0, 2, 1], 443).into(), name);
        let End { settings, entropy, tls, .. } = &end;
        let channel = Channel::dial(Credentials { settings, entropy, tls }, &to, &mut first);
        end.channel = channel.unwrap();
        (end, first)
    }

    /// Hands `bytes` to this end in pieces of at most `most` bytes; returns its answer.
    fn give(&mut self, bytes: &[u8], most: usize) -> (Vec<u8>, io::Result<()>) {
        let mut answer = Vec::new();
        let End { settings, entropy, tls, channel, got } = self;
        let credentials = Credentials { settings, entropy, tls };
        let mut deliver = |bytes: &[u8]| got.extend_from_slice(bytes);
        let mut pieces = bytes.chunks(most);
        let result = pieces.try_for_each(|piece| {
            channel.handle_bytes(credentials, piece, &mut answer, &mut deliver)
        });
        (answer, result)
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.channel.seal(plain, &mut out).unwrap();
        out
    }
}

/// Passes bytes between two ends until there are no more answers. Returns the first error of each
/// end.
fn talk(near: &mut End, far: &mut End, first: Vec<u8>, most: usize) -> [Option<io::Error>; 2] {
    let mut errors = [None, None];
    let mut to_far = first;
    while !to_far.is_empty() {
        let (answer, result) = far.give(&to_far, most);
        errors[1] = errors[1].take().or(result.err());
        let (next, result) = near.give(&answer, most);
        errors[0] = errors[0].take().or(result.err());
        to_far = if errors.iter().all(Option::is_none) { next } else { Vec::new() };
    }
    errors
}

#[test]
fn all_bytes_arrive_in_both_directions_however_they_are_cut() {
    for most in [1, 7, 4096, usize::MAX] {
        let (mut near, first) = End::dialling(1, 2, None);
        let mut far = End::listening(2, 1);
        let errors = talk(&mut near, &mut far, first, most);
        assert!(errors.iter().all(Option::is_none), "{errors:?}");
        assert!(near.channel.is_up() && far.channel.is_up());
        let sent: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let (answer, result) = far.give(&near.seal(&sent), most);
        result.unwrap();
        assert!(answer.is_empty() && far.got == sent);
        near.give(&far.seal(&sent), most).1.unwrap();
        assert!(near.got == sent);
    }
}

#[test]
fn frames_that_are_queued_when_a_link_is_closed_arrive_before_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (ours, theirs) = (settings(1, 2, None), settings(2, 1, None));
    let (entropy, tls) = (&entropy(), &TlsConfigs::new().unwrap());
    let near = Credentials { settings: &ours, entropy, tls };
    let far = Credentials { settings: &theirs, entropy, tls };
    let to = dial(&ours, listener.local_addr().unwrap(), None);
    let mut dialled = TcpLink::dial(&to, near).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut accepted = TcpLink::accepted(mio::net::TcpStream::from_std(stream));
    let mut scratch = [0; 4096];
    let deadline = Instant::now() + Duration::from_secs(20);
    while !(dialled.channel.is_up() && accepted.channel.is_up()) {
        assert!(Instant::now() < deadline, "the ends do not authenticate");
        for (link, credentials) in [(&mut dialled, near), (&mut accepted, far)] {
            link.ready(true, true);
            link.receive(credentials, &mut scratch, None).unwrap();
            link.flush(time()).unwrap();
        }
    }
    dialled.push(b"the last frame");
    dialled.close(time());
    let mut got = Vec::new();
    let end = loop {
        assert!(Instant::now() < deadline, "the end does not arrive");
        accepted.ready(true, false);
        let mut deliver = |bytes: &[u8]| got.extend_from_slice(bytes);
        if let Err(error) = accepted.receive(far, &mut scratch, Some(&mut deliver)) {
            break error;
        }
    };
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(got, b"the last frame");
}

#[test]
fn an_unknown_dialler_gets_the_reason_inside_tls() {
    let (mut near, first) = End::dialling(3, 2, None);
    let mut far = End::listening(2, 1);
    let [near, far] = talk(&mut near, &mut far, first, usize::MAX).map(Option::unwrap);
    assert!(matches!(record_error(&far), Some(RecordError::Unknown(_))), "{far}");
    let refused = RecordError::Refused(Refusal::UnknownKey);
    assert_eq!(record_error(&near), Some(refused), "{near}");
}

#[test]
fn a_device_that_decrypts_tls_is_refused() {
    // The device acts as the far end towards the near end, and as the near end towards the far end.
    // It decrypts the bytes of each end, and forwards them.
    let (mut near, first) = End::dialling(1, 2, None);
    let mut far = End::listening(2, 1);
    let device = TlsConfigs::new().unwrap();
    let mut towards_near = device.accept().unwrap().into_tls();
    let mut towards_far = device.dial([192, 0, 2, 1].into(), None).unwrap().into_tls();
    handshake(&mut towards_near, |bytes| near.give(&bytes, usize::MAX).0, first);
    handshake(&mut towards_far, |bytes| far.give(&bytes, usize::MAX).0, Vec::new());
    let mut said = [0; 1024];
    let length = towards_near.reader().read(&mut said).unwrap();
    assert_eq!(length, 99, "the first message of the sites' handshake");
    towards_far.writer().write_all(&said[..length]).unwrap();
    let mut to_far = Vec::new();
    towards_far.write_tls(&mut to_far).unwrap();
    let error = far.give(&to_far, usize::MAX).1.unwrap_err();
    assert_eq!(record_error(&error), Some(RecordError::Forged), "{error}");
    assert!(!far.channel.is_up() && !near.channel.is_up());
}

/// Completes the handshake of `tls` with an end of a link. The end has sent `first`; the function
/// `end` passes bytes to it, and returns its answers.
fn handshake(
    tls: &mut rustls::Connection,
    mut end: impl FnMut(Vec<u8>) -> Vec<u8>,
    first: Vec<u8>,
) {
    let mut from_end = first;
    while tls.is_handshaking() || tls.wants_write() {
        let mut bytes = &from_end[..];
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes).unwrap();
            tls.process_new_packets().unwrap();
        }
        let mut out = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut out).unwrap();
        }
        from_end = if out.is_empty() { out } else { end(out) };
    }
}

#[test]
fn the_client_hello_names_the_server_only_if_a_name_is_given() {
    let has_name = |hello: &[u8]| hello.windows(11).any(|part| part == b"example.org");
    assert!(has_name(&End::dialling(1, 2, Some("example.org")).1));
    let hello = End::dialling(1, 2, None).1;
    assert!(!has_name(&hello) && !hello.windows(9).any(|part| part == b"192.0.2.1"));
    assert!(!hello.windows(7).any(|part| part == b"viaduct"), "the ClientHello is neutral");
}

#[test]
fn a_listener_for_tls_alone_refuses_records() {
    let mut far = End::listening(2, 1);
    assert!(far.give(&[0, 97], usize::MAX).1.is_err());
    let mut far = End::listening(2, 1);
    far.settings.carrier = CarrierKind::Tcp;
    far.give(&[0, 97], usize::MAX).1.unwrap();
    assert!(matches!(far.channel, Channel::Records(_)));
}

#[test]
fn a_stranger_may_send_eight_kilobytes() {
    // A ClientHello of 15,996 bytes, in one record.
    let mut hello = vec![0x16, 3, 1, 0x3e, 0x80, 1, 0, 0x3e, 0x7c];
    hello.resize(16_005, 0);
    let mut far = End::listening(2, 1);
    far.give(&hello[..8 << 10], 512).1.unwrap();
    let refused = far.give(&hello[8 << 10..], 1).1.unwrap_err();
    assert!(refused.to_string().contains("before the dialler has"), "{refused}");
}

/// Runs the far end of [`strangers_make_a_far_end_hold_two_megabytes_at_most`] in its own process:
/// prints its address, and exits when its input ends.
#[test]
#[ignore = "the test of strangers' memory starts this process"]
fn far_end_in_a_process() {
    let poll = Poll::new().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let registry = poll.registry().try_clone().unwrap();
    let mut tunnels = Tunnels::new(settings(2, 1, Some(at)), None, registry, time()).unwrap();
    eprintln!("at {at}");
    let ended = thread::spawn(|| io::stdin().read(&mut [0]));
    let (mut poll, mut events) = (poll, Events::with_capacity(256));
    while !ended.is_finished() {
        poll.poll(&mut events, Some(Duration::from_millis(20))).unwrap();
        events.iter().for_each(|event| tunnels.handle(event, time()));
        tunnels.resume(time());
        tunnels.handle_timeout(time());
    }
}

/// Anonymous resident memory of a process, in bytes.
fn private_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes << 10
}

/// Dials, completes TLS's handshake, and then sends a part of a message of the sites' handshake.
fn stranger(tls: &TlsConfigs, at: SocketAddr) -> (TcpStream, rustls::Connection) {
    let mut socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut tls = tls.dial(at.ip(), None).unwrap().into_tls();
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).unwrap();
    }
    tls.writer().write_all(&[0, 97]).unwrap();
    tls.complete_io(&mut socket).unwrap();
    (socket, tls)
}

#[test]
fn strangers_make_a_far_end_hold_two_megabytes_at_most() {
    let name = module_path!().split_once("::").unwrap().1;
    let mut far = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{name}::far_end_in_a_process"), "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(far.stderr.take().unwrap()).lines().map(Result::unwrap);
    let at = lines.find_map(|line| line.strip_prefix("at ")?.parse().ok()).unwrap();
    let tls = TlsConfigs::new().unwrap();
    // A first connection, so that one-time allocations of the far end do not count.
    drop(stranger(&tls, at));
    let (before, mut most, mut open) = (private_memory(far.id()), 0, Vec::new());
    for _ in 0..200 {
        open.push(stranger(&tls, at));
        most = most.max(private_memory(far.id()).saturating_sub(before));
    }
    assert!(most > 64 << 10 && most <= 2 << 20, "{most} bytes");
    // The far end has dropped all but the last.
    let mut closed = 0;
    for (socket, tls) in &mut open {
        socket.set_nonblocking(true).unwrap();
        let ended = tls.complete_io(socket).map(|_| tls.reader().read(&mut [0]));
        closed += usize::from(
            matches!(ended, Ok(Ok(0)))
                || ended.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock),
        );
    }
    assert!((136..=140).contains(&closed), "{closed} closed");
    drop(far.stdin.take());
    assert!(far.wait().unwrap().success());
}
