//! Settings of a stream client, and states of its streams.

use crate::time::Duration;
use crate::trickles::client;
use crate::trickles::standard::Reason;

/// Settings of a stream client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum length of messages in both directions, in bytes: from 1,085 to the room in a packet.
    pub message: u16,
    /// Maximum length of sent messages, if lower than `message`: at least 1,085 bytes. The first
    /// request has this length, so that its answer can be as long. On a path with a smaller MTU and
    /// without ICMP errors this costs a timeout.
    pub request: u16,
    /// Maximum number of bytes that are written to a stream and not consumed by the server yet.
    pub send_buffer: usize,
    /// Maximum number of bytes of all streams that are requested and not read yet. Each stream may
    /// have 64 KiB regardless of the limit.
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
    /// The server has reset the stream.
    #[error(transparent)]
    Reset(#[from] Reason),
    /// The server has consumed nothing of the input in a full request, or nothing in many requests.
    #[error("the server does not consume the input")]
    Stalled,
    /// The output is longer than the reserved positions.
    #[error("the answer is longer than the {0} bytes that were reserved for it")]
    TooLong(u64),
    /// Output bytes are missing, no continuation yields them, and no answer to a request in flight
    /// will contain them.
    #[error(
        "cannot request the next bytes of the answer: the server has sent no continuation for them"
    )]
    Missing,
    /// The server did not answer within [`Config::give_up`].
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

pub(super) fn transport(config: &Config) -> client::Config {
    let message = config.message;
    // The first answer is no longer than the request, so the request is padded to its maximum.
    let request = usize::from(message.min(config.request)).max(client::MIN_MESSAGE);
    client::Config { message, request, reserve: 0, pad: request }
}
