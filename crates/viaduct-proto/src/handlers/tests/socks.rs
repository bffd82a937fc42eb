use super::super::testing::{factories, shell};
use crate::flow::relay::{DatagramError, Relay, RelayProgress};
use crate::flow::{Action, Address, BottomId, Chain, Failure, Half};
use crate::split::socks;
use crate::time::Instant;

const NOW: Instant = Instant::ZERO;

/// Flow to `to`, as its proxy sees it.
struct Proxy {
    chain: Chain,
    bottom: BottomId,
    said: Vec<Action>,
}

impl Proxy {
    fn new(settings: &str, to: Address) -> Proxy {
        let chain = factories(&["count", settings], &shell());
        let mut chain = Chain::new(chain, 4_096, NOW);
        chain.connect(NOW, to);
        let bottom = chain.bottom().unwrap();
        let mut proxy = Proxy { chain, bottom, said: Vec::new() };
        let via = Address::Name("proxy.example".into(), 1080);
        assert!(proxy.actions().contains(&Action::Connect(bottom, via)));
        proxy.chain.connected(NOW, bottom, Ok(()));
        proxy
    }

    fn actions(&mut self) -> &[Action] {
        self.said.extend(std::iter::from_fn(|| self.chain.poll_action()));
        &self.said
    }

    fn heard(&mut self) -> Vec<u8> {
        let bytes: Vec<u8> = self.chain.outgoing(self.bottom).pieces().flatten().copied().collect();
        self.chain.sent(NOW, self.bottom, bytes.len());
        bytes
    }

    /// Sends `bytes` one by one.
    fn say(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.chain.avail(NOW, self.bottom, vec![byte].into());
        }
    }

    fn answered(&mut self) -> Option<Result<(), Failure>> {
        let answer = |action: &Action| match action {
            Action::Connected(result) => Some(*result),
            _ => None,
        };
        self.actions().iter().find_map(answer)
    }
}

#[test]
fn the_proxy_gets_the_destination_as_a_name() {
    let to = Address::Name("server.example".into(), 443);
    let mut proxy = Proxy::new("socks:via=proxy.example:1080,user=me,password=word", to.clone());
    assert!(proxy.chain.write(NOW, "early".into()));
    proxy.chain.shutdown(NOW, Half::Write);
    assert_eq!(proxy.heard(), [5, 2, 0, 2]);
    proxy.say(&socks::choice(Some(socks::Method::Password)));
    assert_eq!(proxy.heard(), b"\x01\x02me\x06secret");
    proxy.say(&socks::verdict(true));
    let request = proxy.heard();
    assert_eq!(socks::request(&request), crate::split::Parsed::Whole(to.clone(), request.len()));
    assert_eq!(proxy.answered(), None);
    proxy.say(&socks::reply(Ok(())));
    proxy.say(b"hello");
    assert_eq!(proxy.answered(), Some(Ok(())));
    assert_eq!(proxy.heard(), b"early");
    assert!(proxy.actions().contains(&Action::Shutdown(BottomId(0), Half::Write)));
    assert_eq!(proxy.chain.incoming().pieces().flatten().copied().collect::<Vec<_>>(), b"hello");
    assert_eq!(proxy.chain.getpeername(NOW), Some(to));
}

#[test]
fn a_proxys_refusal_is_reported_with_its_reason() {
    let all = "socks:via=proxy.example:1080";
    let user = "socks:via=proxy.example:1080,user=me,password=word";
    let ip = Address::Ip("[2001:db8::1]:80".parse().unwrap());
    let reply = |why| [&[5, 0][..], &socks::reply(Err(why))].concat();
    for (settings, said, why, words) in [
        (all, vec![5, 255], Failure::Denied, "another authentication"),
        (all, vec![5, 2], Failure::Denied, "another authentication"),
        (user, vec![5, 2, 1, 1], Failure::Denied, "refuses the user"),
        (all, reply(Failure::Refused), Failure::Refused, "refused"),
        (all, reply(Failure::TimedOut), Failure::TimedOut, "timed out"),
        (all, b"HTTP/1.1 400 Bad".to_vec(), Failure::Unreachable, "not SOCKS5"),
    ] {
        let mut proxy = Proxy::new(settings, ip.clone());
        proxy.say(&said);
        assert_eq!(proxy.answered(), Some(Err(why)), "{settings} {said:?}");
        let text = format!("{:?}", proxy.actions());
        assert!(text.contains(words) && text.contains("Close"), "{text}");
    }
    let mut proxy = Proxy::new(all, ip);
    proxy.chain.handle_timeout(Instant::from_nanos(u64::MAX));
    assert_eq!(proxy.answered(), Some(Err(Failure::TimedOut)));
}

fn relay(settings: &str) -> Box<dyn Relay + Send> {
    factories(&[settings], &shell())[0].relay().unwrap()
}

#[test]
fn a_relay_is_negotiated_however_the_replies_are_cut() {
    let said = |words: &[u8]| Ok(RelayProgress::Send(words.to_vec()));
    let mut relay = relay("socks:via=proxy.example:1080,user=me,password=word");
    assert_eq!(relay.via(), &Address::Name("proxy.example".into(), 1080));
    assert_eq!(relay.begin(), [5, 2, 0, 2]);
    assert_eq!(relay.handle_bytes(&[5]), said(b""));
    assert_eq!(relay.handle_bytes(&[2]), said(b"\x01\x02me\x06secret"));
    assert_eq!(relay.handle_bytes(&[1, 0]), said(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]));
    let answer = [5, 0, 0, 1, 192, 0, 2, 9, 0x10, 0];
    assert_eq!(relay.handle_bytes(&answer[..9]), said(b""));
    let at = Address::Ip("192.0.2.9:4096".parse().unwrap());
    assert_eq!(relay.handle_bytes(&answer[9..]), Ok(RelayProgress::Done(at)));
}

#[test]
fn a_proxy_without_a_relay_is_reported_with_its_reason() {
    for (said, words) in [
        (&[5, 0, 5, 7, 0, 1, 0, 0, 0, 0, 0, 0][..], "does not support UDP ASSOCIATE"),
        (&[5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0], "denied"),
        (&[5, 255], "another authentication"),
        (b"HTTP/1.1 400 Bad", "not SOCKS5"),
    ] {
        let mut relay = relay("socks:via=192.0.2.1:1080");
        relay.begin();
        let why = relay.handle_bytes(said).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn datagrams_of_a_relay_are_wrapped_and_unwrapped() {
    let relay = relay("socks:via=192.0.2.1:1080");
    let to = Address::Name("mars.example".into(), 53);
    let wrapped = relay.wrap(&to, b"question").unwrap();
    assert_eq!(relay.unwrap(&wrapped), Ok((to, &b"question"[..])));
    let piece = [&[0, 0, 1], &wrapped[3..]].concat();
    assert_eq!(relay.unwrap(&piece), Err(DatagramError::Fragment));
    assert_eq!(relay.unwrap(&wrapped[..9]), Err(DatagramError::Malformed));
    assert_eq!(relay.wrap(&Address::Name("x".repeat(256), 1), b""), None);
}
