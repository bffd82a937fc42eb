//! Encryption of a link over TCP: records of the tunnel itself, or TLS. The first byte from a
//! dialler shows which of the two the dialler has chosen, so one port serves both.
//!
//! ```text
//!   first byte  0x00   length of a Noise message  ─▶ Records
//!               0x16   TLS handshake              ─▶ Tls
//! ```

use std::io;

use viaduct_proto::tunnel::record::Secure;

use super::link::Credentials;
use super::settings::{CarrierKind, Dial};
use super::tls::TlsChannel;

/// First byte of a TLS handshake (ContentType, RFC 8446, B.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Encryption of a link over TCP.
#[derive(Debug)]
pub(super) enum Channel {
    /// Accepted link on which no byte has arrived yet.
    Undecided,
    /// Records under the sites' keys.
    Records(Box<Secure>),
    /// TLS, and the sites' handshake inside it.
    Tls(Box<TlsChannel>),
}

impl Channel {
    /// Creates the channel of a link that dials `to`; its first message is appended to `out`.
    pub(super) fn dial(
        credentials: Credentials<'_>,
        to: &Dial,
        out: &mut Vec<u8>,
    ) -> io::Result<Channel> {
        let Credentials { settings, entropy, tls } = credentials;
        if settings.carrier == CarrierKind::Tls {
            let tls = tls.dial(to.to.ip(), to.server_name.as_ref()).map_err(io::Error::other)?;
            let mut channel = Box::new(tls);
            channel.transmit(out)?;
            return Ok(Channel::Tls(channel));
        }
        let secure = Secure::dial(&settings.secret, &settings.peers[0], entropy.clone(), out);
        Ok(Channel::Records(Box::new(secure.map_err(io::Error::other)?)))
    }

    /// Record layer under the sites' keys; `None` before the channel has keys.
    pub(super) fn secure(&self) -> Option<&Secure> {
        match self {
            Channel::Undecided => None,
            Channel::Records(secure) => Some(secure),
            Channel::Tls(tls) => tls.secure.as_ref(),
        }
    }

    /// Returns whether both ends have authenticated.
    pub(super) fn is_up(&self) -> bool {
        self.secure().is_some_and(Secure::is_up)
    }

    /// Processes received bytes: passes the decrypted bytes to `deliver`, and appends answers to
    /// `out`, even if the result is an error.
    pub(super) fn handle_bytes(
        &mut self,
        credentials: Credentials<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        if let (Channel::Undecided, Some(&first)) = (&*self, bytes.first()) {
            *self = Channel::accept(credentials, first)?;
        }
        match self {
            Channel::Undecided => Ok(()),
            Channel::Records(secure) => {
                secure.inbox().extend_from_slice(bytes);
                secure.open(out, deliver).map_err(io::Error::other)
            }
            Channel::Tls(tls) => tls.handle_bytes(credentials, bytes, out, deliver),
        }
    }

    /// Creates the channel of an accepted link whose first received byte is `first`.
    fn accept(credentials: Credentials<'_>, first: u8) -> io::Result<Channel> {
        let Credentials { settings, entropy, tls } = credentials;
        if first == TLS_HANDSHAKE {
            return Ok(Channel::Tls(Box::new(tls.accept().map_err(io::Error::other)?)));
        }
        if settings.carrier == CarrierKind::Tls {
            return Err(io::Error::other("the link does not begin with a TLS handshake"));
        }
        let secure = Secure::listen(&settings.secret, settings.peers.clone(), entropy.clone());
        Ok(Channel::Records(Box::new(secure)))
    }

    /// Encrypts `plain` and appends it to `out`. Appends nothing before both ends
    /// have authenticated.
    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Channel::Undecided => {}
            Channel::Records(secure) => secure.seal(plain, out),
            Channel::Tls(tls) => tls.seal(plain, out)?,
        }
        Ok(())
    }

    /// Appends the message that ends this direction to `out`, if the channel has such a message.
    pub(super) fn close(&mut self, out: &mut Vec<u8>) {
        if let Channel::Tls(tls) = self {
            tls.close(out);
        }
    }
}
