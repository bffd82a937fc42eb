//! Links that have arrived and have not shown yet whose they are: how many may wait, and which is let
//! go for one more. Nobody who only knocks keeps a peer out: where all places are taken, the source with
//! the most of them loses its oldest link.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::source::Source;

/// Bytes that the links of one source may hold before their ends have shown a key, by each carrier.
const MAX_SOURCE_BYTES: usize = 2 << 20;
/// Bytes of all such links of a carrier.
const MAX_BYTES: usize = 8 << 20;
/// At most as many links of one source as one tunnel may have.
const MAX_SOURCE_LINKS: usize = 64;

/// Places for links whose ends have not shown a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    each: usize,
    all: usize,
}

/// Over TCP: a socket, the handshake, and one read.
pub(super) const TCP: Places = Places::of(16 << 10);
/// Over QUIC: a connection with its TLS, what its windows and buffers can hold, and the datagrams in
/// which that came.
pub(super) const QUIC: Places = Places::of(64 << 10);

impl Places {
    /// For links that hold so many bytes each, at most.
    const fn of(bytes: usize) -> Places {
        let each = MAX_SOURCE_BYTES / bytes;
        let each = if each < MAX_SOURCE_LINKS { each } else { MAX_SOURCE_LINKS };
        Places { each, all: MAX_BYTES / bytes }
    }
}

/// The link of `waiting`, from the oldest to the newest, that is closed so that one from `new` may wait; `None`
/// if there is room.
pub(super) fn in_the_way(
    waiting: &[(usize, Source)],
    new: Source,
    places: Places,
) -> Option<usize> {
    let mut links: HashMap<Source, usize> = HashMap::new();
    for (_, source) in waiting {
        *links.entry(*source).or_default() += 1;
    }
    let loser = match links.get(&new).is_some_and(|own| *own >= places.each) {
        true => new,
        false if waiting.len() < places.all => return None,
        // Of several, that of the oldest link.
        false => waiting.iter().min_by_key(|(_, source)| Reverse(links[source]))?.1,
    };
    waiting.iter().find(|(_, source)| *source == loser).map(|(key, _)| *key)
}

/// Whether whoever dials over UDP is to show first that it is where it says.
pub(super) fn is_crowded(waiting: usize, places: Places) -> bool {
    waiting >= places.each / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        text.parse::<std::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn whoever_has_too_many_loses_the_oldest_and_nobody_else_does() {
        let bad = source("10.0.0.9");
        let mut waiting = vec![(7, source("10.0.0.1"))];
        waiting.extend((100..100 + QUIC.each).map(|key| (key, bad)));
        assert_eq!(in_the_way(&waiting, bad, QUIC), Some(100));
        assert_eq!(in_the_way(&waiting, source("10.0.0.1"), QUIC), None);
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_goes() {
        let sources = (0..QUIC.all).map(|n| source(&format!("10.0.{}.{}", n / 256, n % 256)));
        let waiting: Vec<_> = (1000..).zip(sources).collect();
        assert_eq!(in_the_way(&waiting[1..], source("10.9.9.9"), QUIC), None);
        assert_eq!(in_the_way(&waiting, source("10.9.9.9"), QUIC), Some(1000));
        assert_eq!(in_the_way(&waiting, waiting[5].1, QUIC), Some(1000));
    }

    #[test]
    fn where_all_places_are_taken_the_source_with_the_most_loses_one() {
        let (peer, bad) = (source("10.0.0.1"), source("10.9.9.9"));
        let others = (2..QUIC.all).map(|n| source(&format!("10.0.{}.{}", n / 256, n % 256)));
        let mut waiting: Vec<_> = (0..).zip([peer].into_iter().chain(others)).collect();
        waiting.truncate(QUIC.all - QUIC.each);
        waiting.extend((1000..1000 + QUIC.each).map(|key| (key, bad)));
        assert_eq!(in_the_way(&waiting, source("10.8.8.8"), QUIC), Some(1000));
    }
}
