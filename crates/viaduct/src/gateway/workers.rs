//! Workers of a gateway: the packet threads, which divide the lanes among them.
//!
//! ```text
//!   packet ─▶ program of the fanout: its share ─▶ worker that owns the share: lanes of all peers
//!                   ▲                                   │ panics
//!                   └── its shares go to the others ◀───┘
//! ```
//!
//! A packet's share is its lane modulo the number of lanes that this gateway wants, so it does not
//! depend on the peer ([`viaduct_proto::repair::lanes`]).
//!
//! Workers share no state. The lanes of a dead worker start again on the other workers, each with a
//! new handshake. All other lanes are unaffected.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tracing::error;
use viaduct_proto::repair::cache::{Found, Query};
use viaduct_proto::repair::lanes::{LaneCount, Shares};

use super::commands::{Command, ToWorker};
use super::site::Site;
use super::snapshot::{Details, Published, Snapshot};
use super::taps::{Fanouts, Taps};

/// Handles of all workers, for the services of the control side.
pub type ToWorkers = Arc<[ToWorker]>;

/// Control side's view of the workers.
pub struct Workers {
    to: ToWorkers,
    published: Vec<Arc<Published>>,
    /// Worker of each share.
    owners: Vec<u8>,
    is_dead: Vec<bool>,
    /// True unless some workers may have refused the last settings.
    are_alike: bool,
    /// True if some workers may not have the latest taps yet.
    taps_differ: bool,
    /// Distribution of packets; `None` with a single worker.
    fanouts: Option<Fanouts>,
    ends: UnboundedReceiver<WorkerEnd>,
    /// Reason why the gateway must end.
    failure: Option<anyhow::Error>,
}

/// End of a worker's thread.
#[derive(Clone, Copy, Debug)]
pub struct WorkerEnd {
    index: usize,
    has_panicked: bool,
}

/// Reports the end of a worker's thread when it is dropped.
pub struct WorkerLife {
    index: usize,
    has_ended: bool,
    ends: UnboundedSender<WorkerEnd>,
}

impl WorkerLife {
    /// Records that the thread has ended without a panic.
    pub fn end(&mut self) {
        self.has_ended = true;
    }
}

impl Drop for WorkerLife {
    fn drop(&mut self) {
        let end = WorkerEnd { index: self.index, has_panicked: !self.has_ended };
        // The control side may have ended.
        let _ = self.ends.send(end);
    }
}

/// Worker of each share, if all workers are alive.
pub fn owners(lanes: LaneCount, workers: usize) -> Vec<u8> {
    (0..lanes.get()).map(|share| (share % workers) as u8).collect()
}

/// Shares of a worker.
pub fn shares(owners: &[u8], worker: usize) -> Shares {
    let owned = owners.iter().zip(0..).filter(|(owner, _)| usize::from(**owner) == worker);
    owned.map(|(_, share)| share).collect()
}

impl Workers {
    /// Creates the view of workers that are about to start. Also returns a guard for each worker,
    /// which reports the end of the worker's thread.
    ///
    /// # Errors
    /// The kernel refuses the distribution of packets.
    pub fn new(
        site: &Site,
        to: Vec<ToWorker>,
        published: Vec<Arc<Published>>,
        fanouts: Option<Fanouts>,
    ) -> Result<(Workers, Vec<WorkerLife>)> {
        let (sender, ends) = unbounded_channel();
        let lives = (0..to.len()).map(|index| {
            let ends = sender.clone();
            WorkerLife { index, has_ended: false, ends }
        });
        let lives = lives.collect();
        let owners = owners(site.config.lanes, to.len());
        let is_dead = vec![false; to.len()];
        let workers = Workers {
            to: to.into(),
            published,
            owners,
            is_dead,
            are_alike: true,
            taps_differ: false,
            fanouts,
            ends,
            failure: None,
        };
        workers.distribute(site)?;
        Ok((workers, lives))
    }

    /// Handles of all workers.
    pub fn to_all(&self) -> ToWorkers {
        self.to.clone()
    }

