//! State of a listening end that survives a restart: the keys for its connection IDs and for its
//! stateless reset tokens. With these keys a restarted end answers packets of old connections with
//! a stateless reset (RFC 9000 section 10.3), so that the peer need not wait for a timeout.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn_proto::{ConnectionIdGenerator, EndpointConfig, HashedConnectionIdGenerator};
use ring::hmac;
use viaduct_proto::keys::SecretKey;

/// Returns the config of an end that listens at `listen`. An end that only dials gets temporary
/// keys, because no peer can reach it after a restart.
///
/// Both keys are derived from the site's key and the listening address, so that a token revealed by
/// another process of this site cannot reset these connections.
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
