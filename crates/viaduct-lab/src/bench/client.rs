//! Benchmark clients: they send the request and measure.

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Load;
use super::content::{Content, Source};
use super::request::{Kind, Request};
use super::stream::{Place, Stream};

/// Number of reads or round trips between two checks of the elapsed time.
const OFTEN: u64 = 32;
/// Interval between the points of a trace.
const TICK: Duration = Duration::from_millis(100);

/// Measures the bytes per second that can be read.
pub(super) fn read(load: &Load) -> io::Result<f64> {
    let mut stream = ask(load, Kind::Read)?;
    let mut buffer = vec![0; load.block as usize];
    rate(load, move || match stream.read(&mut buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(bytes as u64),
    })
}

/// Measures round trips per second, of one byte each.
pub(super) fn volley(load: &Load) -> io::Result<f64> {
    let mut stream = ask(load, Kind::Volley)?;
    stream.set_nodelay()?;
    let mut byte = [0x5a];
    rate(load, move || {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        Ok(1)
    })
}

/// Measures the bytes per second that the server reads while the client writes. The server's clock
/// starts at the first byte: the warm-up and the idle seconds of `load` have no effect.
pub(super) fn write(load: &Load) -> io::Result<f64> {
    let mut stream = ask(load, Kind::Write)?;
    let (mut block, mut source) = (vec![0x5a; load.block as usize], Source::new(load.content));
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < load.time.seconds {
        source.fill(&mut block);
        stream.write_all(&block)?;
    }
    stream.end()?;
    let mut answer = [[0; 8]; 2];
    stream.read_exact(answer.as_flattened_mut())?;
    let [bytes, nanos] = answer.map(u64::from_be_bytes);
    Ok(bytes as f64 / (nanos as f64 / 1e9))
}

/// Reads random bytes and prints their trace: elapsed milliseconds and bytes so far, one line per
/// point. Fails if the connection broke or a byte differs from the byte that the server sent.
pub(super) fn fetch(to: &Place, bytes: u64) -> Result<()> {
    let thousands = u32::try_from(bytes / 1000)?;
    let content = Content::Random;
    let begin = Instant::now();
    let mut stream = to.connect()?;
    let request = Request { kind: Kind::Read, content, block: 64 << 10, thousands };
    stream.write_all(&request.to_bytes())?;
    let (mut source, mut came) = (Source::new(content), 0_u64);
    let (mut expected, mut buffer) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut next = TICK;
    while came < u64::from(thousands) * 1000 {
        // Received bytes are compared in blocks of the size in which the server generated them.
        let at = (came % buffer.len() as u64) as usize;
        if at == 0 {
            source.fill(&mut expected);
        }
        let read = stream.read(&mut buffer[at..])?;
        ensure!(read > 0, "the connection ended after {came} bytes");
        ensure!(buffer[at..at + read] == expected[at..at + read], "wrong bytes after {came}");
        came += read as u64;
        while begin.elapsed() >= next {
            println!("{} {came}", next.as_millis());
            next += TICK;
        }
    }
    println!("{} {came}", begin.elapsed().as_millis());
    ensure!(stream.read(&mut [0])? == 0, "more bytes arrived than were requested");
    Ok(())
}

fn ask(load: &Load, kind: Kind) -> io::Result<Stream> {
    let mut stream = load.to.connect()?;
    let Load { block, content, .. } = *load;
    stream.write_all(&Request { kind, content, block, thousands: 0 }.to_bytes())?;
    Ok(stream)
}

/// Measures the sum of the counts that `work` returns, per second, after the warm-up.
fn rate(load: &Load, mut work: impl FnMut() -> io::Result<u64>) -> io::Result<f64> {
    let (warm_up, seconds) = load.time.spans();
    let mut during = |span| -> io::Result<f64> {
        let (begin, mut done, mut n) = (Instant::now(), 0, 0_u64);
        loop {
            done += work()?;
            n += 1;
            if n.is_multiple_of(OFTEN) || n < OFTEN {
                let took = begin.elapsed();
                if took >= span {
                    return Ok(done as f64 / took.as_secs_f64());
                }
            }
        }
    };
    during(warm_up)?;
    let hold = Duration::from_secs_f64(load.hold);
    thread::sleep(hold);
    let rate = during(seconds)?;
    thread::sleep(hold);
    Ok(rate)
}
