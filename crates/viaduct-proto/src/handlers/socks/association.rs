//! Datagrams through the proxy's relay (UDP ASSOCIATE; RFC 1928, sections 4 and 7).

use std::sync::Arc;

use bytes::BytesMut;

use super::Proxy;
use super::dialogue::{Dialogue, Progress};
use crate::flow::Address;
use crate::flow::relay::{DatagramError, Relay, RelayProgress};
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

    fn handle_bytes(&mut self, data: &[u8]) -> Result<RelayProgress, String> {
        self.inbox.extend_from_slice(data);
        let mut words = Vec::new();
        loop {
            match self.dialogue.handle_message(&mut self.inbox).map_err(|refusal| refusal.1)? {
                Progress::Incomplete => return Ok(RelayProgress::Send(words)),
                Progress::Send(more) => words.extend(more),
                Progress::Granted(at) => return Ok(RelayProgress::Done(at)),
            }
        }
    }

    fn wrap(&self, to: &Address, data: &[u8]) -> Option<Vec<u8>> {
        socks_datagram::emit(to, data)
    }

    fn unwrap<'a>(&self, datagram: &'a [u8]) -> Result<(Address, &'a [u8]), DatagramError> {
        socks_datagram::parse(datagram).map_err(|why| match why {
            socks_datagram::Unusable::Fragment => DatagramError::Fragment,
            socks_datagram::Unusable::Header => DatagramError::Malformed,
        })
    }
}
