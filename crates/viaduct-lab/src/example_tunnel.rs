//! Tunnel between two hosts. The near and the far end each run `viaduct proxy` with the files of
//! `examples/squid/`; only addresses, keys and links are changed.
//!
//! ```text
//!   near host                                                   far host
//!   port 3129                                                   ─▶ `to`, fixed for this port
//!      └─ viaduct proxy: near.toml ═══ links, TCP or QUIC ═══▶ viaduct proxy: far.toml ─┘
//! ```

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use viaduct_proto::keys::SecretKey;

use crate::gateways::random_key;
use crate::proxies::Proxy;
use crate::stop;
use crate::topology::{Host, Scratch};

const NEAR: &str = include_str!("../../../examples/squid/near.toml");
const FAR: &str = include_str!("../../../examples/squid/far.toml");
const LINKS_PORT: u16 = 7600;
/// Listening port of the near end, as in `examples/squid/child.conf`.
const NEAR_PORT: u16 = 3129;

const LINKS_UP_TIMEOUT: Duration = Duration::from_secs(20);

/// Transport of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A TCP connection per link.
    Tcp,
    /// A QUIC connection per link, and a QUIC stream for each flow.
    Quic,
}

/// Links of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// Number of links.
    pub count: usize,
    /// Transport of each link.
    pub carrier: Carrier,
    /// Congestion control at both ends, such as `bbr`; `None` for the default: the host's for TCP,
    /// cubic for QUIC.
    pub congestion: Option<&'static str>,
}

impl Links {
    /// Creates `count` TCP links.
    pub fn tcp(count: usize) -> Links {
        Links { count, carrier: Carrier::Tcp, congestion: None }
    }

    /// Creates a single QUIC link.
    pub fn quic() -> Links {
        Links { count: 1, carrier: Carrier::Quic, congestion: None }
    }

    /// Sets the congestion control.
    pub fn congestion(self, name: &'static str) -> Links {
        Links { congestion: Some(name), ..self }
    }

    /// Returns the display name.
    pub fn name(self) -> String {
        match (self.carrier, self.count) {
            (Carrier::Tcp, 1) => "tunnel, 1 link".into(),
            (Carrier::Tcp, count) => format!("tunnel, {count} links"),
            (Carrier::Quic, 1) => "tunnel, QUIC".into(),
            (Carrier::Quic, count) => format!("tunnel, {count} QUIC links"),
        }
    }
}

/// Running tunnel; stopped when dropped.
#[derive(Debug)]
pub struct Tunnel {
    entrance: SocketAddr,
    near: Proxy,
    /// Configuration of the near end.
    config: String,
    far: Proxy,
    _keys: Scratch,
}

impl Tunnel {
    /// Starts a tunnel from `near` to `far`: connections to port 3129 of `near` reach `to`.
    pub fn start(near: &Host, far: &Host, to: SocketAddr, links: Links) -> Result<Tunnel> {
        let keys = Scratch::new()?;
        let (near_key, far_key) = (random_key()?, random_key()?);
        let path = |name, key: &SecretKey| -> Result<String> {
            Ok(keys.write_secret(name, key.to_text())?.display().to_string())
        };
        let heard = SocketAddr::new(far.v4().into(), LINKS_PORT);
        let config = lines_of(FAR);
        let config = set(&config, "tunnel-listen", &quoted(&heard))?;
        let config = set(&config, "key", &quoted(&path("far.key", &far_key)?))?;
        let config = set(&config, "peer", &quoted(&near_key.public()))?;
        let config = set(&config, "allow-to", &format!("[\"{}/32\"]", to.ip()))?;
        let congestion = |name| format!("link-congestion = {}\n", quoted(&name));
        let congestion = links.congestion.map_or(String::new(), congestion);
        let far = Proxy::configured(far, &(config + &congestion))?;
        let carrier = match links.carrier {
            Carrier::Tcp => "tcp",
            Carrier::Quic => "quic",
        };
        // Listens on all addresses of the host, so that other machines of the site may connect.
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, NEAR_PORT));
        let config = lines_of(NEAR);
        let config = set(&config, "listen", &quoted(&listen))?;
        let config = set(&config, "to", &quoted(&to))?;
        let config = set(&config, "tunnel", &quoted(&heard))?;
        let config = set(&config, "key", &quoted(&path("near.key", &near_key)?))?;
        let config = set(&config, "peer", &quoted(&far_key.public()))?;
        let config = set(&config, "links", &links.count.to_string())?;
        let config = set(&config, "carrier", &quoted(&carrier))?;
        let config = config + &congestion;
        let entrance = SocketAddr::new(near.v4().into(), NEAR_PORT);
        let near = Proxy::configured(near, &config)?;
        let tunnel = Tunnel { entrance, near, config, far, _keys: keys };
        tunnel.wait_for_links(links.count)?;
        Ok(tunnel)
    }

    fn wait_for_links(&self, count: usize) -> Result<()> {
        let are_up = || self.near.log().matches("a link of the tunnel is up").count() >= count;
        let in_time = stop::wait_until(LINKS_UP_TIMEOUT, Duration::from_millis(10), are_up)?;
        ensure!(
            in_time,
            "the tunnel does not have {count} links; logs of its ends:\n{}",
            self.logs()
        );
        Ok(())
    }

    /// Changes the number of links. Fails if the near end is not running.
    pub fn set_links(&self, count: usize) -> Result<()> {
        self.near.reload(&set(&self.config, "links", &count.to_string())?)
    }

    /// Returns the address of the near end, to which any machine of its site can connect.
    pub fn entrance(&self) -> SocketAddr {
        self.entrance
    }

    /// Returns the port at which the far end accepts links.
    pub fn links_port(&self) -> u16 {
        LINKS_PORT
    }

    /// Returns the logs of both ends.
    pub fn logs(&self) -> String {
        format!("near:\n{}far:\n{}", self.near.log(), self.far.log())
    }
}

/// Returns the lines of an example's `[proxy]` table.
fn lines_of(example: &str) -> String {
    let (_, lines) = example.split_once("[proxy]\n").unwrap_or_default();
    lines.to_owned()
}

fn quoted(value: &impl Display) -> String {
    format!("\"{value}\"")
}

/// Returns `lines` with a new value for `key`, which must be present.
fn set(lines: &str, key: &str, value: &str) -> Result<String> {
    let begin = format!("{key} = ");
    let at = lines.lines().position(|line| line.starts_with(&begin));
    let at = at.with_context(|| format!("no line of the example begins with {begin:?}"))?;
    let line = |(n, line): (usize, &str)| match n == at {
        true => format!("{begin}{value}\n"),
        false => format!("{line}\n"),
    };
    Ok(lines.lines().enumerate().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_of_the_key_is_replaced() {
        let lines = lines_of(NEAR);
        let told = set(&lines, "links", "7").unwrap();
        assert!(told.contains("\nlinks = 7\n") && told.contains("\nlisten = \"127.0.0.1:3129\"\n"));
        assert_eq!(told.lines().count(), lines.lines().count());
        assert!(set(&lines, "nosuch", "1").is_err());
    }
}
