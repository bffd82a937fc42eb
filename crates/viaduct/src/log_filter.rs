//! Filter of the log, from the environment variable `VIADUCT_LOG`.

use std::env;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Returns the filter in `VIADUCT_LOG`: a level, such as `debug`, or levels of modules, such as
/// `info,viaduct::gateway=debug`. If the variable is unset or invalid, the level is `default`.
pub fn from_env(default: LevelFilter) -> Targets {
    let set = env::var("VIADUCT_LOG").ok().and_then(|text| text.parse().ok());
    set.unwrap_or_else(|| Targets::new().with_default(default))
}
