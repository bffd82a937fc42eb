//! Downloads one after the other, and how long they take on average.

use std::time::Duration;

use anyhow::Result;

use super::model::Expected;
use crate::topology::Host;
use crate::topology::programs::WebServer;

/// Longest that a download may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Means over `times` downloads of so many bytes, in milliseconds.
pub(super) fn measure(
    client: &Host,
    server: &Host,
    bytes: usize,
    times: usize,
    seed: u64,
) -> Result<Expected> {
    let web = WebServer::start(server, bytes, seed)?;
    // The first download teaches the neighbours their addresses.
    web.download(client, LIMIT)?;
    let mut sum = Expected { first_byte: 0.0, whole: 0.0 };
    for _ in 0..times {
        let got = web.download(client, LIMIT)?;
        sum.first_byte += got.first_byte.as_secs_f64() * 1e3 / times as f64;
        sum.whole += got.time.as_secs_f64() * 1e3 / times as f64;
    }
    Ok(sum)
}
