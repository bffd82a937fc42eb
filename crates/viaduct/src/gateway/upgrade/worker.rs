//! The packet thread's part of an upgrade, in both processes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tracing::{error, info};
use viaduct_proto::fake_tcp::FakeTcp;
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::{ConnectionRecord, PeerRecord, StopRecord};
use viaduct_sys::clock;

use crate::gateway::fake_tcp::FakeTcpPort;
use crate::gateway::snapshot::Shell;
use crate::gateway::tap_reader::wall_clock;
use crate::gateway::worker::Worker;

/// Age, relative to the newest held packet, at which a held packet is dropped: the old process
/// encodes such a packet long before it stops.
const MAX_HELD_AGE: Duration = Duration::from_millis(500);
/// Maximum number of reads of the taps before a pause.
const MAX_LAST_READS: usize = 16;
/// Maximum bytes of held packets.
const MAX_HELD: usize = 32 << 20;

/// Command to a packet thread about an upgrade.
pub enum UpgradeCommand {
    /// Duplicates the sockets, and copies the state. The thread continues to work.
    Export(SyncSender<io::Result<(Sockets, WorkerState)>>),
    /// Sends the last repairs, pauses, and copies the state.
    Pause(SyncSender<WorkerState>),
    /// Continues to work after a failed upgrade.
    Resume,
    /// Starts to work, with the state of the old process.
    Take(Box<WorkerState>),
}

/// Sockets of a packet thread.
#[derive(Debug)]
pub struct Sockets {
    /// Socket that sends repairs.
    pub udp: OwnedFd,
    /// Socket of the second WAN, if there are two.
    pub second: Option<OwnedFd>,
    /// TUN, if it was created.
    pub tun: Option<OwnedFd>,
    /// Listeners of fake TCP.
    pub fake_tcp: Vec<OwnedFd>,
}

/// State of a packet thread that another one continues.
#[derive(Debug, Default)]
pub struct WorkerState {
    /// Peers.
    pub peers: Vec<PeerRecord>,
    /// Key of the hash that determines the sequence numbers of fake TCP's SYN-ACKs.
    pub isn_key: [u64; 4],
    /// Connections of fake TCP.
    pub connections: Vec<ConnectionRecord>,
    /// Time stamp of the last outgoing packet that the old process has read, and the time at which
    /// that process stopped.
    pub cut: StopRecord,
}

/// Role of a packet thread. During an upgrade, the old and the new process have packet threads,
/// each with a role.
#[derive(Debug)]
pub enum Role {
    /// Does the work.
    Active,
    /// Receives, while the old process still does the work. Holds the packets that this process may
    /// have to encode.
    Standby(HeldPackets),
    /// Does nothing, since another process may have taken over the state.
    Paused,
}

impl Role {
    /// Returns whether the thread does nothing.
    pub fn is_paused(&self) -> bool {
        matches!(self, Role::Paused)
    }

    /// Held packets, if the old process does the work.
    pub fn held(&mut self) -> Option<&mut HeldPackets> {
        if let Role::Standby(held) = self { Some(held) } else { None }
    }
}

/// Outgoing packets that this process may have to encode.
#[derive(Debug, Default)]
pub struct HeldPackets {
    /// Path of the packets that are held next.
    pub path: u8,
    packets: VecDeque<HeldPacket>,
    bytes: usize,
}

/// Held packet, with its time stamp and the path that it took.
#[derive(Debug)]
struct HeldPacket {
    stamp: Duration,
    path: u8,
    packet: Vec<u8>,
}

impl HeldPackets {
    /// Holds a packet with its time stamp.
    pub fn hold(&mut self, stamp: Duration, packet: &[u8]) {
        self.bytes += packet.len();
        self.packets.push_back(HeldPacket { stamp, path: self.path, packet: packet.to_vec() });
        let oldest = stamp.saturating_sub(MAX_HELD_AGE);
        while self.bytes > MAX_HELD || self.packets.front().is_some_and(|of| of.stamp < oldest) {
            self.bytes -= self.packets.pop_front().map_or(0, |of| of.packet.len());
        }
    }

    /// Returns the packets with a later stamp than `cut`.
    fn after(self, cut: Duration) -> impl Iterator<Item = HeldPacket> {
        self.packets.into_iter().filter(move |of| of.stamp > cut)
    }
}

