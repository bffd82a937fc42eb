//! Standard world of most experiments: two sites, an emulated link between them, and optional
//! gateways.

use anyhow::{Context as _, Result};
use viaduct_proto::link::LinkConfig;
use viaduct_proto::repair::stats::{ReceiverStats, SenderStats};

use crate::emulator::{Emulator, EmulatorConfig};
use crate::gateways::{GatewaySpec, Gateways};
use crate::topology::programs::Iperf;
use crate::topology::{Dumbbell, DumbbellSpec, Host, Journal, Wan};

/// Two sites and a link. Dropping it removes everything.
#[derive(Debug)]
pub struct World {
    gateways: Option<Gateways>,
    /// The two sites.
    pub dumbbell: Dumbbell,
}

impl World {
    /// Builds one host per side, with `host_mtu` and `wan_mtu`, and `link` in both directions.
    pub fn new(
        (host_mtu, wan_mtu): (u32, u32),
        link: &LinkConfig,
        seed: u64,
        journal: &Journal,
    ) -> Result<World> {
        let wan = Wan::Emulated(Box::new(EmulatorConfig::symmetric(link.clone(), seed)));
        Self::build(&DumbbellSpec { host_mtu, wan_mtu, wan, ..DumbbellSpec::default() }, journal)
    }

    /// Builds the world that `spec` describes.
    pub fn build(spec: &DumbbellSpec, journal: &Journal) -> Result<World> {
        Ok(World { gateways: None, dumbbell: Dumbbell::build(spec, journal)? })
    }

    /// Returns the link if it is emulated.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.dumbbell.emulator()
    }

    /// Starts a pair of gateways, after stopping any that run.
    pub fn protect(&mut self, spec: &GatewaySpec) -> Result<&mut Gateways> {
        self.unprotect();
        Ok(self.gateways.insert(Gateways::start(&self.dumbbell, spec)?))
    }

    /// Stops the gateways, if any.
    pub fn unprotect(&mut self) {
        if let Some(mut gateways) = self.gateways.take() {
            // The experiment may have killed either gateway.
            let _ = gateways.a.stop();
            let _ = gateways.b.stop();
        }
    }

    /// Returns the running gateways.
    pub fn gateways(&mut self) -> Option<&mut Gateways> {
        self.gateways.as_mut()
    }

    /// Returns the running gateways, to read from them. Fails if none run.
    pub fn running(&self) -> Result<&Gateways> {
        self.gateways.as_ref().context("no gateways run")
    }

    /// Returns gateway A's counters of the direction towards gateway B.
    pub fn sender(&self) -> Result<SenderStats> {
        Ok(self.running()?.a.status()?.peer().sender)
    }

    /// Returns gateway B's counters of the direction from gateway A.
    pub fn receiver(&self) -> Result<ReceiverStats> {
        Ok(self.running()?.b.status()?.peer().receiver)
    }

    /// Returns the link, which must be emulated.
    pub fn link(&self) -> Result<&Emulator> {
        self.emulator().context("the link is not emulated")
    }

    /// Runs `iperf` from a1 to b1; returns the throughput in Mb/s.
    pub fn throughput(&self, iperf: &Iperf) -> Result<f64> {
        Ok(iperf.run(self.a1(), self.b1())?.received / 1e6)
    }

    /// Returns the first host of site A.
    pub fn a1(&self) -> &Host {
        self.dumbbell.a1()
    }

    /// Returns the first host of site B.
    pub fn b1(&self) -> &Host {
        self.dumbbell.b1()
    }
}
