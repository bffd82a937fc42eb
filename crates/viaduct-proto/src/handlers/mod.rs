//! Built-in handlers, one module each. Others are added by a [`Registry`] entry; see
//! `examples/handler`.

mod backlog;
mod compress;
mod congestion;
mod count;
mod crypt;
mod lane;
mod latency;
mod migrate;
mod multipath;
mod mux;
mod paced;
mod route;
mod shape;
mod socks;
mod stripe;

use std::sync::Arc;

use crate::flow::Registry;
use crate::keys::Entropy;
use crate::overlay::Table;
use crate::units;

/// Access of handlers to files, randomness and the overlay, provided by the driver.
#[derive(Clone)]
pub struct Shell {
    /// Reads files.
    pub files: Files,
    /// Source of randomness, fit for keys.
    pub entropy: Entropy,
    /// Opens the tables of overlay nodes.
    pub overlays: Overlays,
}

/// Connects to the overlay node on this host whose socket has the given path. The node keeps a
/// table up to date.
pub type Overlays = Arc<dyn Fn(&str) -> Tables + Send + Sync>;

/// Returns the node's current table; `None` while the node does not answer.
pub type Tables = Arc<dyn Fn() -> Option<Arc<Table>> + Send + Sync>;

/// Reads a complete file; the error is the reason why it cannot be read.
pub type Files = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// Registry of all built-in handlers.
pub fn registry(shell: &Shell) -> Registry {
    let mut registry = Registry::default();
    registry.add(compress::about(), compress::build);
    registry.add(congestion::about(), congestion::build);
    registry.add(count::about(), count::build);
    registry.add(latency::about(), latency::build);
    registry.add(shape::about(), shape::build);
    let given = shell.clone();
    registry.add(migrate::about(), move |arguments| migrate::build(arguments, &given));
    let given = shell.clone();
    registry.add(mux::about(), move |arguments| mux::build(arguments, &given));
    let given = shell.clone();
    registry.add(stripe::about(), move |arguments| stripe::build(arguments, &given));
    let given = shell.clone();
    registry.add(route::about(), move |arguments| route::build(arguments, &given));
    let given = shell.clone();
    registry.add(socks::about(), move |arguments| socks::build(arguments, &given));
    let given = shell.clone();
    registry.add(crypt::about(), move |arguments| crypt::build(arguments, &given));
    registry
}

/// Parses a size in bytes, see [`units::size`].
fn size(text: &str) -> Option<usize> {
    units::size(text).and_then(|bytes| usize::try_from(bytes).ok())
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
