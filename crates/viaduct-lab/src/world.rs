//! What nearly every experiment needs in a few words: two sites, a link of this kind between them,
//! gateways or none.

use anyhow::Result;
use viaduct_proto::link::LinkConfig;

use crate::emulator::{Emulator, EmulatorConfig};
use crate::gateways::{GatewaySpec, Gateways};
use crate::topology::{Dumbbell, DumbbellSpec, Host, Journal, Wan};

/// Two sites and an emulated link. All of it is gone when this is dropped.
#[derive(Debug)]
pub struct World {
    gateways: Option<Gateways>,
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
        let wan = Wan::Emulated(Box::new(EmulatorConfig::symmetric(link.clone(), seed)));
        Self::build(&DumbbellSpec { host_mtu, wan_mtu, wan, ..DumbbellSpec::default() }, journal)
    }

    /// As `spec` says.
    pub fn build(spec: &DumbbellSpec, journal: &Journal) -> Result<World> {
        Ok(World { gateways: None, dumbbell: Dumbbell::build(spec, journal)? })
    }

    /// The link, if it is an emulated one.
    pub fn emulator(&self) -> Option<&Emulator> {
        self.dumbbell.emulator()
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
