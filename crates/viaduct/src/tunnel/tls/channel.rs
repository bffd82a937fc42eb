//! A TLS connection as the channel of a link. The caller passes bytes in and out; there is no
//! socket here.

use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};
use viaduct_proto::tunnel::record::Secure;

use super::LABEL;
use crate::tunnel::link::Credentials;

/// Maximum number of bytes from a dialler that has not authenticated: TLS's handshake, the sites'
/// handshake, HELLO, and the frames that immediately follow.
const UNTRUSTED_BYTES: usize = 8 << 10;

/// TLS connection, and the sites' handshake inside it.
#[derive(Debug)]
pub(in crate::tunnel) struct TlsChannel {
    tls: Connection,
    /// Handshake of the sites; `None` before TLS's own handshake is complete.
    pub(in crate::tunnel) secure: Option<Secure>,
    /// Number of bytes that the other end may still send before it has authenticated.
    allowance: usize,
}

impl TlsChannel {
    /// Begins TLS as a client. The ClientHello names the server `name`.
    pub(super) fn dial(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<TlsChannel, Error> {
        let tls = ClientConnection::new(config, name)?;
        Ok(TlsChannel::new(tls.into(), usize::MAX))
    }

    /// Begins TLS as a server: waits for a ClientHello.
    pub(super) fn accept(config: Arc<ServerConfig>) -> Result<TlsChannel, Error> {
        Ok(TlsChannel::new(ServerConnection::new(config)?.into(), UNTRUSTED_BYTES))
    }

    fn new(mut tls: Connection, allowance: usize) -> TlsChannel {
        // No limit is needed, because every write is followed by `transmit`, which empties the
        // buffer.
        tls.set_buffer_limit(None);
        TlsChannel { tls, secure: None, allowance }
    }

    /// TLS connection, without the sites' handshake.
    #[cfg(test)]
    pub(super) fn into_tls(self) -> Connection {
        self.tls
    }

    /// Returns whether both ends have authenticated.
    pub(in crate::tunnel) fn is_up(&self) -> bool {
        self.secure.as_ref().is_some_and(Secure::is_up)
    }

    /// Processes received bytes. Answers are appended to `out`, even if the result is an error:
    /// they then tell the other end the reason.
    pub(in crate::tunnel) fn handle_bytes(
        &mut self,
        credentials: Credentials<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        let result = self.receive(credentials, bytes, deliver);
        self.transmit(out)?;
        result
    }

    fn receive(
        &mut self,
        credentials: Credentials<'_>,
        mut bytes: &[u8],
        deliver: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        if !self.is_up() {
            let left = self.allowance.checked_sub(bytes.len());
            self.allowance = left.ok_or_else(|| {
                io::Error::other("too many bytes before the dialler has authenticated")
            })?;
        }
        while !bytes.is_empty() {
            if self.tls.read_tls(&mut bytes)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            if self.secure.is_none() && !self.tls.is_handshaking() {
                self.begin_handshake(credentials)?;
            }
            self.open(deliver)?;
            if state.peer_has_closed() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Begins the sites' handshake, bound to this connection.
    fn begin_handshake(&mut self, credentials: Credentials<'_>) -> io::Result<()> {
        let binding = self.tls.export_keying_material([0; 32], LABEL, None);
        let binding = binding.map_err(io::Error::other)?;
        let mut first = Vec::new();
        let dials = matches!(self.tls, Connection::Client(_));
        self.secure = Some(credentials.begin_in(&binding, dials, &mut first)?);
        self.tls.writer().write_all(&first)
    }

    /// Passes the decrypted bytes to `deliver`, and answers the sites' handshake.
    fn open(&mut self, deliver: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Some(secure) = &mut self.secure else { return Ok(()) };
        let mut reader = self.tls.reader();
        loop {
            let length = match reader.fill_buf() {
                Ok(plain) => {
                    secure.inbox().extend_from_slice(plain);
                    plain.len()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            if length == 0 {
                break;
            }
            reader.consume(length);
        }
        let mut answer = Vec::new();
        let opened = secure.open(&mut answer, deliver);
        self.tls.writer().write_all(&answer)?;
        opened.map_err(io::Error::other)
    }

    /// Encrypts `plain`, and appends the records to `out`. Ignores `plain` before both ends have
    /// authenticated.
    pub(in crate::tunnel) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if self.is_up() {
            self.tls.writer().write_all(plain)?;
        }
        self.transmit(out)
    }

    /// Appends the message that ends this direction (close_notify) to `out`.
    pub(in crate::tunnel) fn close(&mut self, out: &mut Vec<u8>) {
        self.tls.send_close_notify();
        // Writing to memory does not fail.
        let _ = self.transmit(out);
    }

    /// Appends to `out` the records that TLS has to send.
    pub(in crate::tunnel) fn transmit(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(out)?;
        }
        Ok(())
    }
}
