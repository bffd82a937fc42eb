//! TLS keys of QUIC. They authenticate nothing: each process makes a key for itself, and accepts
//! any key of the other end. The ends authenticate each other with the sites' keys, in a handshake
//! that runs inside the channel and is bound to it. A man in the middle has two channels, so a
//! handshake that is bound to one fails on the other.

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::alg_id::ED25519;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::{CertifiedKey, public_key_to_spki};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};

/// Name of the application protocol (ALPN), with its version.
const PROTOCOL: &[u8] = b"viaduct-tunnel-2";

/// TLS config of the listening end, with a key of its own.
pub(super) fn server() -> Result<QuicServerConfig, Error> {
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

/// TLS config of the dialling end.
pub(super) fn client() -> Result<QuicClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let any_peer = Arc::new(AnyPeer(provider.signature_verification_algorithms));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(any_peer)
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    QuicClientConfig::try_from(config).map_err(|error| Error::General(error.to_string()))
}

/// Makes a fresh key, as a raw public key (RFC 7250).
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

/// Verifier that accepts any public key for which the other end has the private key.
#[derive(Debug)]
struct AnyPeer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyPeer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has no TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
