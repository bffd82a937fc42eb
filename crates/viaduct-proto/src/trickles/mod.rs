//! Trickles: a transport whose servers keep no state per connection (Trickles, section 2).
//!
//! The connection state of TCP travels with the packets instead. Most responses carry a
//! [continuation]: the window, the slow start threshold and the packet's number, authenticated with
//! a key that only the server and its replicas know. With its next request the client returns the
//! continuation, proves in a [proof] which packets have arrived, and names the byte ranges that it
//! wants: its *asks*. From the request alone the [server] computes what a TCP sender would do now,
//! and answers with zero, one or more packets. A *trickle* is a sequence of requests and responses,
//! each caused by its predecessor; there are as many trickles as the window has packets.
//!
//! ```text
//!   client                                                         server (any replica)
//!     │ ── open: token, data ─────────────────────────────────────▶ │ answer ≤ request
//!     │ ◀────────────────────────── address token, user state ───── │
//!     │ ── address token, asks ───────────────────────────────────▶ │ the address is proven
//!     │ ◀──────────── packets 1 to 10: continuation, nonce, data ── │
//!     │ ── continuation 1, proof 1-1, asks ───────────────────────▶ │ plan: C(1) - C(0) + 1
//!     │ ◀─────────────────────────────────────── packets 11, 12 ─── │ packets
//! ```
//!
//! C(k) is the congestion window after packet k.
//!
//! | file | contents |
//! |---|---|
//! | [`cwnd`] | Reno's window in closed form |
//! | [`epoch`] | a recovery epoch: the packets between two losses, and their acknowledgement |
//! | [`plan`] | the answer to a request: continue, split, terminate, recover |
//! | [`keys`] | the secrets in use, and the keys derived from them |
//! | [`rotation`] | secrets of periods, derived from a root secret |
//! | [`nonce`] | p(i) = r(i) xor r(i + 1) |
//! | [`continuation`] | the connection state that the server does not keep |
//! | [`proof`] | which packets have arrived |
//! | [`replay`] | record of the answered requests, in fixed memory |
//! | [`wire`] | the messages |
//! | [`crypt`] | the same messages, encrypted under keys that the server does not store |
//! | [`server`] | a function of request, address, secrets and time |
//! | [`client`] | the state machine that keeps the connection's state |
//! | [`standard`] | continuations that both sides understand |
//! | [`probe`] | whether a server answers |
//! | [`api`] | events and minisockets, for a server's application |
//! | [`stream`] | byte streams and requests, for a client's application |
//!
//! Section numbers such as (2.4) refer to the Trickles paper. `docs/trickles/protocol.md` derives
//! what the paper leaves open.

pub mod api;
pub(crate) mod bytes;
pub mod client;
pub mod continuation;
pub mod crypt;
pub mod cwnd;
pub mod epoch;
pub mod keys;
pub mod nonce;
pub mod packet;
pub mod plan;
pub mod probe;
pub mod proof;
pub mod replay;
pub mod rotation;
pub mod server;
pub mod standard;
pub mod stream;
pub mod wire;

#[cfg(test)]
mod tests;

use crate::time::Duration;

/// Idle time after which a client restarts. The server does not treat such a restart as a timeout,
/// unless the proof shows a loss.
const SILENCE: Duration = Duration::from_secs(10);