    /// Stops all workers, because another process has taken over, and closes their taps.
    pub fn leave(&mut self) {
        self.to.iter().for_each(|worker| worker.send(Command::Stop));
        self.fanouts = None;
    }

    /// Indices of the workers that are alive.
    fn living(&self) -> impl Iterator<Item = usize> {
        (0..self.to.len()).filter(|index| !self.is_dead[*index])
    }

    /// Number of workers, and number of dead workers.
    pub fn counts(&self) -> (usize, usize) {
        (self.to.len(), self.to.len() - self.living().count())
    }

    /// Waits until a worker ends.
    pub async fn ended(&mut self) -> WorkerEnd {
        match self.ends.recv().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    /// Gives the lanes of a worker that has panicked to the others. If the worker has ended for
    /// another reason, or no other worker is alive, the gateway must end.
    pub fn handle_end(&mut self, end: WorkerEnd, site: &Site) {
        self.failure = self.replace(end, site).err();
    }

    /// Returns whether the gateway must end.
    pub fn have_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Takes the reason why the gateway must end.
    ///
    /// # Errors
    /// There is such a reason.
    pub fn take_failure(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn replace(&mut self, end: WorkerEnd, site: &Site) -> Result<()> {
        let WorkerEnd { index, has_panicked } = end;
        self.is_dead[index] = true;
        let heirs: Vec<_> = self.living().collect();
        ensure!(
            has_panicked && !heirs.is_empty(),
            "the packet thread ended; traffic continues unprotected"
        );
        let mut next = heirs.iter().copied().cycle();
        for owner in self.owners.iter_mut().filter(|owner| usize::from(**owner) == index) {
            *owner = next.next().unwrap_or_default() as u8;
        }
        error!(worker = index, "a packet thread panicked: the others take its lanes over");
        let clocks = self.details().clocks;
        for heir in heirs {
            let shares = shares(&self.owners, heir);
            self.to[heir].send(Command::Own { shares, clocks: clocks.clone() });
        }
        self.distribute(site)
    }

    /// Makes the kernel give each packet to the worker that owns its lane.
    fn distribute(&self, site: &Site) -> Result<()> {
        let Some(fanouts) = &self.fanouts else { return Ok(()) };
        fanouts.distribute(site, &self.owners).context("cannot distribute packets to the workers")
    }

    /// Returns whether all workers have the same settings.
    pub fn are_alike(&self) -> bool {
        self.are_alike
    }

    /// Passes the settings of `site` to all workers. If `has_new_taps`, the taps are replaced, too.
    ///
    /// # Errors
    /// The settings cannot be used, or a worker is gone. If some workers may have the new settings,
    /// [`Workers::are_alike`] returns false.
    pub async fn reload(&mut self, site: &Site, has_new_taps: bool) -> Result<()> {
        let (outgoing, incoming) = site.filters()?;
        let mut taps: Vec<Vec<Taps>> = Vec::new();
        if has_new_taps || self.taps_differ {
            let (opened, fanouts) = Taps::open_all(site)?;
            taps.extend(opened.into_iter().map(|taps| vec![taps]));
            // With two WANs there is a single worker.
            taps[0].extend(Taps::open_second(site)?);
            let before = std::mem::replace(&mut self.fanouts, fanouts);
            if let Err(error) = self.distribute(site) {
                self.fanouts = before;
                return Err(error);
            }
            self.taps_differ = true;
        }
        self.are_alike = false;
        let mut taps = taps.into_iter();
        let mut answers = Vec::new();
        for index in 0..self.to.len() {
            let taps = taps.next().unwrap_or_default();
            if self.is_dead[index] {
                continue;
            }
            let (reply, answer) = oneshot::channel();
            let (outgoing, incoming) = (outgoing.clone(), incoming.clone());
            let peers = site.peers();
            self.to[index].send(Command::Reload { peers, outgoing, incoming, taps, reply });
            answers.push(answer);
        }
        for answer in answers {
            answer.await.context("the packet thread is gone")??;
        }
        (self.are_alike, self.taps_differ) = (true, false);
        Ok(())
    }

    /// Counters of all workers together. Those of dead workers are included, so that counters
    /// only grow.
    pub fn snapshot(&self) -> Snapshot {
        let (mut all, first) = (self.published[0].get(), self.is_dead[0]);
        if first {
            all.retire();
        }
        for (published, is_dead) in self.published.iter().zip(&self.is_dead).skip(1) {
            let mut more = published.get();
            if *is_dead {
                more.retire();
            }
            all.merge(&more);
        }
        all
    }

    /// Details of all workers together.
    pub fn details(&self) -> Details {
        let all = self.published.iter().zip(&self.is_dead).map(|(published, is_dead)| {
            let mut more = published.details();
            if *is_dead {
                more.facts.clear();
            }
            more
        });
        let all = all.reduce(|mut all, more| {
            all.merge(more);
            all
        });
        all.unwrap_or_default()
    }

    /// Highest number of times that a worker has seen the WAN interface go down.
    pub fn wan_falls(&self) -> u64 {
        self.published.iter().map(|of| of.shell().wan_falls).max().unwrap_or_default()
    }

    /// Age of the oldest counters among the workers that are alive.
    pub fn age(&self) -> Duration {
        self.living().map(|index| self.published[index].age()).max().unwrap_or_default()
    }
}

/// Searches the packet cache of all workers, and sends the packets found. `None` if all workers
/// are gone.
pub async fn find_cached(to: &[ToWorker], query: &Query) -> Option<Found> {
    let asked: Vec<_> = to
        .iter()
        .map(|worker| {
            let (reply, answer) = oneshot::channel();
            worker.send(Command::Cache(query.clone(), reply));
            answer
        })
        .collect();
    let mut found: Option<Found> = None;
    for answer in asked {
        if let Ok(more) = answer.await {
            let all = found.get_or_insert(Found { resent: 0, looked: 0 });
            all.resent += more.resent;
            all.looked += more.looked;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::thread;

    use anyhow::anyhow;

    use super::*;
    use crate::gateway::commands::{Commands, channel};
    use crate::gateway::config::Config;

    /// Waits for the next settings, and answers that they are refused or accepted.
    fn answer(commands: &Commands, is_refused: bool) {
        loop {
            if let Some(Command::Reload { reply, .. }) = commands.take() {
                let done = if is_refused { Err(anyhow!("refused")) } else { Ok(()) };
                return drop(reply.send(done));
            }
            commands.wait(&[], Duration::from_millis(10));
        }
    }

    #[test]
    fn workers_are_alike_unless_one_refuses_the_settings() {
        let config = Config::of_test("192.0.2.1:7400", "workers = 2\n");
        let site = Site { config, wan_mtu: 1500, fake_tcp: Vec::new(), is_serving: false };
        let (to, commands): (Vec<_>, Vec<_>) = (0..2).map(|_| channel().unwrap()).unzip();
        let published = vec![Arc::default(), Arc::default()];
        let (mut workers, _lives) = Workers::new(&site, to, published, None).unwrap();
        let answers = thread::spawn(move || {
            for is_refused in [true, false] {
                answer(&commands[0], false);
                answer(&commands[1], is_refused);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(workers.are_alike());
        assert!(runtime.block_on(workers.reload(&site, false)).is_err());
        assert!(!workers.are_alike(), "the first worker has the settings that the second refused");
        runtime.block_on(workers.reload(&site, false)).unwrap();
        assert!(workers.are_alike());
        answers.join().unwrap();
    }

    #[test]
    fn lanes_are_divided_evenly_among_workers() {
        for workers in 1..=16 {
            let lanes = LaneCount::new(16).unwrap();
            let owners = owners(lanes, workers);
            let owned: Vec<_> = (0..workers).map(|of| shares(&owners, of).len()).collect();
            assert_eq!(owned.iter().sum::<usize>(), 16);
            assert!(owned.iter().max().unwrap() - owned.iter().min().unwrap() <= 1, "{owned:?}");
        }
    }
}
