//! Which datagrams go as one message.

use std::net::SocketAddr;

/// Datagrams in one message, at most (the kernel's limit was 64 until 6.9).
const MAX_SEGMENTS: usize = 64;
/// Payload of one message, at most, bytes.
const MAX_MESSAGE: usize = 65_000;

/// Whether the datagrams of a refused message may still go one by one.
pub(super) fn concerns_segments(error: Option<i32>) -> bool {
    matches!(error, Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::EMSGSIZE))
}

/// Datagrams at the front that can go as one message: to one peer, of one length, but that the
/// last may be shorter.
pub(super) fn run(datagrams: &[(SocketAddr, &[u8])]) -> usize {
    let (peer, first) = datagrams[0];
    if first.is_empty() {
        return 1;
    }
    let most = (MAX_MESSAGE / first.len()).clamp(1, MAX_SEGMENTS);
    let equal = |(to, bytes): &&(SocketAddr, &[u8])| *to == peer && bytes.len() == first.len();
    let count = datagrams.iter().take(most).take_while(equal).count();
    let shorter = datagrams
        .get(count)
        .is_some_and(|(to, bytes)| *to == peer && (1..first.len()).contains(&bytes.len()));
    if shorter && count < most { count + 1 } else { count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn runs_end_with_the_peer_the_length_or_the_limit() {
        let long = [0_u8; 1400];
        let (a, b) = (peer(1), peer(2));
        assert_eq!(run(&[(a, &long[..]), (a, &long), (b, &long)]), 2);
        assert_eq!(run(&[(a, &long[..]), (a, &long[..9]), (a, &long[..9])]), 2);
        assert_eq!(run(&[(a, &long[..9]), (a, &long)]), 1);
        assert_eq!(run(&[(a, &[][..]), (a, &[])]), 1);
        assert_eq!(run(&[(a, &long[..]), (a, &[])]), 1);
        assert_eq!(run(&vec![(a, &long[..]); 100]), 46);
        assert_eq!(run(&vec![(a, &long[..10]); 100]), 64);
        assert_eq!(run(&[(a, &[0; 65_200][..])]), 1);
    }
}
