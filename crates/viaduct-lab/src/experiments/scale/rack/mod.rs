//! Racks of three gateways at two sites: processes and boxes that fail, and slices with two owners.
//!
//! ```text
//!   a ── inner router ═ a1 a2 a3 ═ outer router ══ link ══ outer router ═ b1 b2 b3 ═ ... ── b
//!               └ BGP, BFD ┘ └ BGP, BFD ┘
//! ```
//!
//! Datagrams go from A to B in all slices. A missing datagram indicates a failure of routing on a
//! link without losses, and a missing repair on a link with losses.

mod fleet;
mod proxies;
mod routing;

use fleet::Fleets;
use routing::{BFD_INTERVAL, Owners, Routing, wait_for};

use crate::experiments::prelude::*;
use crate::load::{SliceDatagram, SliceStream, missing_share};
use crate::racks::RackGateways;
use crate::topology::Racks;
use crate::topology::racks::SLICES;

const MEMBERS: usize = 3;
const LOSSLESS: &str = "rate=200M,delay=5ms";
const LOSSY: &str = "rate=200M,delay=5ms,loss=2%";
/// Share of datagrams that the lossy link loses.
const LOSS: f64 = 0.02;
/// Datagrams a second.
const RATE: f64 = 4_000.0;
/// Time after which systemd restarts a process of the unit.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Time until the losses of the link are known, and repairs are sent.
const WARM_UP: Duration = Duration::from_secs(2);
/// Maximum time without protection, in seconds, not counting the time that routing takes.
const UNPROTECTED: f64 = 1.0;
/// Maximum time until traffic is back, in intervals of BFD.
const INTERVALS: f64 = 3.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "scale/rack",
    title: "Racks of three gateways: a process killed, a box gone, a slice with two owners",
    figure: "Maelstrom, section 4.6 (beyond its figures)",
    finding: "For loads of many gigabits, a rack of appliances could divide the address space of \
              the remote data center; fault tolerance is left to future work.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let repeats = run.choose(5, 1);
    run.param("link", LOSSY);
    run.param("members", MEMBERS);
    run.param("datagrams_a_second", RATE);
    run.param("bfd_interval_ms", BFD_INTERVAL.as_millis() as u64);
    run.param("restart_after_ms", RESTART_AFTER.as_millis() as u64);
    run.steps(1 + repeats * 8 + 3);
    run.step("start")?;
    let mut lab = Lab::start(run)?;
    let mut found = Found::default();
    for n in 0..repeats {
        // At both sites, the members fail in turn.
        for site in [0, 1] {
            let of = ["a", "b"][site];
            let (killed, gone) = ((site, n % MEMBERS), (site, (n + 1) % MEMBERS));
            run.step(&format!("a process of {of} killed, no losses"))?;
            let (sent, _) = lab.kill_process(killed, LOSSLESS)?;
            found.killed_lost.push(missing(&sent).count());
            run.step(&format!("a process of {of} killed, losses"))?;
            let (sent, at) = lab.kill_process(killed, LOSSY)?;
            let slices = lab.slices(killed);
            found.killed_unprotected.push(unprotected(&sent, &slices, (at, at)));
            run.step(&format!("a box of {of} gone, no losses"))?;
            let (sent, at, moved) = lab.lose_box(gone, LOSSLESS)?;
            let last = missing(&sent).map(|datagram| datagram.sent_at).max().unwrap_or(at);
            let outage = last.saturating_duration_since(at).as_secs_f64();
            found.outages.push(outage / BFD_INTERVAL.as_secs_f64());
            found.moved.push(moved);
            run.step(&format!("a box of {of} gone, losses"))?;
            let (sent, at, moved) = lab.lose_box(gone, LOSSY)?;
            let slices = lab.slices(gone);
            let back = at + BFD_INTERVAL.mul_f64(INTERVALS);
            found.gone_unprotected.push(unprotected(&sent, &slices, (at, back)));
            found.moved.push(moved);
        }
    }
    let off = Duration::from_secs(run.choose(600, 10));
    run.param("etcd_off_s", off.as_secs());
    run.step("etcd off")?;
    (found.off_lost, found.off_changed) = lab.lose_etcd(off)?;
    run.step("two owners")?;
    let copies;
    (copies, found.wrong) = lab.two_owners()?;
    run.param("copies that two owners inject, %", (copies * 1e3).round() / 10.0);
    found.report(run);
    drop(lab);
    run.step("four proxies")?;
    proxies::run(run)
}

/// Results of all repetitions.
#[derive(Debug, Default)]
struct Found {
    killed_lost: Vec<usize>,
    killed_unprotected: Vec<f64>,
    outages: Vec<f64>,
    gone_unprotected: Vec<f64>,
    moved: Vec<usize>,
    off_lost: usize,
    off_changed: usize,
    wrong: usize,
}

