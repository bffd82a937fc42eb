//! The IP layer's configuration: interfaces, addresses, routes, neighbours and settings, read and
//! changed through netlink, ioctls or `/proc/sys`.
//!
//! Everything applies to the network namespace that the calling thread is in.
//!
//! | module | content |
//! |---|---|
//! | [`interface`] | settings of an interface |
//! | [`links`] | all interfaces, and how they are stacked |
//! | [`survey`] | this host's addresses and routes |
//! | [`tun`] | TUN interfaces |
//! | [`qdisc`] | drop counter of an interface's queueing discipline |
//! | [`local_addresses`] | lookup of this host's own addresses |
//! | [`next_hop`] | next-hop lookup: output interface and link-layer addresses |
//! | [`mtu`] | MTU of the routes to a prefix |
//! | [`watch`] | notification of changed routes |
//! | [`announced`] | routes for a routing daemon |
//! | [`sysctl`] | kernel settings |
//! | `prefix` | prefixes of addresses |
//! | `table_route` | routes of the main table as values |
//! | `rtnetlink` | exchange of routing messages with the kernel |
//! | `link_message` | routing messages about interfaces |
//! | `netlink` | netlink sockets, and messages of other families |

pub mod announced;
pub mod interface;
pub(crate) mod link_message;
pub mod links;
pub mod local_addresses;
pub mod mtu;
pub(crate) mod netlink;
pub mod next_hop;
pub(crate) mod prefix;
pub mod qdisc;
pub(crate) mod rtnetlink;
pub mod survey;
pub mod sysctl;
pub(crate) mod table_route;
pub mod tun;
pub mod watch;
