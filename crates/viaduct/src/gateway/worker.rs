//! Packet thread: reads copies from the taps, drives the packet plane, sends repairs and passes
//! recovered packets to the kernel.
//!
//! ```text
//!   out tap ─▶ handle_outgoing ─┐            ┌─▶ transmits ─▶ UDP or fake TCP
//!   in tap  ─▶ handle_incoming ─┼─▶ Plane ───┤
//!     └ UDP ─▶ handle_datagram ─┘            └─▶ injections ─▶ TUN ─▶ kernel forwards
//! ```
//!
//! Datagrams from peers are read from the tap too, which preserves their order relative to the
//! packets that they repair. Under load the thread polls at intervals, because a wake-up for each
//! packet would slow the kernel's forwarding.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::mpsc::UnboundedSender;
use tracing::{error, warn};
use viaduct_proto::repair::cache::Found;
use viaduct_proto::repair::{PathChange, PeerConfig, Plane, Transport};
use viaduct_proto::time::Instant;
use viaduct_sys::capture::filter::BpfInsn;
use viaduct_sys::clock;
use viaduct_sys::process::thread;

use super::commands::{Command, Commands};
use super::fake_tcp::FakeTcpPort;
use super::injector::Injector;
use super::own_addresses::OwnAddresses;
use super::poll_interval::PollInterval;
use super::second_wan::{self, SecondWan};
use super::snapshot::{Published, Shell};
use super::tap_reader::{BATCH, TapReader};
use super::taps::Taps;
use super::upgrade::Role;
use super::wan_port::WanPort;
use crate::value_parser;

/// Minimum number of packets per turn of the loop for which the thread polls at intervals.
const BUSY: usize = 2;
/// Interval at which counters are published and drops are read.
const PUBLISH: Duration = Duration::from_millis(100);
/// Interval at which the details of the peers are published.
const PUBLISH_DETAILS: Duration = Duration::from_millis(500);
/// Maximum time for which the thread sleeps.
const IDLE: Duration = Duration::from_millis(100);

/// Environment variable that makes a worker panic, for tests: `1@3s` is worker 1, 3 s after the
/// start.
const PANIC_VARIABLE: &str = "VIADUCT_PANIC_WORKER";

/// State of the packet thread.
pub struct Worker {
    /// Index of the worker, from 0.
    pub index: usize,
    /// Packet plane.
    pub plane: Plane,
    /// Port to the WAN; to the first one, if there are two.
    pub wan: WanPort,
    /// Second WAN, if there are two.
    pub second: Option<SecondWan>,
    /// Ports and sockets of fake TCP; `None` if no peer may use it.
    pub fake_tcp: Option<FakeTcpPort>,
    /// Reports changes of paths to the control side.
    pub path_changes: UnboundedSender<PathChange>,
    /// TUN through which recovered packets enter the kernel.
    pub injector: Injector,
    /// Role with respect to the packet thread of another process, during an upgrade.
    pub role: Role,
    /// Addresses of this machine.
    pub own: OwnAddresses,
    /// Time stamp of the last outgoing packet read.
    pub left: Duration,
    /// Buffer for the segments of packets that a device would segment.
    pub cut: Vec<u8>,
    /// Commands of the control side.
    pub commands: Commands,
    /// Counters and details, as published to the control side.
    pub published: Arc<Published>,
    /// Time at which the thread is to panic, for tests.
    pub panic_at: Option<Instant>,
}

impl Worker {
    /// Runs until the stop command. Errors: an interface on which the thread depends was deleted.
    pub fn run(mut self) -> Result<()> {
        // The default timer slack would prolong short sleeps.
        let _ = thread::set_timer_slack(Duration::from_micros(1));
        // Forwarding has priority: a copy can wait in its ring.
        let _ = thread::set_batch();
        let (mut shell, mut interval) = (Shell::default(), PollInterval::default());
        let (mut publish_at, mut details_at) = (now(), now());
        self.published.replace_peers(&self.plane, now());
        loop {
            let read = if self.role.is_paused() { 0 } else { self.read_taps(&mut shell) };
            let now = now();
            if !self.role.is_paused() {
                self.handle_timeouts(now);
                self.write(&mut shell, now);
                for change in self.plane.take_path_changes() {
                    // The control side may have ended.
                    let _ = self.path_changes.send(change);
                }
            }
            if now >= publish_at {
                self.count_drops(&mut shell, now);
                let fake_tcp = self.fake_tcp.as_ref().map(|port| port.machine.stats());
                self.published.publish(&mut self.plane, shell, fake_tcp.unwrap_or_default());
                interval.update(now, self.plane.repairs());
                publish_at = now + PUBLISH;
                if now >= details_at {
                    self.published.publish_details(&mut self.plane, now);
                    details_at = now + PUBLISH_DETAILS;
                }
                self.check_interfaces(&mut shell)?;
                assert!(self.panic_at.is_none_or(|at| now < at), "{PANIC_VARIABLE} is set");
            }
            while let Some(command) = self.commands.take() {
                if let Command::Stop = command {
                    return Ok(());
                }
                self.handle_command(command, &mut shell, now);
            }
            self.sleep(read, now, &mut interval);
        }
    }

