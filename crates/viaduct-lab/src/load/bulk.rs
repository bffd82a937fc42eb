//! Bulk flows without a rate limit; the receiver's kernel drops the data.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use super::{Ask, LoadState};

/// Maximum bytes dropped per call.
const CHUNK: usize = 1 << 20;

pub(super) fn run(to: SocketAddr, flows: usize, state: &LoadState) -> io::Result<()> {
    thread::scope(|scope| {
        let flows: Vec<_> = (0..flows).map(|_| scope.spawn(|| receive(to, state))).collect();
        let panicked = |_| Err(io::Error::other("a flow's thread panicked"));
        flows.into_iter().try_for_each(|flow| flow.join().unwrap_or_else(panicked))
    })
}

fn receive(to: SocketAddr, state: &LoadState) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    stream.write_all(Ask::Endless.text())?;
    let mut buffer = vec![0; CHUNK];
    while !state.stop.load(Relaxed) {
        // For TCP, TRUNC makes the kernel count and drop the bytes.
        match recv(&stream, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, bytes)) => drop(state.done.fetch_add(bytes as u64, Relaxed)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
