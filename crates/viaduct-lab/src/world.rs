//! What nearly every experiment needs in a few words: two sites, a link of this kind between them,
//! gateways or none.

use std::time::Duration;

use anyhow::Result;
use viaduct_proto::link::LinkConfig;

use crate::emulator::{Emulator, EmulatorConfig};
use crate::gateways::{GatewaySpec, Gateways};
use crate::topology::{Dumbbell, DumbbellSpec, Host, Journal, Wan};

/// Two sites and an emulated link. All of it is gone when this is dropped.
#[derive(Debug)]
pub struct World {
    gateways: Option<Gateways>,
    /// The link.
    pub emulator: Emulator,
    /// The sites.
    pub dumbbell: Dumbbell,
}

impl World {
    /// One host a side, with `host_mtu` and `wan_mtu`, and `link` in both directions.
    pub fn new(
        (host_mtu, wan_mtu): (u32, u32),
        link: &LinkConfig,
        seed: u64,
        journal: &Journal,
    ) -> Result<World> {
        Self::build(
            DumbbellSpec { hosts: 1, host_mtu, wan_mtu, wan: Wan::Tun },
            link,
            seed,
            journal,
        )
    }

    /// As `spec` says, with an emulated WAN of `link` in both directions.
    pub fn build(
        spec: DumbbellSpec,
        link: &LinkConfig,
        seed: u64,
        journal: &Journal,
    ) -> Result<World> {
        let spec = DumbbellSpec { wan: Wan::Tun, ..spec };
        let mut dumbbell = Dumbbell::build(&spec, journal)?;
        let (a, b) = dumbbell.take_wan_ends().expect("a WAN of TUNs has ends");
        let emulator = Emulator::start(a, b, EmulatorConfig::symmetric(link.clone(), seed))?;
        dumbbell.wait_until_connected(Duration::from_secs(10))?;
        Ok(World { gateways: None, emulator, dumbbell })
    }

    /// Starts a pair of gateways, instead of those that run.
    pub fn protect(&mut self, spec: &GatewaySpec) -> Result<&mut Gateways> {
        self.unprotect();
        Ok(self.gateways.insert(Gateways::start(&self.dumbbell, spec)?))
    }

    /// Stops the gateways, if there are any.
    pub fn unprotect(&mut self) {
        if let Some(mut gateways) = self.gateways.take() {
            // Either may have been killed by the experiment.
            let _ = gateways.a.stop();
            let _ = gateways.b.stop();
        }
    }

    /// The gateways that run.
    pub fn gateways(&mut self) -> Option<&mut Gateways> {
        self.gateways.as_mut()
    }

    /// The first host of site A.
    pub fn a1(&self) -> &Host {
        self.dumbbell.a1()
    }

    /// The first host of site B.
    pub fn b1(&self) -> &Host {
        self.dumbbell.b1()
    }
}
