//! Sequential downloads, and their median times.

use super::model::Expected;
use crate::experiments::prelude::*;
use crate::topology::programs::WebServer;

const LIMIT: Duration = Duration::from_secs(20);

/// Returns a link of 100 Mb/s with this delay in milliseconds.
pub(super) fn hop(delay: f64) -> LinkConfig {
    link(&format!("rate=100M,delay={}us,queue=100ms", (delay * 1e3).round()))
}

/// Returns the median times to the first and the last byte over `times` downloads of `bytes` bytes,
/// in milliseconds.
pub(super) fn measure(
    client: &Host,
    server: &Host,
    bytes: usize,
    times: usize,
    seed: u64,
) -> Result<Expected> {
    let web = WebServer::start(server, bytes, seed)?;
    // The first download fills the neighbour tables.
    web.download(client, LIMIT)?;
    let mut found: [Vec<f64>; 2] = Default::default();
    for _ in 0..times {
        let got = web.download(client, LIMIT)?;
        found[0].push(got.first_byte.as_secs_f64() * 1e3);
        found[1].push(got.time.as_secs_f64() * 1e3);
    }
    Ok(Expected { first_byte: median(&found[0]), whole: median(&found[1]) })
}
