//! Benchmark server: one thread per connection.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Instant;

use super::content::Source;
use super::request::{Kind, Request};
use super::stream::{Place, Stream};

/// Serves at `at` until killed.
pub(super) fn run(at: &Place) -> io::Result<()> {
    let listener = at.listen()?;
    loop {
        let stream = listener.accept()?;
        // The client reports errors of the connection.
        thread::spawn(move || drop(serve(stream)));
    }
}

fn serve(mut stream: Stream) -> io::Result<()> {
    let request = Request::read(&mut stream)?;
    match request.kind {
        Kind::Read => pour(stream, request),
        Kind::Write => count(stream, request.block as usize),
        Kind::Volley => echo(stream),
    }
}

/// Writes the requested number of bytes in blocks; without end if the number is 0.
fn pour(mut stream: Stream, request: Request) -> io::Result<()> {
    let (mut block, mut source) =
        (vec![0x5a; request.block as usize], Source::new(request.content));
    let mut left = match request.thousands {
        0 => u64::MAX,
        thousands => u64::from(thousands) * 1000,
    };
    while left > 0 {
        let length = block.len().min(left.try_into().unwrap_or(usize::MAX));
        source.fill(&mut block[..length]);
        stream.write_all(&block[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Receives and counts bytes, and reports two numbers: the bytes after the first read, and the
/// nanoseconds from the first read to the last.
fn count(mut stream: Stream, block: usize) -> io::Result<()> {
    let mut buffer = vec![0; block];
    stream.read_exact(&mut buffer[..1])?;
    let (first, mut last, mut bytes) = (Instant::now(), Instant::now(), 0_u64);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        (last, bytes) = (Instant::now(), bytes + read as u64);
    }
    let nanos = (last - first).as_nanos() as u64;
    stream.write_all(&[bytes.to_be_bytes(), nanos.to_be_bytes()].concat())
}

fn echo(mut stream: Stream) -> io::Result<()> {
    stream.set_nodelay()?;
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
}
