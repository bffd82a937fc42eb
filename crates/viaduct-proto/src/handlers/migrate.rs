//! `migrate`: a flow survives the loss of its connection, a change of address, and periods without
//! a network (section 4.4 of the TESLA paper). It is a [multipath flow](super::multipath) with one
//! connection after another.

use std::sync::Arc;

use super::Shell;
use super::multipath::{self, Plan};
use crate::flow::{About, Arguments, Factory};
use crate::time::Duration;

const DEFAULT_WITHIN: Duration = Duration::from_secs(300);

pub(super) fn about() -> About {
    About::new("migrate", "keeps flows alive through changes and outages of the network")
        .setting("within", "TIME", "maximum time without a connection; 5m by default")
        .setting("buffer", "BYTES", "bytes kept each way for retransmission; 8M by default")
        .setting("freeze", "true|false", "freeze the program during an outage; false by default")
        .both_ends()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let within = arguments.take("within", "a time such as 30s, 5m or 2h", multipath::time)?;
    let freeze = arguments.take("freeze", "true or false", |text| text.parse().ok())?;
    Ok(Plan::factory(Plan {
        name: "migrate",
        paths: 1,
        from: Vec::new(),
        within: within.unwrap_or(DEFAULT_WITHIN),
        buffer: multipath::buffer(arguments)?,
        freeze: freeze.unwrap_or(false),
        entropy: shell.entropy.clone(),
    }))
}
