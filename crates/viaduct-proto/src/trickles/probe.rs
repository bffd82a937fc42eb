//! Probe of a server by UDP: a first request without data, which a server answers with an address
//! token. The server keeps no state of the probe, and its application receives no request.

use super::crypt::ClientCrypt;
use super::packet::{Role, udp};
use super::wire::Response;
use super::wire::request::{emit_groups, emit_open, emit_padding};

/// Length of the message in bytes: a server answers only if its address token is no longer.
const LENGTH: usize = 160;
/// Length of a first request without its padding, but with the padding's length and the number
/// of groups.
const HEAD: usize = 15 + 2 + 1;
/// Longest message that the prober receives, in bytes.
const LONGEST: u16 = 1_400;

/// Pending probe.
#[derive(Debug)]
pub struct Probe {
    token: u64,
    crypt: Option<ClientCrypt>,
}

impl Probe {
    /// Creates a probe. `token` is random, and different for each probe. With `crypt`, the probe is
    /// encrypted for the server's public key, and proves that the server has the secret key.
    pub fn new(token: u64, crypt: Option<ClientCrypt>) -> Probe {
        Probe { token, crypt }
    }

    /// Content of the datagram to send; `None` if the encryption fails.
    pub fn datagram(&mut self) -> Option<Vec<u8>> {
        let mut message = Vec::with_capacity(LENGTH);
        emit_open(0, self.token, LONGEST, &mut message);
        emit_padding(LENGTH - HEAD, &mut message);
        emit_groups([].into_iter(), &mut message);
        let message = match &mut self.crypt {
            None => message,
            Some(crypt) => crypt.seal(&message)?,
        };
        Some([&udp::head(Role::Request, 0)[..], &message].concat())
    }

    /// Returns whether the datagram `payload` is a server's answer to this probe.
    pub fn is_answer(&mut self, payload: &[u8]) -> bool {
        let Ok((Role::Answer, _, message)) = udp::parse(payload) else { return false };
        let opened = match &mut self.crypt {
            None => Some(message.to_vec()),
            Some(crypt) => crypt.open(message),
        };
        let tag = |message: Vec<u8>| Response::parse(&message).ok().map(|response| response.tag);
        opened.and_then(tag) == Some(self.token as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::keys::{Entropy, SecretKey};
    use crate::rng::Rng;
    use crate::time::{Duration, Instant};
    use crate::trickles::api::{Endpoint, Reply};
    use crate::trickles::crypt::ServerCrypt;
    use crate::trickles::keys::KeyRing;
    use crate::trickles::packet::Return;
    use crate::trickles::replay::Replay;
    use crate::trickles::server::{Server, Settings};

    const NOW: Instant = Instant::from_nanos(1 << 40);

    fn entropy(seed: u64) -> Entropy {
        Arc::new(move |out| Rng::from_seed(seed).fill(out))
    }

    /// Answers of a server to a datagram.
    fn answers(server: &mut Endpoint, datagram: &[u8]) -> Vec<Vec<u8>> {
        let to =
            Return::of_datagram("192.0.2.1:4000".parse().unwrap(), "192.0.2.2:80".parse().unwrap());
        let (_, _, message) = udp::parse(datagram).unwrap();
        let mut sent = Vec::new();
        let Ok(mut event) = server.accept(NOW, to, message) else { return sent };
        event.fit(1_400);
        server.send(event, &Reply::default(), &mut (), |_, message| {
            sent.push([&udp::head(Role::Answer, 0)[..], message].concat());
        });
        sent
    }

    fn server() -> Endpoint {
        let replay = Replay::new(1 << 16, Duration::from_secs(30), [1, 2, 3, 4], NOW);
        Endpoint::new(Server::new(Settings::default(), KeyRing::new(1, &[7; 32]), replay), 10)
    }

    #[test]
    fn a_server_answers_a_probe_and_the_answer_matches_no_other_probe() {
        let mut server = server();
        let mut probe = Probe::new(0x1234_5678_9abc_def0, None);
        let datagram = probe.datagram().unwrap();
        assert_eq!(datagram.len(), udp::HEAD + LENGTH);
        let said = answers(&mut server, &datagram);
        assert_eq!(said.len(), 1);
        assert!(said[0].len() <= datagram.len() && probe.is_answer(&said[0]));
        assert!(!Probe::new(1, None).is_answer(&said[0]), "answer to another probe");
        assert!(!probe.is_answer(&datagram) && !probe.is_answer(b"HTTP/1.1 200 OK"));
    }

    #[test]
    fn an_encrypted_probe_is_answered_only_by_the_holder_of_the_key() {
        let identity = || SecretKey::from_bytes([0x42; 32]);
        let crypt = |key| ServerCrypt::new(key, true, entropy(1));
        let sealed = || Probe::new(5, Some(ClientCrypt::new(identity().public(), entropy(2))));
        let mut ours = server().with_crypt(crypt(identity()));
        let mut probe = sealed();
        let datagram = probe.datagram().unwrap();
        let said = answers(&mut ours, &datagram);
        assert!(said.len() == 1 && probe.is_answer(&said[0]));
        let mut other = server().with_crypt(crypt(SecretKey::from_bytes([9; 32])));
        assert!(answers(&mut other, &sealed().datagram().unwrap()).is_empty());
        assert!(answers(&mut ours, &Probe::new(5, None).datagram().unwrap()).is_empty());
    }
}
