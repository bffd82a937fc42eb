//! The new process's side of an upgrade.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::getppid;
use tracing::warn;
use viaduct_proto::upgrade::{ListenRecord, Message, ServiceRecord, SynRecord, Taker, TakerStep};
use viaduct_sys::capture::syn::SynTap;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::nfqueue::NfQueue;
use viaduct_sys::socket::seqpacket;

use super::{Channel, START_TIMEOUT, TRANSFER_TIMEOUT};
use crate::engine::config::EngineConfig;
use crate::engine::listen_set::{ListenSet, SynSource};
use crate::engine::loops::Loops;

/// Maximum length of the config, in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Time in which an old process that has given up kills this one.
const GIVE_UP_TIME: Duration = Duration::from_millis(500);

/// Conversation with the old process.
#[derive(Debug)]
pub struct Takeover {
    channel: Channel,
    taker: Taker,
}

/// Everything of the old process but its flows.
#[derive(Debug)]
pub struct Inheritance {
    /// Text of the config that the old process runs with.
    pub config: Option<String>,
    /// Listener of the metrics.
    pub metrics: Option<TcpListener>,
    /// Locks of the journal's instances; `None` if there is no journal.
    locks: Option<Vec<(String, OwnedFd)>>,
    workers: Vec<(ListenRecord, Vec<OwnedFd>)>,
}

impl Takeover {
    /// Begins over `socket`, and receives the service.
    ///
    /// # Errors
    /// The old process writes another format, or has ended.
    pub fn begin(socket: OwnedFd) -> Result<(Takeover, Inheritance)> {
        let channel = Channel::new(socket, START_TIMEOUT)?;
        channel.send(&Taker::hello(env!("CARGO_PKG_VERSION")), &[])?;
        let mut takeover = Takeover { channel, taker: Taker::default() };
        let (step, fds) = takeover.next()?;
        match step {
            TakerStep::Prepare(service) => {
                let inheritance = takeover.or_refuse(Inheritance::of(service, fds))?;
                Ok((takeover, inheritance))
            }
            _ => bail!("the old process has sent no service"),
        }
    }

    /// Returns `result`; tells the old process the error, if there is one.
    ///
    /// # Errors
    /// The error of `result`.
    pub fn or_refuse<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            // A record holds 1024 bytes of text.
            let reason = format!("{error:#}").chars().take(250).collect();
            let _ = self.channel.send(&Message::Refused { reason }, &[]);
        })
    }

    /// Tells the old process that all is prepared, and gives the flows that it sends to `loops`.
    /// Returns their number. Nothing may touch the flows before [`Takeover::confirm`].
    ///
    /// # Errors
    /// The old process has ended before it had sent all, or a flow cannot be continued.
    pub fn take_flows(&mut self, loops: &mut Loops) -> Result<usize> {
        self.channel.send(&Message::Ready, &[])?;
        seqpacket::set_timeout(&self.channel.0, TRANSFER_TIMEOUT)?;
        let mut count = 0;
        loop {
            let (step, fds) = self.next()?;
            match step {
                TakerStep::Keep(worker, flows) => {
                    count += flows.len();
                    let restored = loops.restore(worker, &flows, fds);
                    self.or_refuse(restored)?;
                }
                TakerStep::Serve => return Ok(count),
                TakerStep::Prepare(_) => bail!("the old process has sent the service twice"),
            }
        }
    }

    /// Tells the old process that this one serves from now on.
    pub fn confirm(self) {
        if let Err(error) = self.channel.send(&Message::Taken, &[]) {
            // Either the old process was killed, or it has given up and now kills this one.
            warn!("the old process has ended: {error:#}");
            std::thread::sleep(GIVE_UP_TIME);
        }
    }

    fn next(&mut self) -> Result<(TakerStep, Vec<OwnedFd>)> {
        let received = self.channel.receive()?;
        let (message, fds) = received.context("the old process has ended")?;
        Ok((self.taker.handle_message(message)?, fds))
    }
}

impl Inheritance {
    fn of(service: ServiceRecord, fds: Vec<OwnedFd>) -> Result<Inheritance> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().context("a descriptor is missing");
        let config = if service.has_config { Some(config_text(next()?)?) } else { None };
        let metrics = if service.has_metrics { Some(TcpListener::from(next()?)) } else { None };
        let locks = service.locks.into_iter().map(|name| Ok((name, next()?)));
        let locks = locks.collect::<Result<Vec<_>>>()?;
        let locks = service.has_journal.then_some(locks);
        let workers = service.workers.into_iter().map(|record| {
            let count =
                usize::from(record.listeners) + usize::from(record.syns != SynRecord::Unseen);
            Ok((record, (0..count).map(|_| next()).collect::<Result<_>>()?))
        });
        let workers = workers.collect::<Result<_>>()?;
        Ok(Inheritance { config, metrics, locks, workers })
    }

    /// Listen sets for `config`. A queue of SYNs has the number `queue` and holds `held` SYNs.
    ///
    /// # Errors
    /// The old process listens elsewhere, or has another number of workers.
    pub fn listen_sets(
        &mut self,
        config: &EngineConfig,
        (queue, held): (u16, u32),
    ) -> Result<Vec<ListenSet>> {
        let found = self.workers.len();
        if found != config.workers as usize {
            bail!("workers: {found} run, and {} are configured; restart", config.workers);
        }
        let all = std::mem::take(&mut self.workers).into_iter().zip(0..);
        let set = |((record, fds), number): ((ListenRecord, Vec<OwnedFd>), u32)| {
            let mut fds = fds.into_iter();
            let listeners: Vec<TcpListener> =
                fds.by_ref().take(record.listeners.into()).map(TcpListener::from).collect();
            let at: Vec<_> =
                listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
            if at != config.listen {
                bail!("listen: {at:?} are open, and {:?} configured; restart", config.listen);
            }
            let syns = match (record.syns, fds.next()) {
                (SynRecord::Tap, Some(fd)) => SynSource::Tap(SynTap::inherited(fd)),
                (SynRecord::Queue, Some(fd)) => {
                    SynSource::Queue(NfQueue::inherited(fd, queue, held))
                }
                _ => SynSource::Unseen,
            };
            Ok(ListenSet { number, listeners, syns })
        };
        all.map(set).collect()
    }

    /// Journal of the old process, if it has one; its changes stay in place.
    ///
    /// # Errors
    /// The journal is not the old process's, or cannot be written.
    pub fn changes(&mut self, config: &EngineConfig) -> Result<Option<Changes>> {
        let Some(locks) = self.locks.take() else { return Ok(None) };
        let parent = getppid().ok_or_else(|| anyhow!("the old process has ended"))?;
        let pid = parent.as_raw_nonzero().get().cast_unsigned();
        Ok(Some(Changes::take_over(&config.journal(), pid, locks)?))
    }
}

fn config_text(fd: OwnedFd) -> Result<String> {
    let file = File::from(fd);
    let length = file.metadata()?.len();
    if length > MAX_CONFIG {
        bail!("the config of the old process is longer than {MAX_CONFIG} bytes");
    }
    let mut text = vec![0; usize::try_from(length)?];
    file.read_exact_at(&mut text, 0)?;
    Ok(String::from_utf8(text)?)
}
