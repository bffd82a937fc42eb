//! Listeners of the control side whose address a reload may change: for metrics and for the
//! packet cache.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::cache_service::{CacheService, Prefixes, SharedStats};
use super::config::Config;
use super::status::CacheStats;
use super::workers::ToWorkers;
use crate::metrics::{self, Metrics, Page};

/// Listeners in use, and the services behind them.
pub struct Listeners {
    metrics: Option<TcpListener>,
    server: Metrics,
    /// Service of the packet cache, and a duplicate of its socket.
    cache: Option<(CacheService, Option<OwnedFd>)>,
    stats: SharedStats,
    /// Prefixes of this site, for the packet cache.
    prefixes: Prefixes,
    workers: ToWorkers,
}

impl Listeners {
    /// Creates the state, without a listener. `workers` are the threads that search the packet
    /// cache.
    pub fn new(workers: ToWorkers) -> Listeners {
        Listeners {
            metrics: None,
            server: Metrics::default(),
            cache: None,
            stats: SharedStats::default(),
            prefixes: Arc::new(Mutex::new(Vec::new())),
            workers,
        }
    }

    /// Replaces the listeners in use by those in `moved`, and applies the prefixes of `config`.
    pub fn replace(&mut self, moved: Moved, config: &Config) {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&config.prefixes);
        if let Some(metrics) = moved.metrics {
            self.metrics = metrics;
        }
        if let Some(socket) = moved.cache {
            let (prefixes, stats) = (&self.prefixes, &self.stats);
            self.cache = socket.map(|socket| {
                let (workers, copy) = (self.workers.clone(), socket.as_fd().try_clone_to_owned());
                let service = CacheService::open(socket, prefixes.clone(), workers, stats.clone());
                (service, copy.ok())
            });
        }
    }

    /// Duplicates of the sockets of the metrics and of the packet cache, for the handover to a new
    /// process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn export(&self) -> io::Result<[Option<OwnedFd>; 2]> {
        let metrics =
            self.metrics.as_ref().map(|of| of.as_fd().try_clone_to_owned()).transpose()?;
        let cache = self.cache.as_ref().and_then(|(_, socket)| socket.as_ref());
        Ok([metrics, cache.map(OwnedFd::try_clone).transpose()?])
    }

    /// Accepts the next client of the metrics. Without a listener, the future never completes.
    pub async fn accept(&self) -> TcpStream {
        metrics::accept(self.metrics.as_ref()).await
    }

    /// Answers the single request of `client` with `page`.
    pub fn answer(&self, client: TcpStream, page: Arc<Page>) {
        self.server.answer(client, page);
    }

    /// Counters of the packet cache's service.
    pub fn cache_stats(&self) -> CacheStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listeners at the new addresses of a config: open, but not in use yet. The outer `None` means
/// that the listener is kept; the inner `None` means that it is closed.
pub struct Moved {
    metrics: Option<Option<TcpListener>>,
    cache: Option<Option<UdpSocket>>,
}

impl Moved {
    /// Uses the sockets of another process ([`Listeners::export`]). Must be called in a Tokio
    /// runtime.
    ///
    /// # Errors
    /// The runtime cannot watch a descriptor.
    pub fn inherited([metrics, cache]: [Option<OwnedFd>; 2]) -> Result<Moved> {
        let metrics = metrics.map(|fd| TcpListener::from_std(fd.into())).transpose()?;
        let cache = cache.map(|fd| UdpSocket::from_std(fd.into())).transpose()?;
        Ok(Moved { metrics: Some(metrics), cache: Some(cache) })
    }

    /// Opens the listeners of `new` whose addresses differ from those of `old`. Errors: an address
    /// cannot be used.
    pub async fn open(old: Option<&Config>, new: &Config) -> Result<Moved> {
        let metrics = match new.metrics {
            at if old.is_some_and(|old| old.metrics == at) => None,
            at => Some(at.map(metrics::listen).transpose().context("[metrics] listen")?),
        };
        let cache = match new.cache {
            at if old.is_some_and(|old| old.cache == at) => None,
            at => Some(open_cache(at).await?),
        };
        Ok(Moved { metrics, cache })
    }
}

async fn open_cache(at: Option<SocketAddr>) -> Result<Option<UdpSocket>> {
    let Some(at) = at else { return Ok(None) };
    let bound = UdpSocket::bind(at).await;
    bound.map(Some).with_context(|| format!("[cache] listen: cannot use {at}"))
}
