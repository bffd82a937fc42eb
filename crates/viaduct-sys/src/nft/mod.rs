//! Netfilter: our nftables tables, and queues of packets that the kernel holds for a verdict.
//!
//! A [`table`] is installed and deleted in one transaction; the [journal](crate::journal) records
//! it, so that a crash leaves no rules behind. The kernel deletes the rules of a [`datagram_queue`]
//! when its socket is closed.
//!
//! | module | content |
//! |---|---|
//! | [`table`] | a table: installed, deleted, checked |
//! | `policy` | policy routing of marked packets |
//! | [`mss_clamp`] | lowers the MSS of forwarded SYNs |
//! | [`path_rules`] | selects the path of forwarded packets |
//! | [`intercept`] | redirects forwarded connections to a proxy (TPROXY) |
//! | [`syn_hold`] | sends SYNs to a queue until the server has answered |
//! | [`rst_guard`] | hides packets from the kernel's TCP, which would answer with resets |
//! | [`spray`] | distributes a service's packets over its replicas |
//! | [`flowtables`] | flowtables of all programs |
//! | [`rule_watch`] | notification of deleted rules |
//! | [`nfqueue`] | reading end of a queue: packets and verdicts (NFQUEUE) |
//! | [`datagram_queue`] | queue of the datagrams of a cgroup's programs |

pub mod datagram_queue;
pub mod flowtables;
pub mod intercept;
pub mod mss_clamp;
pub mod nfqueue;
pub mod path_rules;
mod policy;
pub mod rst_guard;
pub mod rule_watch;
pub mod spray;
pub mod syn_hold;
pub mod table;
