//! Message formats, and their constants. All fields are big endian; a *number* has a variable
//! length, with seven bits in each byte.
//!
//! ```text
//!  request   kind 1 | count 4 | …
//!    1 open      token 8 | longest message 2 | padding               | asks | data
//!    2 step      continuation | ending | proof                       | asks | data
//!    3 restart   attempt 1 | continuation | ending | proof | padding | asks | data
//!    padding     zeros, preceded by their number
//!    ending      flags 1: 1 tail, 2 repaired | tail: lost, unanswered: numbers | sum of repairs 8
//!    asks        groups, a number | each: user continuation, preceded by its length
//!                                       | asks, a number | each: position, length: numbers
//!
//!  response  kind 1 | tag 4 | generation 2 | number 8 | nonce 8 | …
//!    1 token     continuation | payload
//!    2 fresh     continuation | payload
//!    3 half      payload                       the first of a pair
//!    4 again     payload
//!    5 group     entries 1 | body of a continuation | each: nonce 8 | MAC 16, if it is a point
//!    6 slim      delta: secret 1 | timestamp 6 | smoothed RTT 4 | MAC 16 | payload
//!    payload     position 8 | flags 1 | user continuation, preceded by its length | data
//! ```
//!
//! [`request`] and [`response`] parse these formats, except for the
//! [continuation](super::continuation) and the [proof](super::proof).

pub mod request;
pub mod response;

pub use request::{Ask, Groups, Kind, Request};
pub use response::{Form, Payload, Response};

/// Maximum length of a user continuation, in bytes.
pub const MAX_USER: usize = 1_024;
/// Maximum number of asks in a request.
pub const MAX_ASKS: usize = 64;
/// Maximum number of restart attempts with one continuation, numbered from 1. The last attempt asks
/// for an address token instead, and may be repeated.
pub const MAX_ATTEMPTS: u8 = 12;
