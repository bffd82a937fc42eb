//! Tests of a client and a server over a link, in virtual time, compared with a TCP Reno sender on
//! the same link with the same losses.

mod attacks;
mod bounds;
mod changes;
mod compare;
mod crowd;
mod friendly;
mod losses;
mod transfer;