impl Found {
    fn report(&self, run: &mut Run) {
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let lost = self.killed_lost.iter().sum::<usize>() as f64;
        run.at_most("process killed: datagrams lost", lost, 0.0);
        let unprotected = most(&self.killed_unprotected);
        run.at_most("process killed: seconds unprotected", unprotected, UNPROTECTED);
        run.at_most(
            "box gone: BFD intervals until traffic is back",
            most(&self.outages),
            INTERVALS,
        );
        let unprotected = most(&self.gone_unprotected);
        run.at_most("box gone: seconds unprotected once traffic is back", unprotected, UNPROTECTED);
        let moved = self.moved.iter().sum::<usize>() as f64;
        run.at_most("box gone: slices of other boxes that moved", moved, 0.0);
        run.at_most("etcd off: datagrams lost", self.off_lost as f64, 0.0);
        run.at_most("etcd off: configs that changed", self.off_changed as f64, 0.0);
        run.at_most("two owners: datagrams with a wrong byte", self.wrong as f64, 0.0);
        let plot = Plot::histogram("Longest time", ("after", ""), ("time", "s"));
        let intervals = most(&self.outages) * BFD_INTERVAL.as_secs_f64();
        let bars = [
            ("a process killed: unprotected", most(&self.killed_unprotected)),
            ("a box gone: without traffic", intervals),
            ("a box gone: unprotected once traffic is back", most(&self.gone_unprotected)),
        ];
        run.plot_bars(&plot, "viaduct", bars);
    }
}

/// Both sites with all programs.
struct Lab {
    gateways: RackGateways,
    routing: Routing,
    /// Routes while all members are present.
    whole: Owners,
    world: Racks,
}

impl Lab {
    fn start(run: &Run) -> Result<Lab> {
        let world = Racks::build(MEMBERS, &link(LOSSLESS), run.seed(), run.journal())?;
        let routing = Routing::start(&world)?;
        let mut gateways = RackGateways::prepare(&world, "")?;
        gateways.start()?;
        let whole = wait_for(&world, "all slices", is_whole)?;
        // The daemons learn some routes slightly later: the first route to a slice may not be the
        // best one.
        thread::sleep(Duration::from_secs(2));
        let whole = wait_for(&world, "all slices", |owners| owners.len() == whole.len())?;
        Ok(Lab { gateways, routing, whole, world })
    }

    /// Sets the link, starts a stream, and lets it run for [`WARM_UP`].
    fn stream(&self, text: &str) -> Result<SliceStream> {
        for direction in [Direction::AtoB, Direction::BtoA] {
            self.world.emulator.set(direction, link(text))?;
        }
        let stream = SliceStream::start(&self.world, 0, RATE)?;
        thread::sleep(WARM_UP);
        Ok(stream)
    }

    /// Returns the indexes of the slices of site B that the member sends or receives.
    fn slices(&self, (site, member): (usize, usize)) -> Vec<usize> {
        // The inner router of the sender's site chooses the member there; the outer router of the
        // receiver's site chooses the member there.
        let owns = |slice: &usize| {
            let prefix = format!("10.2.{}.0/20", slice * (256 / usize::from(SLICES)));
            self.whole.get(&(site, site == 0, prefix)) == Some(&member)
        };
        (0..usize::from(SLICES)).filter(owns).collect()
    }

    /// Kills a gateway, and restarts it as systemd would. Returns the datagrams of the stream, and
    /// the time of the kill.
    fn kill_process(
        &mut self,
        (site, member): (usize, usize),
        link: &str,
    ) -> Result<(Vec<SliceDatagram>, Instant)> {
        let stream = self.stream(link)?;
        let killed_at = Instant::now();
        self.gateways.sites[site][member].kill()?;
        thread::sleep(RESTART_AFTER);
        self.gateways.sites[site][member].start()?;
        self.settle()?;
        Ok((stream.finish()?, killed_at))
    }