    /// Ports to all WANs.
    fn wans(&self) -> impl Iterator<Item = &WanPort> {
        [&self.wan].into_iter().chain(self.second.as_ref().map(|second| &second.port))
    }

    /// Counts the times that the WAN interface went down. This is not an error: packets arrive
    /// again when the interface is up. Errors: an interface was deleted.
    fn check_interfaces(&self, shell: &mut Shell) -> Result<()> {
        let is_down = |wan: &&WanPort| {
            let taps = [&wan.taps.outgoing, &wan.taps.incoming];
            taps.map(|tap| tap.take_error().is_some()).contains(&true)
        };
        let down = self.wans().filter(is_down).count();
        // Checked at each call: an interface goes down a moment before it is deleted, and only the
        // deletion is an error.
        let are_attached = self.wans().all(|wan| wan.taps.outgoing.is_attached());
        ensure!(are_attached, "the WAN interface was deleted");
        if down > 0 {
            shell.wan_falls += 1;
            if self.index == 0 {
                warn!("the WAN interface went down");
            }
        }
        ensure!(!self.injector.is_gone(), "the TUN for recovered packets was deleted");
        Ok(())
    }

    fn handle_timeouts(&mut self, now: Instant) {
        self.plane.handle_timeout(now);
        if let Some(port) = &mut self.fake_tcp
            && port.machine.poll_timeout().is_some_and(|due| due <= now)
        {
            port.machine.handle_timeout(now);
        }
    }

    pub(super) fn read_taps(&mut self, shell: &mut Shell) -> usize {
        let Worker { wan, second, plane, fake_tcp, cut, role, own, left, .. } = self;
        let mut reader = TapReader { plane, fake_tcp, cut, held: role.held(), own, left, shell };
        let read = reader.read(&mut wan.taps, wan.listen);
        let Some(SecondWan { port, .. }) = second else { return read };
        reader.set_path(1);
        let more = reader.read(&mut port.taps, port.listen);
        reader.set_path(0);
        read + more
    }

    /// Sends the datagrams and packets that are due. While another process does the work, they
    /// are dropped.
    pub(super) fn write(&mut self, shell: &mut Shell, now: Instant) {
        if let Role::Standby(_) = self.role {
            self.plane.clear_transmits();
            self.plane.injections().clear();
            self.fake_tcp.iter_mut().for_each(|port| port.machine.clear_transmits());
            return;
        }
        let (mut datagrams, mut by_second) = (Vec::new(), Vec::new());
        let is_second = |to: &SocketAddr| self.second.as_ref().is_some_and(|wan| wan.leads_to(to));
        for (to, datagram) in self.plane.transmits() {
            match (to.transport, &mut self.fake_tcp) {
                (Transport::FakeTcp, Some(port)) => port.send(now, to.address, datagram),
                (Transport::FakeTcp, None) => {}
                (Transport::Udp, _) if is_second(&to.address) => {
                    by_second.push((to.address, datagram));
                }
                (Transport::Udp, _) => datagrams.push((to.address, datagram)),
            }
        }
        if !datagrams.is_empty() {
            shell.sent(self.wan.udp.send(&datagrams));
        }
        if let Some(second) = self.second.as_mut().filter(|_| !by_second.is_empty()) {
            shell.sent(second.port.udp.send(&by_second));
        }
        self.plane.clear_transmits();
        if let Some(port) = &mut self.fake_tcp {
            port.flush(shell);
        }
        let inject = self.plane.injections();
        for packet in inject.iter() {
            match self.injector.inject(packet) {
                true => shell.injected += 1,
                false => shell.inject_failed += 1,
            }
        }
        inject.clear();
    }

