//! Verifier that accepts any key, if the other end proves that it has the private key.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// Verifier that accepts any key; it checks only the signature of the handshake.
#[derive(Debug)]
pub(super) struct AnyPeer {
    algorithms: WebPkiSupportedAlgorithms,
    /// True if the other end has a raw public key (RFC 7250) instead of a certificate.
    is_raw: bool,
}

impl AnyPeer {
    pub(super) fn with_raw_key(provider: &CryptoProvider) -> AnyPeer {
        AnyPeer { algorithms: provider.signature_verification_algorithms, is_raw: true }
    }

    pub(super) fn with_certificate(provider: &CryptoProvider) -> AnyPeer {
        AnyPeer { algorithms: provider.signature_verification_algorithms, is_raw: false }
    }
}

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
        Err(Error::General("links have TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !self.is_raw {
            return verify_tls13_signature(message, key, signature, &self.algorithms);
        }
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.is_raw
    }
}
