//! Runs of datagrams that can be sent as one message.

/// Max payload of one message in bytes.
const MAX_MESSAGE: usize = 65_000;

/// Returns whether the datagrams of a message that failed with `error` are to be sent one by one.
pub(super) fn concerns_segments(error: Option<i32>) -> bool {
    matches!(error, Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::EMSGSIZE))
}

/// Returns the number of datagrams at the front that can be sent as one message, at most
/// `segments`. All must have the same peer and length, except that the last one may be shorter.
/// `datagrams` yields peers and lengths.
pub(super) fn run<P: PartialEq>(
    mut datagrams: impl Iterator<Item = (P, usize)>,
    segments: usize,
) -> usize {
    let Some((peer, length)) = datagrams.next().filter(|(_, length)| *length > 0) else { return 1 };
    let most = (MAX_MESSAGE / length).clamp(1, segments);
    let mut count = 1;
    for (to, other) in datagrams.take(most - 1) {
        let fits = to == peer && (1..=length).contains(&other);
        count += usize::from(fits);
        if !fits || other < length {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn runs_end_with_the_peer_the_length_or_the_limit() {
        let long = [0_u8; 1400];
        let (a, b) = (peer(1), peer(2));
        let first = |datagrams: &[(SocketAddr, &[u8])]| {
            run(datagrams.iter().map(|(to, bytes)| (to, bytes.len())), 64)
        };
        assert_eq!(first(&[(a, &long[..]), (a, &long), (b, &long)]), 2);
        assert_eq!(first(&[(a, &long[..]), (a, &long[..9]), (a, &long[..9])]), 2);
        assert_eq!(first(&[(a, &long[..9]), (a, &long)]), 1);
        assert_eq!(first(&[(a, &[][..]), (a, &[])]), 1);
        assert_eq!(first(&[(a, &long[..]), (a, &[])]), 1);
        assert_eq!(first(&vec![(a, &long[..]); 100]), 46);
        assert_eq!(first(&vec![(a, &long[..10]); 100]), 64);
        assert_eq!(first(&[(a, &[0; 65_200][..])]), 1);
    }
}
