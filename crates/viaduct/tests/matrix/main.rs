//! The matrix: real programs, unmodified, under `viaduct run`, each compared with itself run directly.
//!
//! ```text
//!                     direct     latency                  compress, crypt
//!   server            itself     under it, by cgroup      under them, by cgroup
//!     ▲
//!   client            itself     under it, by cgroup,     under them, by cgroup,
//!                                seccomp, preload         seccomp, preload
//! ```
//!
//! A row is a test, and a file of the shell's in `rows`: how its server and its client are called.
//! What a client says on its standard output and how it ends must be the same in all seven ways, and
//! the report must say that flows passed the handlers and none went direct.
#![allow(clippy::unwrap_used)] // a test may panic

mod ways;

/// The rows, by the name of their files.
macro_rules! rows {
    ($($name:ident)*) => {
        $(#[test]
        #[ignore = "some twenty programs: make matrix"]
        fn $name() {
            ways::compare(stringify!($name));
        })*
    };
}

rows! {
    curl wget wrk
    ssh ssh_remote git_ssh git_http rsync
    python_http python_asyncio python_multiprocessing
    node go java
    nc socat ftp ftp_active apt
    redis postgres iperf3
}
