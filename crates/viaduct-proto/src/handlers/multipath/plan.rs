//! Settings of multipath flows.

use std::sync::Arc;

use super::Multipath;
use crate::flow::{Address, Arguments, Factory, Handler};
use crate::handlers::size;
use crate::keys::Entropy;
use crate::time::Duration;

/// Settings of all flows of a chain.
pub(in crate::handlers) struct Plan {
    pub(in crate::handlers) name: &'static str,
    /// Number of parallel connections.
    pub(in crate::handlers) paths: usize,
    /// Local addresses that connections are bound to, in turn; unbound if empty.
    pub(in crate::handlers) from: Vec<Address>,
    /// Maximum time without any connection before the flow fails.
    pub(in crate::handlers) within: Duration,
    /// Bytes buffered in each direction.
    pub(in crate::handlers) buffer: usize,
    /// True if the application is to be stopped while there is no connection.
    pub(in crate::handlers) freeze: bool,
    pub(in crate::handlers) entropy: Entropy,
}

/// Maximum number of parallel connections.
pub(in crate::handlers) const MAX_PATHS: usize = 32;

/// Factory of the handlers `migrate` and `stripe`.
struct MultipathFactory(Arc<Plan>);

impl Plan {
    /// Creates the factory of a handler with these settings.
    pub(in crate::handlers) fn factory(self) -> Arc<dyn Factory> {
        Arc::new(MultipathFactory(Arc::new(self)))
    }
}

impl Factory for MultipathFactory {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Multipath::new(self.0.clone()))
    }

    fn gathers(&self) -> bool {
        true
    }
}

/// Minimum of `buffer=`, in bytes.
pub(super) const MIN_BUFFER: usize = 64 << 10;
/// Maximum of `buffer=`, in bytes.
const MAX_BUFFER: usize = 256 << 20;
/// Default of `buffer=`, in bytes.
const DEFAULT_BUFFER: usize = 8 << 20;

/// Takes `buffer=`, in bytes.
pub(in crate::handlers) fn buffer(arguments: &mut Arguments) -> Result<usize, String> {
    let bytes = |text: &str| size(text).filter(|bytes| (MIN_BUFFER..=MAX_BUFFER).contains(bytes));
    let expected = "a size from 64K to 256M, such as 8M,";
    Ok(arguments.take("buffer", expected, bytes)?.unwrap_or(DEFAULT_BUFFER))
}

/// Parses a time such as `30s`, `5m` or `2h`, from 1 second to 30 days.
pub(in crate::handlers) fn time(text: &str) -> Option<Duration> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
    let (number, unit) = units.iter().find_map(|&(u, by)| Some((text.strip_suffix(u)?, by)))?;
    let seconds = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=30 * 86_400).contains(&seconds).then_some(Duration::from_secs(seconds))
}
