//! How fast a link over QUIC sends.
//!
//! The library has its own congestion controls, and paces them by their windows. Its BBR fills no
//! long path, and a window alone cannot say what BBR has to say: how fast to send, and, which is
//! another thing, how much may be on its way. So BBR is ours, and so is the pacer that follows it.
//!
//! | file | noun |
//! |---|---|
//! | [`bbr`] | the controller |
//! | [`path`] | what it knows of the path |
//! | [`samples`] | where it knows that from: the rate of delivery |
//! | [`pacer`] | when datagrams leave |

mod bbr;
mod pacer;
mod path;
mod samples;

pub(super) use bbr::BbrConfig;
pub(super) use pacer::{Pacer, quantum};
