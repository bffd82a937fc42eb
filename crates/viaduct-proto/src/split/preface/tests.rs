//! Prefaces of each protocol, and their passwords.

use super::*;

const ALL: Protocols = Protocols { option: true, proxy: true, socks: true, connect: true };

fn me() -> Secret {
    Secret(Some(Credentials { name: b"me".to_vec(), password: b"pw".to_vec() }))
}

/// Feeds `said` byte by byte; returns the replies, the last step and the final answer.
fn talk(mut preface: Preface, said: &[u8]) -> (Vec<u8>, Step, Vec<u8>) {
    let (mut bytes, mut answers) = (Vec::new(), Vec::new());
    for &byte in said {
        bytes.push(byte);
        loop {
            match preface.handle(&mut bytes) {
                Step::Wait => break,
                Step::Say(words) | Step::Deny(words) => answers.extend(words),
                end => {
                    let answer = preface.answer(Ok(()));
                    return (answers, end, answer);
                }
            }
        }
    }
    (answers, Step::Wait, Vec::new())
}

fn there(text: &str) -> Step {
    Step::Connect { to: Address::Ip(text.parse().unwrap()), source: None }
}

#[test]
fn each_protocol_leads_to_its_destination() {
    let socks = b"\x05\x01\x00\x05\x01\x00\x01\x0a\x00\x00\x01\x00\x50";
    let (answers, step, answer) = talk(Preface::new(ALL, Secret::default()), socks);
    assert_eq!((&answers[..], step), (&[5, 0][..], there("10.0.0.1:80")));
    assert_eq!(answer[..2], [5, 0]);
    let http = b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n";
    let (_, step, answer) = talk(Preface::new(ALL, Secret::default()), http);
    assert_eq!(step, there("10.0.0.1:80"));
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    let source = "10.0.0.9:1".parse().unwrap();
    let destination: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let header = proxy::emit(&Addresses::new(source, destination));
    let (_, step, answer) = talk(Preface::new(ALL, Secret::default()), &header);
    assert_eq!(step, Step::Connect { to: destination.into(), source: Some(source) });
    assert!(answer.is_empty());
}

#[test]
fn passwords_are_requested_and_checked() {
    let socks = |password: &[u8]| {
        let said = [&b"\x05\x02\x00\x02\x01\x02me\x02"[..], password, b"\x05\x01\0\x01"].concat();
        talk(Preface::new(ALL, me()), &[&said[..], &[10, 0, 0, 1, 0, 80]].concat())
    };
    assert_eq!(socks(b"pw").1, there("10.0.0.1:80"));
    let denied = Step::Refuse(vec![1, 1], Refusal::Denied);
    assert_eq!(socks(b"px").1, denied);
    let none = talk(Preface::new(ALL, me()), &[5, 1, 0]);
    assert!(matches!(none.1, Step::Refuse(words, _) if words == [5, 0xff]));
    let http = |header: &str| {
        let said = format!("CONNECT 10.0.0.1:80 HTTP/1.1\r\n{header}\r\n");
        talk(Preface::new(ALL, me()), said.as_bytes()).1
    };
    for scheme in ["Basic ", "basic ", "BASIC   ", "bAsIc  "] {
        let header = format!("Proxy-Authorization: {scheme}bWU6cHc= \t\r\n");
        assert_eq!(http(&header), there("10.0.0.1:80"), "{scheme}");
    }
    assert_eq!(http(""), Step::Wait, "the connection may carry another request");
}

#[test]
fn a_client_may_authenticate_on_the_same_connection_after_a_407() {
    let request = |headers: &str| format!("CONNECT 10.0.0.1:80 HTTP/1.1\r\n{headers}\r\n");
    let right = request("Proxy-Authorization: basic bWU6cHc=\r\n");
    let wrong = request("Proxy-Authorization: Basic bWU6cHg=\r\n");
    let talk = |said: &[&str]| {
        let (answers, step, _) = talk(Preface::new(ALL, me()), said.concat().as_bytes());
        (String::from_utf8(answers).unwrap(), step)
    };
    for first in [request(""), request("Authorization: Basic bWU6cHc=\r\n"), wrong.clone()] {
        let (answers, step) = talk(&[&first, &right]);
        assert_eq!(step, there("10.0.0.1:80"), "{first}");
        assert!(answers.starts_with("HTTP/1.1 407 ") && !answers.contains("close"), "{answers}");
        assert!(answers.contains("\r\nContent-Length: 0\r\n"), "{answers}");
    }
    // The end of the connection is announced, even if the client has asked for it.
    let old = request("").replace("1.1", "1.0");
    let closing = request("Connection: x, Close\r\n");
    for (said, right) in [
        (&[&wrong, &wrong, &wrong, &right][..], Refusal::Denied),
        // A client that gives no password counts as unauthenticated, not as denied.
        (&[&old, &right], Refusal::Unauthenticated),
        (&[&closing, &right], Refusal::Unauthenticated),
    ] {
        let said: Vec<&str> = said.iter().map(|one| one.as_str()).collect();
        let Step::Refuse(words, why) = talk(&said).1 else { panic!("{said:?}") };
        assert_eq!(why, right, "{said:?}");
        let words = String::from_utf8(words).unwrap();
        assert!(words.contains("407") && words.contains("\r\nConnection: close\r\n"), "{words}");
    }
    let kept = request("Proxy-Connection: Keep-Alive\r\n").replace("1.1", "1.0");
    assert_eq!(talk(&[&kept, &right]).1, there("10.0.0.1:80"));
}

