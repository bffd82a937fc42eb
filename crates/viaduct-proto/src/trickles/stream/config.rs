//! Settings of a stream client, and states of its streams.

use crate::time::Duration;
use crate::trickles::client;
use crate::trickles::standard::Reason;

/// Settings of a stream client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum length of messages in both directions, in bytes: at least 1,085, and as long as
    /// packets have room for.
    pub message: u16,
    /// Limit for sent messages, if it is to be lower; at least 1,085, too. The first request
    /// has this length, so that its answer can be as long. On a path with a smaller MTU and
    /// without ICMP errors that costs a timeout.
    pub request: u16,
    /// Maximum number of bytes that are written to a stream and not consumed yet.
    pub send_buffer: usize,
    /// Maximum number of bytes of all streams that are requested and not read yet; each may
    /// have 64 KiB.
    pub window: u64,
    /// Time without an answer after which the connection fails.
    pub give_up: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            // Payload of an Ethernet packet in TCP's format; with UDP it could be slightly
            // longer.
            message: 1_448,
            request: 1_400,
            send_buffer: 1 << 20,
            window: 8 << 20,
            give_up: Duration::from_secs(60),
        }
    }
}

/// Reason why a stream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The server has reset it.
    #[error(transparent)]
    Reset(#[from] Reason),
    /// The server consumes nothing of a packet full of input, or does not answer it.
    #[error("the server takes nothing of what is sent")]
    Stalled,
    /// The output is longer than the reserved positions.
    #[error("the answer is longer than the {0} bytes that were reserved for it")]
    TooLong(u64),
    /// Output bytes are missing that no continuation yields, and nothing else brings them.
    #[error(
        "the next bytes of the answer cannot be asked for: the server has given nothing for it"
    )]
    Missing,
    /// No answer within [`Config::give_up`].
    #[error("the server did not answer")]
    TimedOut,
}

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Output may follow.
    Open,
    /// All output was read.
    Finished,
    /// The stream has failed.
    Failed(Failure),
}

/// Settings of the transport.
pub(super) fn transport(config: &Config) -> client::Config {
    let message = config.message;
    // The first answer is no longer than the request, so the request is padded to its maximum.
    let request = usize::from(message.min(config.request)).max(client::MIN_MESSAGE);
    client::Config { message, request, reserve: 0, pad: request }
}
