//! Congestion control of a link over QUIC.
//!
//! The library has its own congestion controls, and paces them by their windows. Its BBR does not
//! fill a long path. A window alone cannot express both results of BBR: the pacing rate, and the
//! limit of bytes in flight. So BBR is implemented here, and so is the pacer that follows it.
//!
//! | file | noun |
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