#[test]
fn extensions_of_a_proxy_header_are_dropped_and_never_held() {
    let source = "10.0.0.9:1".parse().unwrap();
    let destination: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let there = Step::Connect { to: destination.into(), source: Some(source) };
    let header = |extensions: usize| {
        let mut header = proxy::emit(&Addresses::new(source, destination));
        let length = u16::try_from(12 + extensions).unwrap();
        header[14..16].copy_from_slice(&length.to_be_bytes());
        [header, vec![4; extensions]].concat()
    };
    for extensions in [0, 1, 520, 4_000, 65_535 - 12] {
        let (mut preface, mut bytes) = (Preface::new(ALL, Secret::default()), Vec::new());
        let said = [&header(extensions)[..], b"data"].concat();
        let mut steps = said.chunks(1_000).map(|piece| {
            bytes.extend(piece);
            let step = preface.handle(&mut bytes);
            assert!(bytes.len() <= 64 || step != Step::Wait, "{} are held", bytes.len());
            step
        });
        assert_eq!(steps.find(|step| *step != Step::Wait), Some(there.clone()), "{extensions}");
        drop(steps);
        assert!(b"data".starts_with(&bytes[..]), "{extensions}");
    }
    let mut local = header(700);
    local[12] = 0x20;
    let (.., step, _) = talk(Preface::new(ALL, Secret::default()), &local);
    assert_eq!(step, Step::Refuse(Vec::new(), Refusal::HealthCheck));
}

#[test]
fn errors_are_reported_in_the_clients_protocol() {
    let told = |said: &[u8]| match talk(Preface::new(ALL, Secret::default()), said) {
        (_, Step::Refuse(words, Refusal::Unclear(_)), _) => words,
        other => panic!("{said:?}: {other:?}"),
    };
    let socks = [
        (&[5, 2, 0, 1, 10, 0, 0, 1, 0, 80][..], 7),
        (&[5, 3, 0, 1, 10, 0, 0, 1, 0, 80], 7),
        (&[5, 1, 0, 9, 10, 0, 0, 1, 0, 80], 8),
        (&[5, 1, 0, 3, 0, 0, 80], 1),
    ];
    for (request, code) in socks {
        let words = told(&[&[5, 1, 0], request].concat());
        assert_eq!((&words[..2], words.len()), (&[5, code][..], 10), "{request:?}");
    }
    let http = [
        ("CONNECT 10.0.0.1 HTTP/1.1", "400"),
        ("CONNECT 10.0.0.1:99999 HTTP/1.1", "400"),
        ("CONNECT 10.0.0.1:80 HTTP/2.0", "505"),
        ("GET http://10.0.0.1/ HTTP/1.1", "405"),
    ];
    for (line, status) in http {
        let words = String::from_utf8(told(format!("{line}\r\n\r\n").as_bytes())).unwrap();
        assert!(words.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {words}");
    }
    assert!(told(b"PROXY TCP4").is_empty());
    let literal = [&[5, 1, 0, 5, 1, 0, 3, 7][..], b"fd00::1", &[0, 80]].concat();
    let literal = talk(Preface::new(ALL, Secret::default()), &literal).1;
    assert_eq!(literal, there("[fd00::1]:80"));
}

#[test]
fn invalid_prefaces_are_refused() {
    let none = Protocols::default();
    for said in [&b"\x05"[..], b"C", b"\r", b"GET / HTTP/1.1\r\n"] {
        let (.., step, _) = talk(Preface::new(none, Secret::default()), said);
        assert!(matches!(step, Step::Refuse(words, _) if words.is_empty()), "{said:?}");
    }
    let endless = [b"CONNECT a:1 HTTP/1.1\r\nx: ".to_vec(), vec![b'y'; LONGEST]].concat();
    let (_, step, _) = talk(Preface::new(ALL, me()), &endless);
    let Step::Refuse(words, Refusal::Unclear(_)) = step else { panic!("{step:?}") };
    let words = String::from_utf8(words).unwrap();
    assert!(words.starts_with("HTTP/1.1 431 "), "{words}");
    assert!(words.ends_with("\r\n\r\nthe head of a request may have 8192 bytes\n"), "{words}");
}
