//! Costs of opening and closing connections, and of holding many open.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use viaduct_sys::socket::tcp;

use super::stream::Place;

/// Maximum number of connections that a server holds; beyond it, the oldest are closed.
const HELD: usize = 12_000;
/// Number of closes between two checks of the elapsed time.
const AT_ONCE: u32 = 100;

/// Accepts connections and holds them open.
pub(super) fn hold(at: &Place) -> Result<()> {
    let listener = TcpListener::bind(address(at)?)?;
    let mut held = VecDeque::new();
    loop {
        held.push_back(listener.accept()?.0);
        if held.len() > HELD {
            held.pop_front();
        }
    }
}

/// Connects and closes repeatedly; returns the connections per second.
pub(super) fn connect(to: &Place, (warm_up, seconds): (Duration, Duration)) -> Result<f64> {
    let to = address(to)?;
    rate(warm_up, seconds, 1, || {
        let stream = TcpStream::connect(to)?;
        // A reset leaves no TIME_WAIT; otherwise the ports would soon be exhausted.
        tcp::reset_on_close(&stream)
    })
}

/// Opens and closes a descriptor that is not a socket; returns the closes per second.
pub(super) fn close((warm_up, seconds): (Duration, Duration)) -> Result<f64> {
    let file = File::open("/dev/null")?;
    rate(warm_up, seconds, AT_ONCE, || file.try_clone().map(drop))
}

/// Reads lines `short N` or `held N` from standard input. Opens N connections for each, which it
/// closes immediately (`short`) or holds open (`held`), and then prints the line. Returns at the
/// end of the input.
pub(super) fn flows(to: &Place) -> Result<()> {
    let to = address(to)?;
    let mut held = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (what, count) = line.split_once(' ').context("a line is not `short N` or `held N`")?;
        for _ in 0..count.parse::<u32>()? {
            let stream = TcpStream::connect(to)?;
            match what {
                "held" => held.push(stream),
                _ => tcp::reset_on_close(&stream)?,
            }
        }
        println!("{line}");
        io::stdout().flush()?;
    }
    Ok(())
}

fn rate(
    warm_up: Duration,
    seconds: Duration,
    at_once: u32,
    mut act: impl FnMut() -> io::Result<()>,
) -> Result<f64> {
    let mut count = |lasting: Duration| -> io::Result<f64> {
        let (begun, mut times) = (Instant::now(), 0_u64);
        while begun.elapsed() < lasting {
            (0..at_once).try_for_each(|_| act())?;
            times += u64::from(at_once);
        }
        Ok(times as f64 / begun.elapsed().as_secs_f64())
    };
    count(warm_up)?;
    Ok(count(seconds)?)
}

fn address(place: &Place) -> Result<std::net::SocketAddr> {
    match place {
        Place::Ip(at) => Ok(*at),
        Place::Path(_) => bail!("an address and a port are needed, not a path"),
    }
}
