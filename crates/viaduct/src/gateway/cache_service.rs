//! Service of the packet cache: a UDP socket at which the site's hosts request packets.
//!
//! ```text
//!   host ──query──▶ CacheService ──Command::Cache──▶ workers ──packets──▶ TUN ──▶ host
//!        ◀─answer──              ◀──────Found──────
//! ```
//!
//! Each query costs the packet threads time. The service therefore handles one query at a time, and
//! limits the number of queries and of examined packets per second. Rejected queries are counted,
//! never queued.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::status::CacheStats;
use super::workers::{ToWorkers, find_cached};
use viaduct_proto::repair::cache::Query;

/// Maximum number of queries that are looked up per second.
const MAX_QUERIES: u32 = 2_000;
/// Maximum number of cached packets that are examined per second: a fraction of a core's time.
const MAX_EXAMINED: usize = 4_000_000;
/// Maximum length of a query in bytes, enough for 64 strings of 63 bytes. Longer queries are
/// truncated.
const MAX_QUERY: usize = 4_096;

/// Counters, shared with the status page.
pub type SharedStats = Arc<Mutex<CacheStats>>;

/// Prefixes of the site, which a reload may change.
pub type Prefixes = Arc<Mutex<Vec<IpNet>>>;

/// Service that answers queries until it is dropped.
#[derive(Debug)]
pub struct CacheService(JoinHandle<()>);

impl CacheService {
    /// Starts the service for hosts of `prefixes` at `socket`.
    pub fn open(
        socket: UdpSocket,
        prefixes: Prefixes,
        workers: ToWorkers,
        stats: SharedStats,
    ) -> Self {
        CacheService(tokio::spawn(async move {
            let mut budget = Budget::new(Instant::now());
            let mut datagram = [0; MAX_QUERY];
            // Errors are ignored: they come from ICMP messages about answers to clients that no
            // longer exist.
            loop {
                let Ok((len, client)) = socket.recv_from(&mut datagram).await else { continue };
                let own = prefixes.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let query = accept(&own, client, &datagram[..len], &mut budget, &stats);
                let Some(query) = query else { continue };
                let Some(found) = find_cached(&workers, &query).await else { return };
                budget.spend(found.looked);
                lock(&stats).resent += found.resent as u64;
                let _ = socket.send_to(&found.answer(), client).await;
            }
        }))
    }
}

impl Drop for CacheService {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn lock(stats: &SharedStats) -> std::sync::MutexGuard<'_, CacheStats> {
    stats.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses a query, if its sender is a host of the site and the budget allows it.
fn accept(
    prefixes: &[IpNet],
    client: SocketAddr,
    datagram: &[u8],
    budget: &mut Budget,
    stats: &SharedStats,
) -> Option<Query> {
    let mut stats = lock(stats);
    // A dual-stack socket shows IPv4 hosts as mapped addresses.
    let client: IpAddr = client.ip().to_canonical();
    if !prefixes.iter().any(|prefix| prefix.contains(&client)) {
        stats.strangers += 1;
        return None;
    }
    let Some(query) = Query::parse(client, datagram) else {
        stats.malformed += 1;
        return None;
    };
    if !budget.allows(Instant::now()) {
        stats.limited += 1;
        return None;
    }
    stats.queries += 1;
    Some(query)
}

#[derive(Debug)]
struct Budget {
    since: Instant,
    queries: u32,
    examined: usize,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Budget { since: now, queries: MAX_QUERIES, examined: MAX_EXAMINED }
    }

    fn allows(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            *self = Budget::new(now);
        }
        if self.queries == 0 || self.examined == 0 {
            return false;
        }
        self.queries -= 1;
        true
    }

    fn spend(&mut self, examined: usize) {
        self.examined = self.examined.saturating_sub(examined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use viaduct_proto::repair::cache::Found;

    use crate::gateway::commands::{self, Command};

    const QUERY: &[u8] = b"VDC1\x11\x04\x13\x88\0\x08abcd";

    #[test]
    fn queries_and_searching_are_limited_per_second() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        assert_eq!((0..3_000).filter(|_| budget.allows(start)).count(), 2_000);
        let later = start + Duration::from_secs(1);
        assert!(budget.allows(later), "a new second");
        budget.spend(MAX_EXAMINED);
        assert!(!budget.allows(later), "the search budget is spent");
    }

    #[test]
    fn only_hosts_of_the_site_are_served() {
        let stats = SharedStats::default();
        let prefixes = ["10.1.0.0/16".parse().unwrap()];
        let mut budget = Budget::new(Instant::now());
        let mut accept = |from: &str, datagram: &[u8]| {
            accept(&prefixes, from.parse().unwrap(), datagram, &mut budget, &stats)
        };
        assert!(accept("10.1.2.3:99", QUERY).is_some());
        assert!(accept("[::ffff:10.1.2.3]:99", QUERY).is_some());
        assert!(accept("10.2.2.3:99", QUERY).is_none());
        assert!(accept("10.1.2.3:99", b"hello").is_none());
        let seen = *lock(&stats);
        assert_eq!((seen.queries, seen.strangers, seen.malformed), (2, 1, 1));
    }

    #[tokio::test]
    async fn the_reply_counts_the_packets_sent_again() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = socket.local_addr().unwrap();
        let (workers, commands): (Vec<_>, Vec<_>) =
            (0..2).map(|_| commands::channel().unwrap()).unzip();
        let stats = SharedStats::default();
        let prefixes = Arc::new(Mutex::new(vec!["127.0.0.0/8".parse().unwrap()]));
        let _service = CacheService::open(socket, prefixes, workers.into(), stats.clone());
        let answering = std::thread::spawn(move || {
            for (worker, commands) in commands.iter().enumerate() {
                commands.wait(&[], Duration::from_secs(10));
                let Some(Command::Cache(query, reply)) = commands.take() else {
                    panic!("a query is expected");
                };
                // The second worker has the packet.
                reply.send(Found { resent: worker * query.wanted.len(), looked: 7 }).unwrap();
            }
        });
        let host = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        host.send_to(QUERY, to).await.unwrap();
        let mut answer = [0; 64];
        let got = tokio::time::timeout(Duration::from_secs(10), host.recv(&mut answer));
        let len = got.await.unwrap().unwrap();
        assert_eq!(answer[..len], *b"VDC1\x01");
        assert_eq!(lock(&stats).resent, 1);
        answering.join().unwrap();
    }
}
