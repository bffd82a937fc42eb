//! What opening and closing costs, and what is held when much is open.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use viaduct_sys::tcp;

use super::stream::Place;

/// Connections that a server holds; of more, the first are closed.
const HELD: usize = 12_000;
/// Closes between two looks at the clock.
const AT_ONCE: u32 = 100;

/// Takes connections and holds them.
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

/// Connects and closes; how often a second.
pub(super) fn connect(to: &Place, (warm_up, seconds): (Duration, Duration)) -> Result<f64> {
    let to = address(to)?;
    rate(warm_up, seconds, 1, || {
        let stream = TcpStream::connect(to)?;
        // Nothing of it is to stay, or there would soon be no port left.
        tcp::reset_on_close(&stream)
    })
}

/// Opens a file that has nothing to do with networks and closes it; how often a second.
pub(super) fn close((warm_up, seconds): (Duration, Duration)) -> Result<f64> {
    let file = File::open("/dev/null")?;
    rate(warm_up, seconds, AT_ONCE, || file.try_clone().map(drop))
}

/// For each line of its input, `short N` or `held N`: connects so often and closes at once, or does not
/// close. It says so when that is done, and ends with its input.
pub(super) fn flows(to: &Place) -> Result<()> {
    let to = address(to)?;
    let mut held = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (what, count) = line.split_once(' ').context("short N, or held N")?;
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