    /// Cuts a box off, and restores it later. Returns the datagrams of the stream around the
    /// failure, the time of the failure, and the number of slices of other boxes that moved.
    fn lose_box(
        &mut self,
        (site, member): (usize, usize),
        link: &str,
    ) -> Result<(Vec<SliceDatagram>, Instant, usize)> {
        let stream = self.stream(link)?;
        let gone_at = Instant::now();
        self.world.sites[site].cut_off(member)?;
        let is_left = |owners: &Owners| {
            let mut of_site = owners.iter().filter(|((of, ..), _)| *of == site);
            owners.len() == self.whole.len() && of_site.all(|(_, owner)| *owner != member)
        };
        let owners = wait_for(&self.world, "no slice of the box that is gone", is_left)?;
        thread::sleep(Duration::from_secs(3));
        let sent = stream.finish()?;
        let has_moved = |(key, owner): &(&(usize, bool, String), &usize)| {
            let is_others = key.0 != site || **owner != member;
            is_others && owners.get(*key) != Some(*owner)
        };
        let moved = self.whole.iter().filter(has_moved).count();
        // The box reboots.
        self.routing.kill(site, member);
        self.gateways.sites[site][member].kill()?;
        self.world.sites[site].restore(member)?;
        self.routing.restart(&self.world, site, member)?;
        self.gateways.sites[site][member].start()?;
        self.settle()?;
        Ok((sent, gone_at, moved))
    }

    /// Waits until all sessions are up and all routes are the original ones.
    fn settle(&self) -> Result<()> {
        self.gateways.wait_until_up()?;
        wait_for(&self.world, "their original slices", |owners| *owners == self.whole)?;
        thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Lets `viaduct fleet` write the members' configs from etcd. Then stops etcd for `off`, and
    /// starts it again without data. Returns the number of missing datagrams, and the number of
    /// configs that have changed.
    fn lose_etcd(&mut self, off: Duration) -> Result<(usize, usize)> {
        let mut fleets = Fleets::start(self)?;
        self.settle()?;
        let before = fleet::configs(self)?;
        let stream = self.stream(LOSSLESS)?;
        fleets.stop_etcd();
        let until = Instant::now() + off;
        while Instant::now() < until {
            stop::check()?;
            thread::sleep(Duration::from_millis(200));
        }
        fleets.start_etcd()?;
        thread::sleep(Duration::from_secs(6));
        let sent = stream.finish()?;
        let after = fleet::configs(self)?;
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        self.settle()?;
        Ok((missing(&sent).count(), changed))
    }

    /// Sends the datagrams of all slices alternately through two members of each site, so that
    /// neither member sees all of them. Returns the share of datagrams that arrived more than once,
    /// and the number of those with a wrong byte.
    fn two_owners(&self) -> Result<(f64, usize)> {
        let stream = self.stream(LOSSY)?;
        let until = Instant::now() + Duration::from_secs(3);
        let mut turn = 0;
        while Instant::now() < until {
            turn = 1 - turn;
            for (site, of) in self.world.sites.iter().enumerate() {
                // The kernel prefers these routes, with metric 1, to those of the daemon.
                let via =
                    |network: u8| format!("via 10.{network}{}.{}.2 metric 1", site + 1, 1 + turn);
                let replace = |to: usize, network: u8| {
                    let slices = (0..SLICES).map(move |slice| u32::from(slice) * 16);
                    let line =
                        move |slice| format!("route replace 10.{to}.{slice}.0/20 {}", via(network));
                    slices.map(line).collect::<Vec<_>>()
                };
                of.inner.ip(&replace(2 - site, 10))?;
                of.outer.ip(&replace(site + 1, 11))?;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let (sent, wrong) = stream.finish_counting()?;
        ensure!(sent.iter().any(|datagram| datagram.arrived_at.is_some()), "nothing arrived");
        let copied = sent.iter().filter(|datagram| datagram.copies > 1).count();
        Ok((copied as f64 / sent.len() as f64, wrong))
    }
}

/// Returns whether each router has a route for each slice that is announced to it.
fn is_whole(owners: &Owners) -> bool {
    owners.len() == 4 * usize::from(SLICES)
}

fn missing(sent: &[SliceDatagram]) -> impl Iterator<Item = &SliceDatagram> {
    sent.iter().filter(|datagram| datagram.arrived_at.is_none())
}

/// Estimates the seconds for which losses in these slices were not repaired. Counts the missing
/// datagrams among those sent at `since` or later; subtracts the number expected at the rate before
/// `failed_at`, when all traffic was protected; and divides the difference by the link's losses per
/// second.
fn unprotected(
    sent: &[SliceDatagram],
    slices: &[usize],
    (failed_at, since): (Instant, Instant),
) -> f64 {
    let of_slices = || sent.iter().filter(|datagram| slices.contains(&datagram.slice));
    let warm_at = sent[0].sent_at + WARM_UP / 2;
    let before = of_slices().filter(|of| of.sent_at >= warm_at && of.sent_at < failed_at);
    let usual = missing_share(before);
    let after: Vec<_> = of_slices().filter(|of| of.sent_at >= since).collect();
    let missing = after.iter().filter(|of| of.arrived_at.is_none()).count() as f64;
    let rate = RATE * slices.len() as f64 / f64::from(SLICES);
    ((missing - usual * after.len() as f64) / (LOSS * rate).max(1.0)).max(0.0)
}
