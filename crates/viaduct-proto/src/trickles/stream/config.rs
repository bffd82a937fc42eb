//! What a stream client is set to, and how its streams stand.

use crate::time::Duration;
use crate::trickles::client;
use crate::trickles::standard::Reason;

/// What a stream client is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest message that may come, and be sent, in bytes: 1,085 or more, as far as packets hold.
    pub message: u16,
    /// Longest message that is sent, where that is to be less: 1,085 or more, too. The first request has as many,
    /// so that much comes with its answer; where the way takes less and nobody says so, that costs a timeout.
    pub request: u16,
    /// Most bytes that are written to a stream and not consumed yet.
    pub send_buffer: usize,
    /// Most bytes that are asked for and not read yet, all streams together; each may have 64 KiB.
    pub window: u64,
    /// The connection fails when it has waited so long for an answer.
    pub give_up: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            // What Ethernet holds beside the headers of TCP's format; by UDP a little less than it could.
            message: 1_448,
            request: 1_400,
            send_buffer: 1 << 20,
            window: 8 << 20,
            give_up: Duration::from_secs(60),
        }
    }
}

/// Why a stream does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The server says so.
    #[error(transparent)]
    Reset(#[from] Reason),
    /// The server takes nothing of a packet full of input, or does not answer it.
    #[error("the server takes nothing of what is sent")]
    Stalled,
    /// More output is there than numbers were reserved for.
    #[error("the answer is longer than the {0} bytes that were reserved for it")]
    TooLong(u64),
    /// Bytes of the output are missing that no continuation yields, and nothing more brings.
    #[error(
        "the next bytes of the answer cannot be asked for: the server has given nothing for it"
    )]
    Missing,
    /// Nothing came for too long.
    #[error("the server did not answer")]
    TimedOut,
}

/// How a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Open,
    /// All output was read.
    Finished,
    /// It does not go on.
    Failed(Failure),
}

/// The transport's settings.
pub(super) fn transport(config: &Config) -> client::Config {
    let message = config.message;
    // The first answer is no longer than the request, so that is as long as can be.
    let request = usize::from(message.min(config.request)).max(client::LEAST_MESSAGE);
    client::Config { message, request, reserve: 0, pad: request }
}
