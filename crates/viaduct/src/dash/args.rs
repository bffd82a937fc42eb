//! Options of `viaduct dash`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, bail};
use tokio_rustls::TlsAcceptor;

use super::access::{Access, Token};
use super::tls;
use crate::key;
use crate::run_dir::RunDir;
use crate::text;
use crate::value_parser::socket_addr;

/// Port of the page if none is given.
const DEFAULT_PORT: u16 = 7480;
/// Maximum length of the token's file, in bytes.
const MAX_TOKEN_FILE: u64 = 4 << 10;

/// Options of `viaduct dash`.
#[derive(Debug, clap::Args)]
pub struct DashArgs {
    /// Address of the page. An address other than loopback needs --token-file, --tls-cert and
    /// --tls-key, because other hosts can reach it
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_addr,
          default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))]
    pub listen: SocketAddr,
    /// Name by which browsers reach the page, besides localhost and the address; other names are
    /// refused, since any web site can make its name point here
    #[arg(long = "host", value_name = "NAME", value_parser = host)]
    pub hosts: Vec<String>,
    /// File with the password of the page, at least 16 characters; the user name is ignored
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificate chain of the page, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub run_dir: RunDir,
}

impl DashArgs {
    /// Returns the conditions under which requests are answered.
    ///
    /// # Errors
    /// The address needs a token or TLS, or the token cannot be used.
    pub(super) fn access(&self) -> Result<Access> {
        let listen = self.listen;
        let is_protected = self.token_file.is_some() && self.tls_cert.is_some();
        if !listen.ip().to_canonical().is_loopback() && !is_protected {
            bail!(
                "--listen: other hosts can reach {listen}, so --token-file, --tls-cert and \
                 --tls-key are needed; or keep the default, and forward its port: \
                 ssh -L {DEFAULT_PORT}:127.0.0.1:{DEFAULT_PORT} HOST"
            );
        }
        let token = match &self.token_file {
            None => None,
            Some(file) => {
                key::warn_if_readable("--token-file", file);
                let token = text::read(file, MAX_TOKEN_FILE).and_then(|text| Token::new(&text));
                let named = |error| anyhow::anyhow!("--token-file: {}: {error}", file.display());
                Some(token.map_err(named)?)
            }
        };
        Ok(Access::new(&self.hosts, token))
    }

    /// Returns the TLS configuration, if the page is served over TLS.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub(super) fn tls(&self) -> Result<Option<TlsAcceptor>> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        key::warn_if_readable("--tls-key", key);
        tls::acceptor(cert, key).map(Some)
    }
}

/// Parses the name of a host, without a port.
fn host(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if text.is_empty() || !text.chars().all(is_plain) {
        return Err("a name without a port is expected, such as rome.example".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        dash: DashArgs,
    }

    fn args(words: &str) -> Result<DashArgs, clap::Error> {
        let words = std::iter::once("dash").chain(words.split_whitespace());
        Command::try_parse_from(words).map(|command| command.dash)
    }

    #[test]
    fn only_loopback_addresses_go_without_token_and_tls() {
        for at in ["127.0.0.1:7480", "[::1]:1", "127.5.5.5:80", "[::ffff:127.0.0.1]:80"] {
            assert!(args(&format!("--listen {at}")).unwrap().access().is_ok(), "{at}");
        }
        for at in ["0.0.0.0:7480", "[::]:7480", "192.0.2.1:80 --token-file /dev/null"] {
            let refused = args(&format!("--listen {at}")).unwrap().access().unwrap_err();
            assert!(refused.to_string().contains("--tls-cert"), "{at}: {refused}");
        }
    }

    #[test]
    fn names_have_no_port_and_a_certificate_needs_its_key() {
        assert!(args("--host rome.example:80").unwrap_err().to_string().contains("without a port"));
        assert_eq!(args("--host Rome.example").unwrap().hosts, ["rome.example"]);
        assert!(args("--tls-cert x").is_err() && args("--tls-key x").is_err());
    }
}
