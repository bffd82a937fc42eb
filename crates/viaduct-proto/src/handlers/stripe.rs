//! `stripe`: one flow over several connections, from one or several local addresses (section 1 of
//! the TESLA paper). It is a [multipath flow](super::multipath) with parallel connections.

use std::net::IpAddr;
use std::sync::Arc;

use super::Shell;
use super::multipath::{self, MAX_PATHS, Plan};
use crate::flow::{About, Address, Arguments, Factory};
use crate::time::Duration;

const DEFAULT_PATHS: usize = 2;
const DEFAULT_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn about() -> About {
    About::new("stripe", "sends one flow over several connections")
        .setting("paths", "1-32", "connections; 2 by default, or as many as there are addresses")
        .setting("from", "ADDR[+ADDR...]", "local addresses of the connections, used in turn")
        .setting("within", "TIME", "maximum time without a connection; 10s by default")
        .setting("buffer", "BYTES", "bytes buffered each way; 8M by default")
        .both_ends()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let paths = |text: &str| text.parse().ok().filter(|paths| (1..=MAX_PATHS).contains(paths));
    let paths = arguments.take("paths", "a number from 1 to 32", paths)?;
    let address = |text: &str| text.parse::<IpAddr>().ok().map(|ip| Address::Ip((ip, 0).into()));
    let from = |text: &str| text.split('+').map(address).collect::<Option<Vec<_>>>();
    let from = arguments.take("from", "local addresses such as 192.0.2.1+192.0.2.2", from)?;
    let from = from.unwrap_or_default();
    let within = arguments.take("within", "a time such as 30s, 5m or 2h", multipath::time)?;
    Ok(Plan::factory(Plan {
        name: "stripe",
        paths: paths.unwrap_or(from.len().clamp(DEFAULT_PATHS, MAX_PATHS)),
        from,
        within: within.unwrap_or(DEFAULT_WITHIN),
        buffer: multipath::buffer(arguments)?,
        freeze: false,
        entropy: shell.entropy.clone(),
    }))
}
