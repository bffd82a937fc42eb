//! TLS of a page that other hosts can reach: TLS 1.3, with the operator's certificate.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::text;

/// Maximum length of a file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Returns the TLS acceptor for the certificate chain and the key in these files.
///
/// # Errors
/// A file cannot be read, or the key is not that of the certificate.
pub(super) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor> {
    let pem = |option: &str, file: &Path| {
        let text = text::read(file, MAX_FILE);
        text.map_err(|error| anyhow::anyhow!("{option}: {}: {error}", file.display()))
    };
    let chain = pem("--tls-cert", cert)?;
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.with_context(|| format!("--tls-cert: {} is not PEM", cert.display()))?;
    ensure!(!chain.is_empty(), "--tls-cert: {} has no certificate in PEM", cert.display());
    let secret = PrivateKeyDer::from_pem_slice(pem("--tls-key", key)?.as_bytes())
        .with_context(|| format!("--tls-key: {} has no private key in PEM", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("--tls-key: {} cannot be used with --tls-cert", key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
