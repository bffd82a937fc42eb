//! Limits of accepted links whose peer has not authenticated: the maximum number of such links, and
//! the choice of the link that is dropped for a new one. Clients that connect but do not
//! authenticate cannot keep peers out: when the limit is reached, the oldest link of the source
//! with the most links is dropped.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::source::Source;

/// Maximum number of links of one source: as many as one tunnel may have.
const MAX_SOURCE_LINKS: usize = 64;

/// Maximum number of unauthenticated links: of one source, and of all sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkLimits {
    each: usize,
    all: usize,
}

/// Memory of a link over TCP, in bytes: a socket, a TLS connection, and the 8 KiB that the peer may
/// send.
const TCP: usize = 32 << 10;
/// Memory of a link over QUIC, in bytes: a connection with its TLS state, full windows and buffers,
/// and the datagrams in which this data arrived.
const QUIC: usize = 64 << 10;

/// Memory limits of unauthenticated links, in bytes, for each transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrangerMemory {
    /// Limit for one source.
    pub source: usize,
    /// Limit for all sources together.
    pub all: usize,
}

impl Default for StrangerMemory {
    /// 2 MiB for one source, 8 MiB for all.
    fn default() -> StrangerMemory {
        StrangerMemory { source: 2 << 20, all: 8 << 20 }
    }
}

impl StrangerMemory {
    /// Number of links for which the memory is sufficient.
    pub(super) fn limits(self, quic: bool) -> LinkLimits {
        let link = if quic { QUIC } else { TCP };
        let each = (self.source / link).clamp(1, MAX_SOURCE_LINKS);
        LinkLimits { each, all: (self.all / link).max(1) }
    }
}

/// Returns the link to close to make room for a link from source `new`; `None` if there is room.
/// `waiting` is in order of age, the oldest first.
pub(super) fn link_to_drop(
    waiting: &[(usize, Source)],
    new: Source,
    limits: LinkLimits,
) -> Option<usize> {
    let mut links: HashMap<Source, usize> = HashMap::new();
    for (_, source) in waiting {
        *links.entry(*source).or_default() += 1;
    }
    let loser = match links.get(&new).is_some_and(|own| *own >= limits.each) {
        true => new,
        false if waiting.len() < limits.all => return None,
        // Among sources with equally many links, the source with the oldest link loses it.
        false => waiting.iter().min_by_key(|(_, source)| Reverse(links[source]))?.1,
    };
    waiting.iter().find(|(_, source)| *source == loser).map(|(key, _)| *key)
}

/// Returns whether diallers over QUIC must first prove their address.
pub(super) fn is_crowded(waiting: usize, limits: LinkLimits) -> bool {
    waiting >= limits.each / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: StrangerMemory = StrangerMemory { source: 2 << 20, all: 8 << 20 };

    #[test]
    fn memory_is_shared_out_to_links() {
        let [tcp, quic] = [false, true].map(|quic| MEMORY.limits(quic));
        assert_eq!((tcp.each, tcp.all, quic.each, quic.all), (64, 256, 32, 128));
        let least = StrangerMemory { source: 64 << 10, all: 64 << 10 }.limits(true);
        assert_eq!((least.each, least.all), (1, 1));
    }

    fn source(text: &str) -> Source {
        text.parse::<std::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn only_the_source_with_too_many_links_loses_its_oldest() {
        let quic = MEMORY.limits(true);
        let bad = source("10.0.0.9");
        let mut waiting = vec![(7, source("10.0.0.1"))];
        waiting.extend((100..100 + quic.each).map(|key| (key, bad)));
        assert_eq!(link_to_drop(&waiting, bad, quic), Some(100));
        assert_eq!(link_to_drop(&waiting, source("10.0.0.1"), quic), None);
    }

    #[test]
    fn at_the_limit_the_oldest_link_is_dropped() {
        let quic = MEMORY.limits(true);
        let sources = (0..quic.all).map(|n| source(&format!("10.0.{}.{}", n / 256, n % 256)));
        let waiting: Vec<_> = (1000..).zip(sources).collect();
        assert_eq!(link_to_drop(&waiting[1..], source("10.9.9.9"), quic), None);
        assert_eq!(link_to_drop(&waiting, source("10.9.9.9"), quic), Some(1000));
        assert_eq!(link_to_drop(&waiting, waiting[5].1, quic), Some(1000));
    }

    #[test]
    fn at_the_limit_the_source_with_the_most_links_loses_one() {
        let quic = MEMORY.limits(true);
        let (peer, bad) = (source("10.0.0.1"), source("10.9.9.9"));
        let others = (2..quic.all).map(|n| source(&format!("10.0.{}.{}", n / 256, n % 256)));
        let mut waiting: Vec<_> = (0..).zip([peer].into_iter().chain(others)).collect();
        waiting.truncate(quic.all - quic.each);
        waiting.extend((1000..1000 + quic.each).map(|key| (key, bad)));
        assert_eq!(link_to_drop(&waiting, source("10.8.8.8"), quic), Some(1000));
    }
}
