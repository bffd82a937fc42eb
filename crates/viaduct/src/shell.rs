//! Interface of the handlers to the system: files, randomness, and overlay nodes.

use std::sync::Arc;

use viaduct_proto::handlers::Shell;

use crate::overlay_table::overlays;
use crate::random::entropy;

/// Returns access to this system's files and randomness, and to overlay nodes on this system.
pub fn shell() -> Shell {
    Shell {
        files: Arc::new(|path| std::fs::read_to_string(path).map_err(|error| error.to_string())),
        entropy: entropy(),
        overlays: overlays(),
    }
}
