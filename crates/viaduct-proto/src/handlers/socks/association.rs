//! Datagrams by the proxy's relay (UDP ASSOCIATE; RFC 1928, sections 4 and 7).

use std::sync::Arc;

use bytes::BytesMut;

use super::Proxy;
use super::dialogue::{Dialogue, Heard};
use crate::flow::Address;
use crate::flow::relay::{Agreed, Relay, Useless};
use crate::split::{socks_client, socks_datagram};

/// UDP association with the proxy.
pub(super) struct Association {
    proxy: Arc<Proxy>,
    dialogue: Dialogue,
    greeting: Vec<u8>,
    inbox: BytesMut,
}

impl Association {
    pub(super) fn new(proxy: Arc<Proxy>) -> Association {
        let request = Some(socks_client::associate().to_vec());
        let (dialogue, greeting) = Dialogue::begin(proxy.clone(), request);
        Association { proxy, dialogue, greeting, inbox: BytesMut::new() }
    }
}

impl Relay for Association {
    fn via(&self) -> &Address {
        &self.proxy.via
    }

    fn begin(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.greeting)
    }

    fn hear(&mut self, data: &[u8]) -> Result<Agreed, String> {
        self.inbox.extend_from_slice(data);
        let mut words = Vec::new();
        loop {
            match self.dialogue.hear(&mut self.inbox).map_err(|refusal| refusal.1)? {
                Heard::More => return Ok(Agreed::NotYet(words)),
                Heard::Say(more) => words.extend(more),
                Heard::Agreed(at) => return Ok(Agreed::At(at)),
            }
        }
    }

    fn wrap(&self, to: &Address, data: &[u8]) -> Option<Vec<u8>> {
        socks_datagram::emit(to, data)
    }

    fn unwrap<'a>(&self, datagram: &'a [u8]) -> Result<(Address, &'a [u8]), Useless> {
        socks_datagram::parse(datagram).map_err(|why| match why {
            socks_datagram::Unusable::Fragment => Useless::Fragment,
            socks_datagram::Unusable::Header => Useless::Garbage,
        })
    }
}