    fn count_drops(&mut self, shell: &mut Shell, now: Instant) {
        let (mut dropped, mut out, mut incoming) = (0, 0, 0);
        let second = self.second.as_mut().map(|second| &mut second.port);
        for wan in [&mut self.wan].into_iter().chain(second) {
            dropped += u64::from(wan.own_queue.take_drops());
            let drops = wan.tap_drops();
            out += drops[0];
            incoming += drops[1];
        }
        if dropped > 0 {
            shell.wan_drops += dropped;
            self.plane.handle_own_drops(now);
        }
        if out > shell.tap_drops_out {
            self.plane.miss_outgoing(out - shell.tap_drops_out);
        }
        if incoming > shell.tap_drops_in {
            self.plane.miss_incoming(now);
        }
        (shell.tap_drops_out, shell.tap_drops_in) = (out, incoming);
    }

    fn handle_command(&mut self, command: Command, shell: &mut Shell, now: Instant) {
        match command {
            Command::Upgrade(command) => self.handle_upgrade(command, shell, now),
            Command::Reload { peers, outgoing, incoming, taps, reply } => {
                let done = self.reload(peers, &outgoing, &incoming, now);
                if done.is_ok() && !taps.is_empty() {
                    self.replace_taps(taps, now);
                }
                let _ = reply.send(done);
            }
            Command::Own { shares, clocks } => {
                self.plane.remember(clocks);
                if let Err(error) = self.plane.own(shares, now) {
                    error!("lanes are not taken over: {error}");
                }
                self.published.replace_peers(&self.plane, now);
            }
            Command::Cache(query, reply) => {
                let mut looked = 0;
                let found = query.find(self.plane.cached().inspect(|_| looked += 1));
                let resent = found.iter().filter(|packet| self.injector.inject(packet)).count();
                let _ = reply.send(Found { resent, looked });
            }
            Command::Stop => {}
        }
    }

    /// Replaces the taps of all WANs.
    fn replace_taps(&mut self, taps: Vec<Taps>, now: Instant) {
        let second = self.second.as_mut().map(|second| &mut second.port);
        for (wan, taps) in [&mut self.wan].into_iter().chain(second).zip(taps) {
            wan.replace_taps(taps);
        }
        self.plane.miss_outgoing(1);
        self.plane.miss_incoming(now);
    }

    /// Replaces the peers and the filters. Packets in the taps stay there. Errors:
    /// the peers cannot be used, or the kernel refuses a filter; some changes may be in force.
    fn reload(
        &mut self,
        peers: Vec<PeerConfig>,
        outgoing: &[BpfInsn],
        incoming: &[BpfInsn],
        now: Instant,
    ) -> Result<()> {
        let ends = second_wan::ends(&peers);
        self.plane.change(peers, now)?;
        if let Some(second) = &mut self.second {
            second.set_ends(ends);
        }
        self.published.replace_peers(&self.plane, now);
        let second = self.second.as_mut().map(|second| &mut second.port);
        for wan in [&mut self.wan].into_iter().chain(second) {
            wan.taps.outgoing.attach_filter(outgoing).context("cannot set the filter of a tap")?;
            wan.taps.incoming.attach_filter(incoming).context("cannot set the filter of a tap")?;
        }
        Ok(())
    }

    /// Sleeps: not at all after a full batch, for a poll interval under load, otherwise until the
    /// next packet, deadline or command. While paused, waits for commands only.
    fn sleep(&self, read: usize, now: Instant, interval: &mut PollInterval) {
        if self.role.is_paused() {
            self.commands.wait(&[], IDLE);
            return;
        }
        if read >= BATCH {
            return;
        }
        if read >= BUSY {
            std::thread::sleep(interval.next(now, read));
            return;
        }
        let fake_tcp = self.fake_tcp.as_ref().and_then(|port| port.machine.poll_timeout());
        let due = [self.plane.poll_timeout(), fake_tcp].into_iter().flatten().min();
        let due = due.map_or(IDLE, |due| due.since(now));
        let taps = self.wans().map(|wan| &wan.taps);
        let taps = taps.flat_map(|of| [&of.outgoing as &dyn AsFd, &of.incoming]);
        let taps: Vec<_> = taps.collect();
        self.commands.wait(&taps, due.min(IDLE));
    }
}

/// Time at which a worker is to panic, as [`PANIC_VARIABLE`] says.
pub(super) fn panic_at(index: usize) -> Option<Instant> {
    let wanted = std::env::var(PANIC_VARIABLE).ok()?;
    let (worker, after) = wanted.split_once('@')?;
    let after = value_parser::time(after).ok()?;
    (worker.parse() == Ok(index)).then(|| now() + after)
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
