//! The new process's side of an upgrade.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, getppid};
use tracing::warn;
use viaduct_proto::upgrade::{Message, Taker, TakerStep};
use viaduct_sys::socket::seqpacket;

use super::{Channel, START_TIMEOUT, TRANSFER_TIMEOUT};

/// Time within which an old process that has given up kills this one.
const GIVE_UP_TIME: Duration = Duration::from_millis(500);

/// Conversation with the old process.
#[derive(Debug)]
pub struct Takeover {
    channel: Channel,
    taker: Taker,
    /// Parent at the beginning: the old process.
    old: Option<Pid>,
}

impl Takeover {
    /// Begins the conversation over `socket`; the old process answers with a description of
    /// the service.
    ///
    /// # Errors
    /// The old process has ended.
    pub fn begin(socket: OwnedFd) -> Result<Takeover> {
        let channel = Channel::new(socket, START_TIMEOUT)?;
        channel.send(&Taker::hello(env!("CARGO_PKG_VERSION")), &[])?;
        Ok(Takeover { channel, taker: Taker::default(), old: getppid() })
    }

    /// Waits for the old process's next message.
    ///
    /// # Errors
    /// The old process has refused, has ended, or writes another format.
    pub fn next(&mut self) -> Result<(TakerStep, Vec<OwnedFd>)> {
        let received = self.channel.receive()?;
        let (message, fds) = received.context("the old process has ended")?;
        Ok((self.taker.handle_message(message)?, fds))
    }

    /// Returns `result`; tells the old process the error, if there is one.
    ///
    /// # Errors
    /// The error of `result`.
    pub fn or_refuse<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            // A record holds 1024 bytes of text, enough for these characters.
            let reason = format!("{error:#}").chars().take(250).collect();
            let _ = self.channel.send(&Message::Refused { reason }, &[]);
        })
    }

    /// Waits for `time`.
    ///
    /// # Errors
    /// The old process has ended meanwhile, or has refused.
    pub fn wait(&mut self, time: Duration) -> Result<()> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.channel.0, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(()),
                // The old process has nothing to say at this point.
                Ok(_) => return self.next().and_then(|_| bail!("a message out of order")),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the old process that everything is prepared. The old process answers with its state,
    /// which must not be used before [`Takeover::confirm`].
    ///
    /// # Errors
    /// The old process has ended.
    pub fn ready(&self) -> Result<()> {
        self.channel.send(&Message::Ready, &[])?;
        Ok(seqpacket::set_timeout(&self.channel.0, TRANSFER_TIMEOUT)?)
    }

    /// Tells the old process that this one serves from now on.
    pub fn confirm(self) {
        if let Err(error) = self.channel.send(&Message::Taken, &[]) {
            warn!("the old process has ended: {error:#}");
            // Unless the old process was killed, it has given up, and now kills this one.
            if getppid() == self.old {
                std::thread::sleep(GIVE_UP_TIME);
            }
        }
    }
}

/// Process ID of the old process, which has started this one.
///
/// # Errors
/// The old process has ended.
pub fn old_process() -> Result<u32> {
    let parent = getppid().ok_or_else(|| anyhow!("the old process has ended"))?;
    Ok(parent.as_raw_nonzero().get().cast_unsigned())
}
