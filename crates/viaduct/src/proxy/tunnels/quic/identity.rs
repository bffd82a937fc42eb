//! What an end that listens still knows after it was killed and started anew: which connections were
//! its own, and the tokens that end them. So the other end hears at once that they are gone (a
//! stateless reset, RFC 9000 section 10.3), and need not wait until the silence is too long.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn_proto::{ConnectionIdGenerator, EndpointConfig, HashedConnectionIdGenerator};
use ring::hmac;
use viaduct_proto::keys::SecretKey;

/// Of the site at `listen`; keys of the moment for one that only dials, which nobody finds again.
///
/// Both keys are derived from the site's, and from where it listens: a token that another process of
/// this site gives away ends none of these connections.
pub(super) fn config(secret: &SecretKey, listen: Option<SocketAddr>) -> EndpointConfig {
    let Some(at) = listen else { return EndpointConfig::default() };
    let derive = |what: &str| secret.derive(format!("viaduct tunnel quic {what} {at}").as_bytes());
    let reset = hmac::Key::new(hmac::HMAC_SHA256, &derive("reset"));
    let names = derive("connection id");
    let names = u64::from_be_bytes(*names.first_chunk().expect("32 bytes begin with 8"));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || -> Box<dyn ConnectionIdGenerator> {
        Box::new(HashedConnectionIdGenerator::from_key(names))
    });
    config
}
