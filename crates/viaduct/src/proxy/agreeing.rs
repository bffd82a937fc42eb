//! Connections whose two ends agree on their handlers ([`viaduct_proto::agree`]) while they are set up.
//!
//! ```text
//!   a flow begins ── connect: offer ──▶ SYN            nothing stands between its ends yet
//!   SYN-ACK ──▶ connected ── decide ──▶ Middle         the handlers that both ends have, or a refusal
//!   SYN ──▶ accepted ── accept ──▶ handlers            the same from the other side
//! ```
//!
//! Where the handlers agreed on have flows share a connection, that is the first flow's; those that come while
//! it is there go over it, and have nothing to agree on.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use viaduct_proto::agree::{Offer, Refusal, Terms, binding, chosen};
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_sys::bpf::{Offers, Ports};
use viaduct_sys::tcp::{self, TcpOptions, Telling};

use super::flow::Middle;
use super::leg::Leg;
use super::relay::Relay;
use super::through::{Factories, Through};
use crate::sparing::Sparing;

/// What other ends have said that is remembered; ends of one kind say one thing.
const KNOWN: usize = 256;

/// What this end has, and what it has made of what others have said.
#[derive(Debug)]
pub struct Agreeing {
    terms: Terms,
    chain: Factories,
    /// Of each handler, whether it needs both ends.
    both_ends: Vec<bool>,
    offers: Offers,
    known: Mutex<HashMap<Said, Result<Factories, Refusal>>>,
    /// Chains whose flows to a place share a connection.
    sharing: Mutex<HashMap<SocketAddr, Factories>>,
    /// With whom it came to nothing, as the log hears of them.
    disagreed: Sparing<IpAddr>,
}

/// Whether it was said to us when we connected, and what was said, if anything.
type Said = (bool, Option<Offer>);

/// A flow whose handlers are not known yet.
#[derive(Debug)]
pub struct Undecided {
    agreeing: Arc<Agreeing>,
    to: SocketAddr,
    /// Bytes that each end of its chain holds.
    limit: usize,
}

impl Agreeing {
    /// On `terms` for `chain`, for connections to programs that listen at `ports` too, and to listeners
    /// of this process that are opened after this.
    ///
    /// # Errors
    /// A right is missing, or the kernel is too old.
    pub fn new(
        terms: Terms,
        chain: Factories,
        both_ends: Vec<bool>,
        ports: &Ports,
    ) -> Result<Agreeing> {
        let offers = Offers::attach(terms.offer().emit(), ports);
        let offers = offers.context("negotiate by an option of SYNs (--prefer, --require)")?;
        let (known, sharing) = (Mutex::default(), Mutex::default());
        let disagreed = Sparing::new(4);
        Ok(Agreeing { terms, chain, both_ends, offers, known, sharing, disagreed })
    }

    /// Begins to connect, and offers.
    ///
    /// # Errors
    /// As [`tcp::connect`]'s.
    pub fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        options: TcpOptions,
    ) -> io::Result<TcpStream> {
        Ok(tcp::connect_telling(to, from, options, Telling::Offer(&self.offers))?.0)
    }

    /// The handlers of flows to `to` that go over a connection that is there.
    pub fn shared(&self, to: SocketAddr) -> Option<Factories> {
        let chain = self.sharing().get(&to).cloned()?;
        let there = chain.iter().any(|factory| factory.reaches(&to.into()));
        there.then_some(chain)
    }

    fn share(&self, to: SocketAddr, chain: Factories) {
        let mut sharing = self.sharing();
        if sharing.len() >= KNOWN {
            sharing.retain(|to, chain| chain.iter().any(|factory| factory.reaches(&(*to).into())));
        }
        sharing.insert(to, chain);
    }

    fn sharing(&self) -> MutexGuard<'_, HashMap<SocketAddr, Factories>> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handlers for who has connected by a SYN with these headers.
    ///
    /// # Errors
    /// It may not be.
    pub fn accept(&self, syn: &[u8]) -> Result<Factories, Refusal> {
        self.settle(false, Offer::in_headers(syn))
    }

    /// The handlers for a connection of ours that is there.
    fn answered(&self, stream: impl AsFd) -> Result<Factories, Refusal> {
        let answer = self.offers.answer(stream.as_fd());
        self.settle(true, answer.and_then(|option| Offer::parse(&option)))
    }

    /// Chains that are made of the same are the same: connections of one flow may meet.
    fn settle(&self, connects: bool, theirs: Option<Offer>) -> Result<Factories, Refusal> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settled) = known.get(&(connects, theirs.clone())) {
            return settled.clone();
        }
        let settled = self.terms.settle(connects, theirs.as_ref()).map(|agreed| {
            let (ours, plain) = (self.terms.offer(), Offer::default());
            let theirs = theirs.as_ref().unwrap_or(&plain);
            let words = if connects { binding(ours, theirs) } else { binding(theirs, ours) };
            chosen(&self.chain, &self.both_ends, &agreed, &words)
        });
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert((connects, theirs), settled.clone());
        settled
    }
}

impl Undecided {
    /// A flow to `to`, each end of whose chain holds `limit` bytes.
    pub fn new(agreeing: Arc<Agreeing>, to: SocketAddr, limit: usize) -> Undecided {
        Undecided { agreeing, to, limit }
    }

    /// What stands between the ends of the flow whose connection, `server`, is there.
    ///
    /// # Errors
    /// The ends cannot agree, which the log is told.
    pub fn decide(&self, server: &Leg, now: Instant) -> io::Result<Middle> {
        let stream = server.tcp().ok_or(io::ErrorKind::Unsupported)?;
        let chain = self.agreeing.answered(stream).map_err(|refusal| {
            self.agreeing.disagreed.warn(self.to.ip(), format_args!("{}: {refusal}", self.to));
            io::Error::from(io::ErrorKind::PermissionDenied)
        })?;
        if let Some(relay) = Relay::of(&chain) {
            return Ok(Middle::Relay(relay));
        }
        let through = Through::new(chain.clone(), self.limit, (self.to.into(), None), now);
        let shares = chain.iter().any(|factory| factory.shares());
        match through {
            Some((through, Some((to, _)))) if to == Address::Ip(self.to) => {
                Ok(Middle::Through(Box::new(through)))
            }
            // It goes over a connection of several flows, which this one's is to be, or is there.
            Some((through, None)) if shares => {
                self.agreeing.share(self.to, chain);
                Ok(Middle::Through(Box::new(through)))
            }
            _ => Err(io::Error::other("the handlers lead elsewhere")),
        }
    }
}
