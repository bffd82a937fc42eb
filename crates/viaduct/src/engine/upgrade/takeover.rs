//! The new process's side of a proxy's upgrade.

use std::net::TcpListener;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use viaduct_proto::upgrade::{ListenRecord, ServiceRecord, SynRecord, TakerStep};
use viaduct_sys::capture::syn::SynTap;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::nfqueue::NfQueue;

use crate::engine::config::EngineConfig;
use crate::engine::listen_set::{ListenSet, SynSource};
use crate::engine::loops::Loops;
use crate::handover::{Takeover, config_text, old_process};
use crate::tunnel::InheritedTunnels;

/// Everything that the old process hands over, except its flows.
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

/// Tells the old process that everything is prepared, and adds the flows that the old process then
/// sends to `loops`. Returns their number. Nothing may touch the flows before
/// [`Takeover::confirm`].
///
/// # Errors
/// The old process has ended before it had sent everything, or a flow cannot be continued.
pub fn take_flows(takeover: &mut Takeover, loops: &mut Loops) -> Result<usize> {
    takeover.ready()?;
    let mut count = 0;
    loop {
        let (step, fds) = takeover.next()?;
        match step {
            TakerStep::Keep(worker, flows) => {
                count += flows.len();
                let restored = loops.restore(worker, &flows, fds);
                takeover.or_refuse(restored)?;
            }
            TakerStep::Serve => return Ok(count),
            _ => bail!("the old process has sent something other than flows"),
        }
    }
}

impl Inheritance {
    /// Receives the service from the old process.
    ///
    /// # Errors
    /// The old process has ended, or is not a proxy.
    pub fn receive(takeover: &mut Takeover) -> Result<Inheritance> {
        match takeover.next()? {
            (TakerStep::Prepare(service), fds) => takeover.or_refuse(Inheritance::of(service, fds)),
            _ => bail!("the old process has sent no service"),
        }
    }

    fn of(service: ServiceRecord, fds: Vec<OwnedFd>) -> Result<Inheritance> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().context("a descriptor is missing");
        let config = if service.has_config { Some(config_text(next()?)?) } else { None };
        let metrics = if service.has_metrics { Some(TcpListener::from(next()?)) } else { None };
        let locks = service.locks.into_iter().map(|name| Ok((name, next()?)));
        let locks = locks.collect::<Result<Vec<_>>>()?;
        let locks = service.has_journal.then_some(locks);
        let workers = service.workers.into_iter().map(|record| {
            Ok((record, (0..record.descriptors()).map(|_| next()).collect::<Result<_>>()?))
        });
        let workers = workers.collect::<Result<_>>()?;
        Ok(Inheritance { config, metrics, locks, workers })
    }

    /// Listen sets for `config`. A queue of SYNs has the number `queue` and holds at most
    /// `held` SYNs.
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
            let mut next = || fds.next().context("a descriptor is missing");
            let syns = match record.syns {
                SynRecord::Tap => SynSource::Tap(SynTap::inherited(next()?)),
                SynRecord::Queue => SynSource::Queue(NfQueue::inherited(next()?, queue, held)),
                SynRecord::Unseen => SynSource::Unseen,
            };
            let tunnels = Some(InheritedTunnels::new(fds, record.tunnels_up));
            Ok(ListenSet { number, listeners, syns, tunnels })
        };
        all.map(set).collect()
    }

    /// Journal of the old process, if it has one; its changes stay in place.
    ///
    /// # Errors
    /// The journal is not the old process's, or cannot be written.
    pub fn changes(&mut self, config: &EngineConfig) -> Result<Option<Changes>> {
        let Some(locks) = self.locks.take() else { return Ok(None) };
        Ok(Some(Changes::take_over(&config.journal(), old_process()?, locks)?))
    }
}
