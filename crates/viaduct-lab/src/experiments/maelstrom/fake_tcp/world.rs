//! Two sites with gateways, and a middlebox between them.

use std::net::SocketAddr;

use super::Arm;
use crate::emulator::EmulatorConfig;
use crate::experiments::maelstrom::overhead;
use crate::experiments::prelude::*;
use crate::gateways::{GatewayStatus, Gateways};
use crate::topology::programs::Ping;
use crate::topology::{Middlebox, cpu_time, machine_time};

/// MTU of the hosts, which leaves room for repairs.
const HOST_MTU: u32 = 1200;
/// Time within which a gateway publishes its counters.
const PUBLISHED: Duration = Duration::from_millis(300);
/// Time limit for both gateways to use the transport of their first session.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of the search for fake TCP.
const FOUND_TIMEOUT: Duration = Duration::from_secs(10);

/// Sites, middlebox and gateways; the link between gateway A and the middlebox is emulated.
pub(super) struct World {
    // Dropped before the middlebox, which owns their nodes.
    pub(super) gateways: Gateways,
    pub(super) middlebox: Middlebox,
    /// Time from the start of the gateways to their session.
    pub(super) started: Duration,
}

/// Result of a flow from a1 to b1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Goodput in Mb/s.
    pub(super) rate: f64,
    /// Bytes of repairs and names per data byte.
    pub(super) repairs: f64,
    /// Processor seconds of both gateways per GB of data packets.
    pub(super) cpu: f64,
    /// The same for the whole machine: kernel, link and flow included.
    pub(super) machine: f64,
}

impl World {
    /// Builds the network with this link, and starts gateways with `spec` and `arm`. Fails if the
    /// gateways do not use the expected transport in time: fake TCP if UDP is dropped, otherwise
    /// UDP.
    pub(super) fn start(
        run: &Run,
        link_text: &str,
        spec: &GatewaySpec,
        arm: Arm,
        seed: u64,
    ) -> Result<World> {
        let wan = Wan::Emulated(Box::new(EmulatorConfig::symmetric(link(link_text), seed)));
        let middlebox = Middlebox::build(&wan, HOST_MTU, run.journal())?;
        middlebox.drop_udp(arm.drops_udp)?;
        let peer = format!("{}transport = \"{}\"\n", spec.peer, arm.setting);
        let spec = GatewaySpec { peer, ..spec.clone() }.host_mtu(HOST_MTU);
        let mut gateways = Gateways::beside(&middlebox, false, &spec)?;
        let started = gateways.start_both()?;
        let world = World { gateways, middlebox, started };
        let expected = if arm.drops_udp { "fake-tcp" } else { "udp" };
        let is_expected = |status: &GatewayStatus| {
            status.peers.first().is_some_and(|peer| peer.transport == expected)
        };
        // A gateway follows its peer to another transport only when the new session is used.
        let both = || world.status().is_ok_and(|both| both.iter().all(is_expected));
        let found = stop::wait_until(FOLLOW_TIMEOUT, Duration::from_millis(50), both)?;
        ensure!(found, "gateways do not use {expected}: {}", world.gateways.a.log());
        Ok(world)
    }

    /// Reads the status of both gateways.
    pub(super) fn status(&self) -> Result<[GatewayStatus; 2]> {
        Ok([self.gateways.a.status()?, self.gateways.b.status()?])
    }

    /// Runs a flow.
    pub(super) fn flow(&self, iperf: &Iperf) -> Result<Flow> {
        let reading = || -> Result<_> {
            thread::sleep(PUBLISHED);
            Ok((self.gateways.a.status()?.peer().sender, self.cpu(), machine_time()))
        };
        let before = reading()?;
        let rate = iperf.run(&self.middlebox.a1, &self.middlebox.b1)?.received / 1e6;
        let after = reading()?;
        let gigabytes = (after.0.bytes - before.0.bytes) as f64 / 1e9;
        let cost = |from: Duration, to: Duration| (to - from).as_secs_f64() / gigabytes;
        Ok(Flow {
            rate,
            repairs: overhead(&before.0, &after.0),
            cpu: cost(before.1, after.1),
            machine: cost(before.2, after.2),
        })
    }

    /// Returns the processor time of both gateways.
    fn cpu(&self) -> Duration {
        let pids = [self.gateways.a.pid(), self.gateways.b.pid()].into_iter().flatten();
        pids.map(|pid| cpu_time(pid.as_raw_pid().cast_unsigned())).sum()
    }

    /// Drops UDP after `delay`, under light traffic: all UDP packets, or only those that arrive at
    /// the middlebox's device `from`. Returns the seconds until the middlebox has seen the first
    /// answer of gateway B by fake TCP.
    pub(super) fn time_to_fake_tcp(&self, delay: Duration, from: Option<&str>) -> Result<f64> {
        let interval = Duration::from_millis(10);
        let count = ((delay + FOUND_TIMEOUT / 2).as_secs_f64() / interval.as_secs_f64()) as u32;
        let ping = Ping { count, interval, size: 100 };
        thread::scope(|scope| {
            let pings = scope.spawn(|| ping.run(&self.middlebox.a1, self.middlebox.b1.v4().into()));
            stop::sleep(delay)?;
            let begun = Instant::now();
            match from {
                Some(device) => self.middlebox.drop_udp_from(device)?,
                None => self.middlebox.drop_udp(true)?,
            }
            let is_answered = || self.middlebox.counted("to_a").is_ok_and(|of| of.packets > 0);
            let answered = stop::wait_until(FOUND_TIMEOUT, interval, is_answered)?;
            let took = begun.elapsed().as_secs_f64();
            join(pings)?;
            ensure!(answered, "no fake TCP within {FOUND_TIMEOUT:?}: {}", self.gateways.a.log());
            Ok(took)
        })
    }

    /// Returns the port of the connection that gateway A has opened; the middlebox does not
    /// translate it.
    pub(super) fn port(&self) -> Result<u16> {
        let status = self.gateways.b.status()?;
        let endpoint = status.peers.first().and_then(|peer| peer.endpoint.as_ref());
        let endpoint: SocketAddr = endpoint.context("gateway B knows no endpoint")?.parse()?;
        Ok(endpoint.port())
    }
}
