//! `socks:via=HOST:PORT`: connects flows through a SOCKS5 proxy (section 4.2 of the TESLA paper),
//! which also resolves names.
//!
//! ```text
//!   flow          a stream: the proxy connects, and data passes     ─┐
//!   association   datagrams: the proxy relays them                  ─┴ dialogue   login, request
//! ```

mod association;
mod dialogue;
mod flow;

use std::sync::Arc;

use self::association::Association;
use self::flow::Socks;
use super::Shell;
use crate::flow::datagrams::{Datagrams, Direction};
use crate::flow::relay::Relay;
use crate::flow::{About, Address, Arguments, Factory, Handler};
use crate::split::socks::Credentials;
use crate::split::socks_client;
use crate::time::Instant;

/// Address of the proxy, and credentials for it.
struct Proxy {
    via: Address,
    user: Option<Credentials>,
}

struct SocksFactory(Arc<Proxy>);

/// Passes datagrams without delay or loss; the relay carries them.
struct Straight;

pub(super) fn about() -> About {
    About::new("socks", "connects through a SOCKS5 proxy, which also resolves names")
        .setting("via", "HOST:PORT", "the proxy")
        .setting("user", "NAME", "user name for the proxy; none by default")
        .setting("password", "FILE", "a file that holds the user's password")
        .guards()
        .datagrams()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let via = arguments.take("via", "a host and a port, such as 192.0.2.1:1080,", address)?;
    let via = via.ok_or("via is missing, as in socks:via=192.0.2.1:1080")?;
    let user = match (arguments.text("user"), arguments.text("password")) {
        (None, None) => None,
        (Some(name), Some(file)) => {
            let text = (shell.files)(&file).map_err(|why| format!("password={file}: {why}"))?;
            let password = text.trim_end_matches(['\r', '\n']).as_bytes().to_vec();
            let user = Credentials { name: name.into_bytes(), password };
            let fits = socks_client::credentials(&user).is_some();
            Some(fits.then_some(user).ok_or("user and password have 1 to 255 bytes each")?)
        }
        _ => return Err("user= and password= must be given together".to_owned()),
    };
    Ok(Arc::new(SocksFactory(Arc::new(Proxy { via, user }))))
}

/// Parses `HOST:PORT`, where the host is an address or a name.
fn address(text: &str) -> Option<Address> {
    if let Ok(ip) = text.parse() {
        return Some(Address::Ip(ip));
    }
    let (host, port) = text.rsplit_once(':')?;
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name = !host.is_empty() && host.len() <= 253 && host.chars().all(fine);
    Some(Address::Name(name.then(|| host.to_owned())?, port.parse().ok()?))
}

impl Factory for SocksFactory {
    fn name(&self) -> &'static str {
        "socks"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Socks::new(self.0.clone()))
    }

    fn takes_names(&self) -> bool {
        true
    }

    fn datagrams(&self) -> Option<Box<dyn Datagrams + Send>> {
        Some(Box::new(Straight))
    }

    fn relay(&self) -> Option<Box<dyn Relay + Send>> {
        Some(Box::new(Association::new(self.0.clone())))
    }
}

impl Datagrams for Straight {
    fn pass(&mut self, now: Instant, _direction: Direction, _bytes: usize) -> Option<Instant> {
        Some(now)
    }
}
