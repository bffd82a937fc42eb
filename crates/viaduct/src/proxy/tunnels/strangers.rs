//! Links that have arrived and have not shown yet whose they are: how many may wait, and which is let
//! go for one more. Nobody who only knocks keeps a peer out: a full house parts with its oldest.

use std::net::{IpAddr, Ipv6Addr};

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

/// Where a link comes from: an IPv4 address, or a /64 of IPv6, which one host may have all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::proxy) struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Source {
        Source(match address.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

/// Which of `waiting`, from the oldest to the newest, is let go so that one from `new` may wait; none
/// if there is room.
pub(super) fn in_the_way(
    waiting: &[(usize, Source)],
    new: Source,
    places: Places,
) -> Option<usize> {
    let own = waiting.iter().filter(|(_, source)| *source == new);
    let oldest = match own.clone().count() >= places.each {
        true => own.clone().next(),
        false => waiting.first().filter(|_| waiting.len() >= places.all),
    };
    oldest.map(|(key, _)| *key)
}

/// Whether whoever dials over UDP is to show first that it is where it says.
pub(super) fn is_crowded(waiting: usize, places: Places) -> bool {
    waiting >= places.each / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn a_source_is_an_address_or_a_network_of_ipv6() {
        assert_eq!(source("fd00:1::1"), source("fd00:1::ffff:2"));
        assert_ne!(source("fd00:1::1"), source("fd00:1:0:1::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_ne!(source("::ffff:10.0.0.1"), source("::ffff:10.0.0.2"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
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
}
