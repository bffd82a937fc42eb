//! Quotas of descriptors, so that no part of the process can exhaust the descriptors of another
//! part.
//!
//! ```text
//!   limit  =  sockets of all kinds | files of Trickles' threads | TCP connections, two each
//! ```

use tracing::warn;
use viaduct_sys::process::raise_fd_limit;

use super::file_cache;

/// Descriptors of the process itself: sockets, pipes, a journal, clients of the status socket
/// and of the metrics.
const PROCESS_DESCRIPTORS: u64 = 24;
const THREAD_DESCRIPTORS: u64 = 16;
/// Minimum number of open files for each thread, which is usually sufficient for one request.
const MIN_FILES: u64 = 8;

/// Quotas of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Maximum number of open files for each of Trickles' threads.
    pub files: usize,
    /// Maximum number of concurrent TCP connections.
    pub connections: u32,
}

/// Divides the descriptors of this process among `threads` threads and at most `connections`
/// connections. Logs a warning if they are not enough for `connections`.
pub fn divide(threads: u32, connections: u32) -> Quotas {
    let most = raise_fd_limit();
    let quotas = quotas(most, threads, connections);
    if quotas.connections < connections {
        warn!(
            "{most} descriptors are allowed, enough for {} connections over TCP at a time, not for \
             {connections}: raise the limit (ulimit -n, LimitNOFILE=), or lower --max-connections",
            quotas.connections
        );
    }
    quotas
}

fn quotas(most: u64, threads: u32, connections: u32) -> Quotas {
    let threads = u64::from(threads);
    let left = most.saturating_sub(PROCESS_DESCRIPTORS + THREAD_DESCRIPTORS * threads);
    let files = (left / 4 / threads.max(1)).clamp(MIN_FILES, file_cache::MAX_FILES as u64);
    let fit = left.saturating_sub(files * threads) / 2;
    let fit = u32::try_from(fit).unwrap_or(u32::MAX).max(1);
    Quotas { files: files as usize, connections: connections.min(fit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_quotas_are_as_requested_if_there_are_enough_descriptors_and_none_is_zero() {
        let of = |most, threads, connections| {
            let Quotas { files, connections } = quotas(most, threads, connections);
            (files, connections)
        };
        assert_eq!(of(1 << 20, 4, 4096), (256, 4096));
        assert_eq!(of(1024, 1, 4096), (246, 369));
        assert_eq!(of(1024, 0, 400), (250, 400));
        assert_eq!(of(64, 1, 4096), (8, 8));
        assert_eq!(of(10, 64, 4096), (8, 1));
    }
}
