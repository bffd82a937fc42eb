//! Connections whose two ends negotiate their handlers ([`viaduct_proto::negotiate`]) at setup.
//!
//! ```text
//!   a flow begins ── connect: offer ──▶ SYN            no relay or chain yet
//!   SYN-ACK ──▶ connected ── decide ──▶ Middle         handlers that both ends have, or a refusal
//!   SYN ──▶ accepted ── accept ──▶ handlers            the same from the other side
//! ```
//!
//! If the negotiated handlers let flows share a connection, the first flow's connection is shared.
//! Flows that begin while that connection exists use it without a negotiation.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use viaduct_proto::flow::Address;
use viaduct_proto::negotiate::{Offer, Refusal, Terms, binding, select_handlers};
use viaduct_proto::time::Instant;
use viaduct_sys::bpf::{Offers, Ports};
use viaduct_sys::socket::tcp::{Mirrored, SynContent};

use super::chain_io::{ChainIo, Factories};
use super::conn::Conn;
use super::flow::Middle;
use super::outbound::{OpenRequest, Opened, Outbound, connect};
use super::relay::Relay;
use crate::rate_limited::RateLimitedLog;

/// Capacity of the cache of negotiation results. A small cache suffices, because ends of one kind
/// send the same offer. The number also limits the destinations with a shared connection: once it
/// is reached, those whose connection has ended are removed before another one is added.
const MAX_CACHED: usize = 256;

/// Negotiation state of this end: its terms, and the results with other ends.
#[derive(Debug)]
pub struct Negotiation {
    terms: Terms,
    chain: Factories,
    /// For each handler, whether it needs both ends.
    both_ends: Vec<bool>,
    offers: Offers,
    cache: Mutex<HashMap<CacheKey, Result<Factories, Refusal>>>,
    /// Chains whose flows to a destination share a connection.
    sharing: Mutex<HashMap<SocketAddr, Factories>>,
    /// Rate-limited warnings about failed negotiations, by address.
    failures: RateLimitedLog<IpAddr>,
}

/// Cache key: whether this end connected, and the other end's offer, if there was one.
type CacheKey = (bool, Option<Offer>);

/// A flow whose handlers are not negotiated yet.
#[derive(Debug)]
pub struct PendingNegotiation {
    negotiation: Arc<Negotiation>,
    to: SocketAddr,
    /// Bytes that each end of the chain buffers.
    limit: usize,
}

impl Negotiation {
    /// Prepares to negotiate the handlers of `chain` under `terms`. Negotiation covers connections
    /// to programs that listen at `ports`, and to listeners that this process opens later. Errors:
    /// `CAP_BPF` or `CAP_NET_ADMIN` is missing, the kernel is too old, or there is no cgroup2.
    pub fn new(
        terms: Terms,
        chain: Factories,
        both_ends: Vec<bool>,
        ports: &Ports,
    ) -> Result<Negotiation> {
        let offers = Offers::attach(terms.offer().emit(), ports);
        let offers = offers.context("cannot negotiate by a TCP option (--prefer, --require)")?;
        let (cache, sharing) = (Mutex::default(), Mutex::default());
        let failures = RateLimitedLog::new(4);
        Ok(Negotiation { terms, chain, both_ends, offers, cache, sharing, failures })
    }

    /// Handlers of flows to `to` that use a shared connection, if there is one.
    pub fn shared(&self, to: SocketAddr) -> Option<Factories> {
        let chain = self.sharing().get(&to).cloned()?;
        let there = chain.iter().any(|factory| factory.reaches(&to.into()));
        there.then_some(chain)
    }

    fn share(&self, to: SocketAddr, chain: Factories) {
        let mut sharing = self.sharing();
        if sharing.len() >= MAX_CACHED {
            sharing.retain(|to, chain| chain.iter().any(|factory| factory.reaches(&(*to).into())));
        }
        sharing.insert(to, chain);
    }

    fn sharing(&self) -> MutexGuard<'_, HashMap<SocketAddr, Factories>> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handlers of an accepted connection, from the SYN's headers. Errors: the ends' terms exclude
    /// each other.
    pub fn accept(&self, syn: &[u8]) -> Result<Factories, Refusal> {
        self.settle(false, Offer::in_headers(syn))
    }

    /// Handlers of an established connection that this end has opened.
    fn answered(&self, stream: impl AsFd) -> Result<Factories, Refusal> {
        let answer = self.offers.answer(stream.as_fd());
        self.settle(true, answer.and_then(|option| Offer::parse(&option)))
    }

    /// Settles on a chain. Equal offers get the identical chain, so that connections of one flow
    /// can be joined.
    fn settle(&self, connects: bool, theirs: Option<Offer>) -> Result<Factories, Refusal> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settled) = cache.get(&(connects, theirs.clone())) {
            return settled.clone();
        }
        let settled = self.terms.negotiate(connects, theirs.as_ref()).map(|agreed| {
            let (ours, plain) = (self.terms.offer(), Offer::default());
            let theirs = theirs.as_ref().unwrap_or(&plain);
            let words = if connects { binding(ours, theirs) } else { binding(theirs, ours) };
            select_handlers(&self.chain, &self.both_ends, &agreed, &words)
        });
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert((connects, theirs), settled.clone());
        settled
    }
}

impl Outbound for Negotiation {
    /// Begins a connection whose SYN carries the offer.
    fn open(&self, request: &OpenRequest, _: Instant) -> io::Result<Opened> {
        connect(request, SynContent::Offer(&self.offers)).map(|(conn, _)| conn.into())
    }
}

impl PendingNegotiation {
    /// Returns the pending negotiation of a flow to `to`; each end of its chain buffers at most
    /// `limit` bytes.
    pub fn new(negotiation: Arc<Negotiation>, to: SocketAddr, limit: usize) -> PendingNegotiation {
        PendingNegotiation { negotiation, to, limit }
    }

    /// Returns the relay or chain of the flow whose connection, `server`, is established. Errors:
    /// the negotiation failed, which is logged.
    pub fn decide(&self, server: &Conn, now: Instant) -> io::Result<Middle> {
        let stream = server.tcp().ok_or(io::ErrorKind::Unsupported)?;
        let chain = self.negotiation.answered(stream).map_err(|refusal| {
            self.negotiation.failures.warn(self.to.ip(), format_args!("{}: {refusal}", self.to));
            io::Error::from(io::ErrorKind::PermissionDenied)
        })?;
        if let Some(relay) = Relay::of(&chain) {
            return Ok(Middle::Relay(relay));
        }
        // The program's options are already set on the connection. The handlers learn them when the
        // program sets another option.
        let (to, mirrored) = (self.to.into(), Mirrored::default());
        let chain_io = ChainIo::new(chain.clone(), self.limit, (to, None), mirrored, now);
        let shares = chain.iter().any(|factory| factory.shares());
        match chain_io {
            Some((chain_io, Some((to, _)))) if to == Address::Ip(self.to) => {
                Ok(Middle::Chain(Box::new(chain_io)))
            }
            // The flow uses a shared connection: its own connection becomes the shared one, unless
            // there is one already.
            Some((chain_io, None)) if shares => {
                self.negotiation.share(self.to, chain);
                Ok(Middle::Chain(Box::new(chain_io)))
            }
            _ => Err(io::Error::other("the handlers connect to another destination")),
        }
    }
}
