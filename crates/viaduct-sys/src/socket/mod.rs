//! Sockets beyond the standard library: more options, many datagrams per system call, control
//! messages, and the sockets of wrapped programs.
//!
//! | module | content |
//! |---|---|
//! | [`tcp`] | TCP sockets for a proxy: listen, connect, liveness, pacing |
//! | [`urgent`] | the urgent byte of TCP |
//! | [`splice`] | bytes from socket to socket through a pipe, without a copy to user space |
//! | [`udp`] | UDP socket that sends runs of datagrams as one message (`UDP_SEGMENT`) |
//! | [`mmsg`] | `recvmmsg` and `sendmmsg`, for UDP, raw and packet sockets |
//! | [`lookup`] | the UDP socket that receives a datagram, and its user |
//! | [`error_queue`] | ICMP errors of a UDP socket (`IP_RECVERR`) |
//! | [`hop_fields`] | hop limit and traffic class of a datagram |
//! | [`timestamp`] | receive timestamps (`SO_TIMESTAMPNS`) |
//! | [`seqpacket`] | messages with descriptors between processes of this host |
//! | [`rendezvous`] | socket at which connects of wrapped programs wait |
//! | [`pending`] | completion of a waiting connect through a duplicate of the program's socket |
//! | `control` | control messages |
//! | [`sendmsg`] | a program's send on a duplicate of its socket |

mod control;
pub mod error_queue;
pub mod hop_fields;
pub mod lookup;
pub mod mmsg;
pub mod pending;
pub mod rendezvous;
pub mod sendmsg;
pub mod seqpacket;
pub mod splice;
pub mod tcp;
pub mod timestamp;
pub mod udp;
pub mod urgent;
