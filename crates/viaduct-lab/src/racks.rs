//! Gateways of two racks, set up as by an operator: all members of a site have the same config
//! file. Only the directories of their keys and sockets differ, because all members run on one
//! machine here.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use viaduct_proto::keys::SecretKey;

use crate::gateways::{Gateway, random_key};
use crate::stop;
use crate::topology::{Racks, Scratch};

/// Letters of the sites.
pub const LETTERS: [char; 2] = ['a', 'b'];
/// Time limit for all sessions to be up.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Gateways of both racks; stopped when dropped.
#[derive(Debug)]
pub struct RackGateways {
    /// Gateways of each site, A first.
    pub sites: [Vec<Gateway>; 2],
    scratches: [Vec<Scratch>; 2],
    keys: [Vec<SecretKey>; 2],
    /// Lines of `[peer.fec]`.
    fec: String,
}

impl RackGateways {
    /// Prepares the gateways of all members, without starting them.
    pub fn prepare(world: &Racks, fec: &str) -> Result<RackGateways> {
        let mut racks = RackGateways {
            sites: [Vec::new(), Vec::new()],
            scratches: [Vec::new(), Vec::new()],
            keys: [Vec::new(), Vec::new()],
            fec: fec.to_owned(),
        };
        for (site, keys) in world.sites.iter().zip(&mut racks.keys) {
            *keys = site.members.iter().map(|_| random_key()).collect::<Result<_>>()?;
        }
        for site in [0, 1] {
            for (n, node) in world.sites[site].members.iter().enumerate() {
                let scratch = Scratch::new()?;
                scratch.write_secret("site.key", racks.keys[site][n].to_text())?;
                let file = racks.file(site, &scratch, "");
                let ways = (&scratch, scratch.path());
                racks.sites[site].push(Gateway::new(node, ways, LETTERS[site], &file)?);
                racks.scratches[site].push(scratch);
            }
        }
        Ok(racks)
    }

    /// Starts all gateways, and waits until all sessions are up.
    pub fn start(&mut self) -> Result<()> {
        self.sites.iter_mut().flatten().try_for_each(Gateway::start)?;
        self.wait_until_up()
    }

    /// Waits until each gateway has a session with each member of the other site.
    pub fn wait_until_up(&self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for (site, gateways) in self.sites.iter().enumerate() {
            for gateway in gateways {
                while self.sessions(site, gateway) < self.sites[1 - site].len() {
                    stop::check()?;
                    if Instant::now() > deadline {
                        bail!("a session is not up; the log of its gateway: {}", gateway.log());
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of sessions of a gateway of `site` that are up.
    fn sessions(&self, site: usize, gateway: &Gateway) -> usize {
        let Ok(status) = gateway.status() else { return 0 };
        let name = |n: usize| peer_name(1 - site, n);
        (0..self.sites[1 - site].len()).filter(|n| status.counters_of(&name(*n)).up).count()
    }

    /// Rewrites the configs of a site so that the member named `drained` is drained, or no member
    /// if `drained` is empty.
    pub fn drain(&self, site: usize, drained: &str) -> Result<()> {
        for (gateway, scratch) in self.sites[site].iter().zip(&self.scratches[site]) {
            fs::write(gateway.config(), self.file(site, scratch, drained))?;
        }
        Ok(())
    }

    /// Returns the config of member `n` of `site` without a list of members, for `viaduct fleet`.
    pub fn base(&self, site: usize, n: usize) -> String {
        self.with_members(site, &self.scratches[site][n], "", "")
    }

    /// Returns the config of a member of `site`; the member `drained` is drained.
    fn file(&self, site: usize, scratch: &Scratch, drained: &str) -> String {
        let member = |of: usize, n: usize, table: &str| {
            let (key, name) = (self.keys[of][n].public(), format!("{}{}", LETTERS[of], n + 1));
            let at = format!("endpoint = \"10.11{}.{}.2:7400\"\n", of + 1, n + 1);
            let drain = if of == site && name == drained { "drain = true\n" } else { "" };
            let more = if of == site { drain } else { at.as_str() };
            format!("[[{table}.member]]\nname = \"{name}\"\nkey = \"{key}\"\n{more}")
        };
        let members = |of: usize, table| -> String {
            (0..self.keys[of].len()).map(|n| member(of, n, table)).collect()
        };
        self.with_members(site, scratch, &members(site, "site"), &members(1 - site, "peer"))
    }

    fn with_members(&self, site: usize, scratch: &Scratch, own: &str, peers: &str) -> String {
        format!(
            "[site]\nname = \"site-{}\"\nkey = \"site.key\"\nprefixes = [\"10.{}.0.0/16\"]\n\
             wan = \"wan0\"\nlisten = \"0.0.0.0:7400\"\nrun_dir = \"{}\"\n{}\
             [[peer]]\nname = \"site-{}\"\nprefixes = [\"10.{}.0.0/16\"]\n{}[peer.fec]\n{}",
            LETTERS[site],
            site + 1,
            scratch.path().display(),
            own,
            LETTERS[1 - site],
            2 - site,
            peers,
            self.fec,
        )
    }
}

/// Returns the name of member `n` of `site`, counted from 0, in the status of its peers.
pub fn peer_name(site: usize, n: usize) -> String {
    format!("site-{0}/{0}{1}", LETTERS[site], n + 1)
}
