//! Check of the name of a TCP congestion control of the kernel.

use std::fs;
use std::net::TcpListener;

use anyhow::{Context, Result, anyhow};
use viaduct_sys::socket::tcp::LongHaul;

/// Checks that the kernel has, or can load, the congestion control `name`, which is the value of
/// `option`. Errors: the kernel has no such congestion control (the error lists the available
/// ones), or the socket for the check cannot be opened.
pub fn check(option: &str, name: &str) -> Result<()> {
    let probe = TcpListener::bind("127.0.0.1:0")
        .with_context(|| format!("{option}: cannot open a socket to check it"))?;
    let haul = LongHaul { congestion_control: Some(name.to_owned()), buffer: None };
    haul.apply(&probe).map_err(|_| {
        let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let known = known.unwrap_or_default();
        anyhow!("{option}: {name:?} is unknown here; there are {}", known.trim_end())
    })
}
