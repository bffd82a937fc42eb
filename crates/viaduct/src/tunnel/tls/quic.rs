//! TLS of QUIC, with raw public keys (RFC 7250).

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::alg_id::ED25519;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::{CertifiedKey, public_key_to_spki};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};

use super::any_peer::AnyPeer;

/// Name of the application protocol (ALPN), with its version.
const PROTOCOL: &[u8] = b"viaduct-tunnel-2";

/// Creates the TLS config of the listening end, with a new key.
pub(in crate::tunnel) fn server() -> Result<QuicServerConfig, Error> {
    let provider = Arc::new(default_provider());
    let key = fresh_key(&provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(key))));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// Creates the TLS config of the dialling end.
pub(in crate::tunnel) fn client() -> Result<QuicClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let any_peer = Arc::new(AnyPeer::with_raw_key(&provider));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(any_peer)
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    QuicClientConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// Creates a key pair whose public key is sent as a raw public key.
fn fresh_key(provider: &CryptoProvider) -> Result<CertifiedKey, Error> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let pkcs8 = pkcs8.map_err(|_| Error::FailedToGetRandomBytes)?;
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref());
    let pair = pair.map_err(|error| Error::General(error.to_string()))?;
    let spki = public_key_to_spki(&ED25519, pair.public_key().as_ref());
    let private = PrivateKeyDer::Pkcs8(pkcs8.as_ref().to_vec().into());
    let key = provider.key_provider.load_private_key(private)?;
    Ok(CertifiedKey::new(vec![CertificateDer::from(spki.to_vec())], key))
}
