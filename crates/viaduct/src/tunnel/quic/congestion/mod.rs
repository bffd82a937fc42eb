//! Congestion control of a link over QUIC.
//!
//! The library has its own congestion controls, and derives the pacing from their windows. The
//! library's BBR does not fill a long path: a window cannot express both outputs of BBR, the pacing
//! rate and the limit of bytes in flight. So this module implements BBR and a pacer.
//!
//! | file | contains |
//! |---|---|
//! | [`bbr`] | the controller |
//! | [`path`] | the model of the path |
//! | [`samples`] | its input: delivery rate samples |
//! | [`pacer`] | when datagrams leave |

mod bbr;
mod pacer;
mod path;
mod samples;

pub(super) use bbr::BbrConfig;
pub(super) use pacer::{Pacer, quantum};
