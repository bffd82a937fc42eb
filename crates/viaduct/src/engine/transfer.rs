//! Transfer of a worker's clients and flows to another process, and back if that fails.
//!
//! ```text
//!   Export ──▶ duplicates of listeners and tap        the worker continues
//!   SendFlows ─▶ accepts no clients and no links; portable flows are lent and sent
//!        ├── Resume:  the other process has failed: the flows and the listeners are back
//!        └── Release: the other process serves: the copies are closed, the other flows drain
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tracing::{info, warn};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::{
    EarlyRecord, FlowRecord, ListenRecord, MAX_DESCRIPTORS, MAX_MESSAGE, Message,
};
use viaduct_sys::socket::seqpacket;

use super::accept::Started;
use super::flow::Flow;
use super::flows::LentFlow;
use super::worker::{Worker, time};

/// Upper bound of a message's length without its flows, in bytes.
const MESSAGE_HEAD: usize = 64;

/// Listen set of a worker, with duplicates of its descriptors.
pub type Exported = io::Result<(ListenRecord, Vec<OwnedFd>)>;

/// Command to send flows to another process.
#[derive(Debug)]
pub struct SendFlows {
    /// Number of the worker.
    pub worker: u32,
    /// Connection to the other process.
    pub socket: Arc<OwnedFd>,
    /// Receiver of the number of flows that were sent.
    pub reply: SyncSender<io::Result<usize>>,
}

impl Worker {
    /// Duplicates of the listen set's descriptors.
    pub(super) fn export(&self) -> Exported {
        let (mut record, mut fds) = self.acceptor.export()?;
        if let Some(tunnels) = &self.upstream.tunnels {
            let sockets = tunnels.export()?;
            record.tunnels = u8::try_from(sockets.len()).map_err(io::Error::other)?;
            record.tunnels_up = tunnels.dialled_up();
            fds.extend(sockets);
        }
        Ok((record, fds))
    }

    /// Accepts no more clients and links, and sends the flows that another process can continue.
    /// Returns their number.
    pub(super) fn send_flows(&mut self, command: &SendFlows) -> io::Result<usize> {
        self.acceptor.pause(self.poll.registry())?;
        if let Some(tunnels) = &mut self.upstream.tunnels {
            tunnels.pause(time())?;
        }
        self.unread.syns = false;
        self.unread.listeners.clear();
        let entries = self.acceptor.early.iter();
        let early: HashMap<usize, (Tuple, Instant)> =
            entries.map(|(tuple, until, started)| (started.key, (*tuple, until))).collect();
        for key in self.flows.pick(Flow::is_portable) {
            self.lend(key, early.get(&key).copied());
        }
        let sent = self.send_lent(command.worker, &command.socket);
        self.flows.deregister_lent(0..self.flows.lent.len());
        sent.map(|()| self.flows.lent.len())
    }

    /// Lends flow `key`, whose client is still expected if `early` is given.
    fn lend(&mut self, key: usize, early: Option<(Tuple, Instant)>) {
        let early = match (self.flows.at(key).has_client(), early) {
            (true, None) => None,
            (false, Some((tuple, until))) => {
                let Some(started) = self.acceptor.early.forget(&tuple) else { return };
                let held = self.acceptor.deferred.as_mut().and_then(|held| held.lend(key));
                Some(EarlyRecord {
                    client: tuple.client,
                    to: tuple.to,
                    signalled: started.signalled.map(|of| (of.source, of.destination)),
                    onward: started.signalled.map_or(Onward::Open, |of| of.onward),
                    until: until.as_nanos(),
                    held,
                })
            }
            // The flow has no client, but is not an early connection either.
            _ => return,
        };
        self.flows.lend(key, early);
    }

    /// Sends the lent flows in as many messages as they need. The flows of a message are
    /// deregistered once it is sent, while the other process restores them.
    fn send_lent(&mut self, worker: u32, socket: &OwnedFd) -> io::Result<()> {
        let mut next = 0;
        while next < self.flows.lent.len() {
            let end = send_batch(&self.flows.lent, next, worker, socket)?;
            self.flows.deregister_lent(next..end);
            next = end;
        }
        Ok(())
    }

