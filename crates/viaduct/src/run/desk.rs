//! A desk: where processes of this run ask one thing each, by records.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tracing::{debug, warn};
use viaduct_sys::records;

use super::admission::admits;

/// Who has come and asked nothing yet, at most; of more, the first has to go.
const WAITING: usize = 4096;
/// After an error of accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Lets `answer` answer whoever comes to `listener`, for as long as the process runs. It gives back who
/// has asked nothing yet.
pub fn serve(listener: &OwnedFd, mut answer: impl FnMut(OwnedFd) -> Option<OwnedFd>) {
    let mut asking: VecDeque<OwnedFd> = VecDeque::new();
    loop {
        loop {
            match records::accept(listener) {
                Ok((socket, peer)) if admits(peer) => asking.push_back(socket),
                // Its close tells it: no other user's programs are wrapped here.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    debug!("accept: {error}");
                    thread::sleep(PAUSE);
                    break;
                }
            }
        }
        asking = asking.into_iter().filter_map(&mut answer).collect();
        asking.drain(..asking.len().saturating_sub(WAITING));
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(asking.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        if let Err(error) = poll(&mut fds, None)
            && error != rustix::io::Errno::INTR
        {
            return warn!("programs cannot be heard any more: {error}");
        }
    }
}
