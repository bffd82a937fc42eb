//! Connections with one small request each; a fixed number is open at any time.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::crowd::{Crowd, News};
use super::{Ask, LoadState};

pub(super) fn run(to: SocketAddr, at_once: usize, state: &LoadState) -> io::Result<()> {
    let mut crowd = Crowd::new(to, Ask::Little)?;
    for _ in 0..at_once {
        crowd.begin()?;
    }
    let mut news = Vec::new();
    while !state.stop.load(Relaxed) {
        crowd.turn(Duration::from_millis(50), &mut news)?;
        for (n, said) in news.drain(..) {
            match said {
                News::Answered => continue,
                News::Ended => state.done.fetch_add(1, Relaxed),
                News::Failed => state.failed.fetch_add(1, Relaxed),
            };
            crowd.replace(n)?;
        }
    }
    Ok(())
}