    /// Takes all lent flows back, and accepts clients again.
    pub(super) fn resume(&mut self, now: Instant) {
        for LentFlow { flow, early, .. } in std::mem::take(&mut self.flows.lent) {
            if !self.adopt(flow, early, now) {
                warn!("a flow is lost: the handover failed, and the flow cannot continue here");
            }
        }
        if self.acceptor.is_paused
            && let Err(error) = self.acceptor.resume(self.poll.registry())
        {
            warn!("cannot accept clients again: {error}");
        }
        if let Some(tunnels) = &mut self.upstream.tunnels
            && let Err(error) = tunnels.accept_again(now)
        {
            warn!("cannot accept links again: {error}");
        }
    }

    /// Continues a flow of this loop or of another process. Returns false if that is not possible;
    /// the flow's sockets are then closed.
    pub(super) fn adopt(
        &mut self,
        mut flow: Flow,
        early: Option<EarlyRecord>,
        now: Instant,
    ) -> bool {
        flow.prepare_to_continue();
        let Some(key) = self.flows.insert(flow) else { return false };
        if self.flows.watch_room(key).is_err() {
            if let Some(mut flow) = self.flows.remove(key) {
                flow.reset();
            }
            return false;
        }
        let Some(early) = early else { return true };
        let tuple = Tuple { client: early.client, to: early.to };
        let until = Instant::from_nanos(early.until).max(now);
        let started = Started { key, signalled: early.addresses() };
        self.acceptor.early.adopt(tuple, until, started);
        if let (Some(deferred), Some(id)) = (&mut self.acceptor.deferred, early.held) {
            deferred.adopt(key, id, tuple);
        }
        true
    }

    /// Continues a flow of another process, whose descriptors are the next of `descriptors`.
    ///
    /// # Errors
    /// A descriptor does not match the record, or there are too many flows.
    pub(super) fn restore(
        &mut self,
        record: &FlowRecord,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        let now = time();
        let flow = Flow::restored(record, descriptors, &mut self.flows.shared.pipes, now)?;
        match self.adopt(flow, record.early, now) {
            true => Ok(()),
            false => Err(io::Error::other("more flows than this process may have")),
        }
    }

    /// Closes the copies of the lent flows and of the listeners, which the new process has, and
    /// ends the worker once the other flows have ended.
    pub(super) fn release(&mut self, now: Instant) {
        let lent = std::mem::take(&mut self.flows.lent);
        let handed_over = lent.len();
        for mut lent in lent {
            lent.flow.release(&mut self.flows.shared);
        }
        self.release_all_held();
        self.acceptor.close();
        while let Some(started) = self.acceptor.early.release() {
            self.end(started.key, true);
        }
        if let Some(tunnels) = &mut self.upstream.tunnels {
            tunnels.leave(now);
        }
        self.deadline = Some(now + self.config.limits.drain);
        info!(handed_over, flows = self.flows.len(), "stopping");
    }
}

/// Sends as many of the lent flows as a message may contain, but at least one, starting at number
/// `first`. Returns the number of the first flow that was not sent.
fn send_batch(lent: &[LentFlow], first: usize, worker: u32, socket: &OwnedFd) -> io::Result<usize> {
    let (mut flows, mut cost, mut end) = (Vec::new(), MESSAGE_HEAD, first);
    let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
    for LentFlow { flow, early, .. } in &lent[first..] {
        if let Some(record) = flow.record() {
            let is_full = fds.len() + record.descriptors() > MAX_DESCRIPTORS
                || cost + record.cost() > MAX_MESSAGE;
            if is_full && !flows.is_empty() {
                break;
            }
            cost += record.cost();
            fds.extend(flow.descriptors());
            flows.push(FlowRecord { early: *early, ..record });
        }
        end += 1;
    }
    if !flows.is_empty() {
        send(socket, worker, flows, &fds)?;
    }
    Ok(end)
}

fn send(
    socket: &OwnedFd,
    worker: u32,
    flows: Vec<FlowRecord>,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = Message::Flows { worker, flows }.emit().map_err(io::Error::other)?;
    seqpacket::send_many(socket.as_fd(), &bytes, fds)
}
