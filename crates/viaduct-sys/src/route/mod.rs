//! The IP layer's configuration: interfaces, addresses, routes, neighbours and settings, read and
//! changed by netlink, by ioctls, by `/proc/sys`, or by the program `ip`.
//!
//! Everything applies to the network namespace that the calling thread is in.
//!
//! | module | content |
//! |---|---|
//! | [`interface`] | settings of an interface |
//! | [`tun`] | TUN interfaces |
//! | [`qdisc`] | drop counter of an interface's queueing discipline |
//! | [`local_addresses`] | lookup of this host's own addresses |
//! | [`next_hop`] | next-hop lookup: output interface and link-layer addresses |
//! | [`mtu`] | MTU of the routes to a prefix |
//! | [`watch`] | notice of changed routes |
//! | [`sysctl`] | kernel settings |
//! | `netlink` | netlink messages |

pub mod interface;
pub mod local_addresses;
pub mod mtu;
pub(crate) mod netlink;
pub mod next_hop;
pub mod qdisc;
pub mod sysctl;
pub mod tun;
pub mod watch;
