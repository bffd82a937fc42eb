//! Tests of a client and a server in virtual time, mostly over links. `compare` and `friendly`
//! compare them with TCP Reno over the same links.

mod attacks;
mod bounds;
mod changes;
mod compare;
mod crowd;
mod friendly;
mod losses;
mod transfer;