impl Worker {
    /// Handles a command about an upgrade.
    pub fn handle_upgrade(&mut self, command: UpgradeCommand, shell: &mut Shell, now: Instant) {
        // Failures to reply are ignored: the upgrader may have given up.
        match command {
            UpgradeCommand::Export(reply) => {
                let _ = reply.send(self.sockets().map(|sockets| (sockets, self.state())));
            }
            UpgradeCommand::Pause(reply) => {
                for _ in 0..MAX_LAST_READS {
                    if self.read_taps(shell) == 0 {
                        break;
                    }
                }
                let now = Instant::from_nanos(clock::now());
                self.plane.finish(now);
                self.write(shell, now);
                self.role = Role::Paused;
                let _ = reply.send(self.state());
            }
            UpgradeCommand::Resume if self.role.is_paused() => {
                self.plane.reclaim();
                self.role = Role::Active;
            }
            UpgradeCommand::Resume => {}
            UpgradeCommand::Take(state) => self.take(&state, now),
        }
    }

    fn sockets(&self) -> io::Result<Sockets> {
        let listeners = self.fake_tcp.iter().flat_map(FakeTcpPort::listeners);
        Ok(Sockets {
            udp: self.wan.udp.as_fd().try_clone_to_owned()?,
            second: self
                .second
                .as_ref()
                .map(|second| second.port.udp.as_fd().try_clone_to_owned())
                .transpose()?,
            tun: self.injector.tun().map(|tun| tun.try_clone_to_owned()).transpose()?,
            fake_tcp: listeners
                .map(|of| of.as_fd().try_clone_to_owned())
                .collect::<Result<_, _>>()?,
        })
    }

    fn state(&self) -> WorkerState {
        let machine = self.fake_tcp.as_ref().map(|port| &port.machine);
        WorkerState {
            peers: self.plane.records(),
            isn_key: machine.map(FakeTcp::isn_key).unwrap_or_default(),
            connections: machine.iter().flat_map(|machine| machine.records()).collect(),
            cut: StopRecord {
                left: u64::try_from(self.left.as_nanos()).unwrap_or(u64::MAX),
                at: clock::now(),
            },
        }
    }

    /// Starts to work in place of the old process.
    fn take(&mut self, state: &WorkerState, now: Instant) {
        let Some(held) = self.role.held().map(std::mem::take) else { return };
        self.role = Role::Active;
        self.plane.set_passive(false);
        if let Err(error) = self.resume(state, now) {
            // This is unexpected: records of the same peers were accepted at the start.
            error!("sessions are not continued, and begin anew: {error:#}");
        }
        let wall = wall_clock();
        for mut of in held.after(Duration::from_nanos(state.cut.left)) {
            let crossed = now - wall.saturating_sub(of.stamp).min(MAX_HELD_AGE);
            self.plane.set_path(of.path);
            self.plane.handle_outgoing(now, crossed, &mut of.packet);
        }
        self.plane.set_path(0);
        let paused = now.since(Instant::from_nanos(state.cut.at));
        info!(peers = state.peers.len(), paused_ms = paused.as_secs_f64() * 1e3, "taken over");
    }

    /// Continues with the state of the old process.
    ///
    /// # Errors
    /// The state has a peer that is not in the config.
    pub fn resume(&mut self, state: &WorkerState, now: Instant) -> anyhow::Result<()> {
        if let Some(port) = &mut self.fake_tcp {
            port.machine.resume(state.isn_key, &state.connections);
        }
        Ok(self.plane.resume(now, &state.peers)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_held_until_the_old_process_has_encoded_them() {
        let at = Duration::from_millis;
        let mut held = HeldPackets::default();
        for millis in 0..1_000 {
            held.hold(at(millis), &[0; 100]);
        }
        assert_eq!((held.packets.len(), held.bytes), (501, 50_100));
        assert_eq!(held.after(at(989)).map(|of| of.stamp).min(), Some(at(990)));
        let mut held = HeldPackets::default();
        (0..100).for_each(|_| held.hold(at(0), &vec![0; 1 << 20]));
        assert_eq!((held.packets.len(), held.bytes), (32, MAX_HELD));
    }
}
