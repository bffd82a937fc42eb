//! Plain relay, which writes what it has read: the proxy of the paper's configurations 2 and 3.
//! These configurations differ only in the sockets at the relay's ends, TCP or UNIX-domain.

use std::io::{self, Read, Write};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};

use super::stream::{Place, Stream};

/// Buffer size: bytes per read.
const BUFFER: usize = 64 << 10;

/// Relays connections from `at` to `to` until killed; one thread per connection.
pub(super) fn run(at: &Place, to: &Place) -> io::Result<()> {
    let listener = at.listen()?;
    loop {
        let (client, to) = (listener.accept()?, to.clone());
        // The client and the server notice a broken connection themselves.
        thread::spawn(move || drop(to.connect().and_then(|server| relay([client, server]))));
    }
}

/// Bytes in transit in one direction.
struct Direction {
    buffer: Vec<u8>,
    /// Range of the buffer that has not been written yet.
    pending: std::ops::Range<usize>,
    /// Set at the end of the source's stream.
    ended: bool,
}

fn relay(mut ends: [Stream; 2]) -> io::Result<()> {
    for end in &ends {
        end.set_nonblocking()?;
        end.set_nodelay()?;
    }
    let direction = || Direction { buffer: vec![0; BUFFER], pending: 0..0, ended: false };
    let mut directions = [direction(), direction()];
    while directions.iter().any(|direction| !direction.ended || !direction.pending.is_empty()) {
        let wants = [0, 1].map(|n: usize| directions[n].reads() | directions[1 - n].writes());
        let mut polled = [0, 1].map(|n| PollFd::new(&ends[n], wants[n]));
        poll(&mut polled, None)?;
        let [first, second] = &mut ends;
        directions[0].step(first, second)?;
        directions[1].step(second, first)?;
    }
    Ok(())
}

impl Direction {
    fn reads(&self) -> PollFlags {
        if self.pending.is_empty() && !self.ended { PollFlags::IN } else { PollFlags::empty() }
    }

    fn writes(&self) -> PollFlags {
        if self.pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT }
    }

    fn step(&mut self, from: &mut Stream, to: &mut Stream) -> io::Result<()> {
        if self.pending.is_empty() && !self.ended {
            let Some(read) = unless_blocked(from.read(&mut self.buffer))? else { return Ok(()) };
            self.pending = 0..read;
            if read == 0 {
                self.ended = true;
                return to.end();
            }
        }
        if !self.pending.is_empty()
            && let Some(written) = unless_blocked(to.write(&self.buffer[self.pending.clone()]))?
        {
            self.pending.start += written;
        }
        Ok(())
    }
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}
