//! TLS of links. TLS authenticates nothing here: a listening end creates a new key at each start,
//! and the dialler accepts any key. The ends authenticate each other with the sites' keys, in a
//! handshake that runs inside the channel and is bound to the channel. A man in the middle has two
//! channels, so a handshake that is bound to one of them fails on the other.
//!
//! ```text
//!   TCP ── TlsChannel ── Secure: the sites' handshake, then frames      links over TLS
//!   UDP ── QUIC ──────── Secure: the same                               links over QUIC
//! ```
//!
//! | file | contains |
//! |---|---|
//! | here | [`TlsConfigs`]: TLS over TCP |
//! | [`channel`] | a TLS connection as the channel of a link |
//! | [`certificate`] | the listening end's certificate |
//! | [`quic`] | TLS of QUIC, with raw public keys |
//! | [`any_peer`] | verifier that accepts any key |

mod any_peer;
mod certificate;
mod channel;
pub(super) mod quic;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{DnsName, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};

use any_peer::AnyPeer;
pub(super) use channel::TlsChannel;

/// Label of the exported key material that binds the sites' handshake to the connection.
pub(super) const LABEL: &[u8] = b"EXPORTER viaduct tunnel";

/// TLS configs of links over TCP. There is no application protocol (ALPN), so a listening end
/// completes the handshake with any client of TLS 1.3.
#[derive(Clone, Debug)]
pub(super) struct TlsConfigs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsConfigs {
    /// Creates the configs, and a key for the listening end. Errors: no random bytes are available.
    pub(super) fn new() -> Result<TlsConfigs, Error> {
        let provider = Arc::new(default_provider());
        let any_peer = AnyPeer::with_certificate(&provider);
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(any_peer))
            .with_no_client_auth();
        let (certificate, key) = certificate::self_signed()?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        server.send_tls13_tickets = 0;
        Ok(TlsConfigs { client: client.into(), server: server.into() })
    }

    /// Begins TLS as the client of a connection to `ip`. The ClientHello names the server `name`
    /// (SNI), if given.
    pub(super) fn dial(&self, ip: IpAddr, name: Option<&DnsName<'static>>) -> DialResult {
        // With an address as the name, the ClientHello has no SNI.
        let name = name.map_or(ServerName::from(ip), |name| ServerName::DnsName(name.clone()));
        TlsChannel::dial(self.client.clone(), name)
    }

    /// Begins TLS as the server of a connection: waits for a ClientHello.
    pub(super) fn accept(&self) -> DialResult {
        TlsChannel::accept(self.server.clone())
    }
}

type DialResult = Result<TlsChannel, Error>;
