//! Figure 4: time to complete a transfer, with proxies that divide the path evenly.

use std::net::IpAddr;

use viaduct_sys::bpf::SynOption;

use super::downloads;
use super::model::{Expected, expected};
use crate::experiments::prelude::*;
use crate::topology::Chain;

/// Delay from the client to the server in milliseconds, one way.
const ONE_WAY: f64 = 50.0;
const MAX_PROXIES: usize = 3;
/// Shares of the time to the first byte that one to three proxies save in the paper.
const FIRST_BYTE: [f64; MAX_PROXIES] = [0.25, 1.0 / 3.0, 0.375];
/// Shares of the time for 25 KB that one to three proxies save in the paper.
const KB_25: [f64; MAX_PROXIES] = [0.33, 0.44, 0.49];

pub(in crate::experiments) const ABOUT: About = About {
    name: "miniproxy/ttc",
    title: "Time to complete a transfer, by number of proxies",
    figure: "Miniproxy, Figure 4",
    finding: "With 1, 2 and 3 proxies the time to the first byte falls by 25 %, 33.3 % and 37.5 %, \
              and the time for 25 KB by 33 %, 44 % and 49 %.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let sizes: &[usize] = run.choose(&[10, 25, 50, 100, 150, 200, 250, 300, 400, 500], &[10, 25]);
    let times = run.choose(31, 9);
    run.param("link", "100 Mb/s, 100 ms round trip, evenly split");
    run.param("proxies", "SYN forwarded early: on the path (tproxy), and explicit (TCP option)");
    run.param("downloads_each", times);
    run.param("shown", "medians");
    run.congestion_control("cubic");
    let worlds = worlds(run);
    run.steps(worlds.len() * sizes.len());
    let size = ("size", "KB");
    let whole = Plot::line("Time to complete", size, ("time", "ms"));
    let first = Plot::line("Time to first byte", size, ("time", "ms"));
    let mut none = Vec::new();
    for (proxies, kind) in worlds {
        let name = names(proxies, kind);
        let world = World::new(run, proxies, kind)?;
        let mut found = Vec::new();
        for &kb in sizes {
            run.step(&format!("{name}, {kb} KB"))?;
            let got = world.measure(kb * 1000, times, run.seed())?;
            run.plot_point(&whole, &name, (kb as f64, got.whole));
            run.plot_point(&first, &name, (kb as f64, got.first_byte));
            found.push(got);
        }
        if kind == Kind::OnPath {
            let model = |kb: usize| expected(&delays(proxies), kb * 1000).whole;
            let points = sizes.iter().map(|&kb| (kb as f64, model(kb)));
            run.plot_points(&whole, &format!("{name}, model"), points);
        }
        match proxies {
            0 => none = found,
            _ => checks(run, &name, proxies, &none, &found),
        }
    }
    Ok(())
}

/// Way in which flows reach the proxies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The proxies are routers on the path.
    OnPath,
    /// The client's host sends flows to the proxies; a TCP option of the SYN names the destination.
    Explicit,
}

/// Returns all numbers of proxies of both kinds. Explicit proxies are left out if this process
/// cannot set the TCP option.
fn worlds(run: &mut Run) -> Vec<(usize, Kind)> {
    let of = |kind| (1..=MAX_PROXIES).map(move |proxies| (proxies, kind));
    let mut worlds: Vec<_> = [(0, Kind::OnPath)].into_iter().chain(of(Kind::OnPath)).collect();
    match SynOption::attach() {
        Ok(_) => worlds.extend(of(Kind::Explicit)),
        // For example in a user namespace, whose root may not load BPF programs.
        Err(error) => run.param("explicit", format!("left out: {error}")),
    }
    worlds
}

fn checks(run: &mut Run, name: &str, proxies: usize, none: &[Expected], found: &[Expected]) {
    let saved =
        |at: usize, time: fn(&Expected) -> f64| 100.0 * (1.0 - time(&found[at]) / time(&none[at]));
    let least = 100.0 * FIRST_BYTE[proxies - 1] - 2.0;
    let what = format!("{name}: time to first byte saved, %");
    run.at_least(&what, saved(0, |e| e.first_byte), least);
    let least = 100.0 * KB_25[proxies - 1] - 3.0;
    run.at_least(&format!("{name}: time for 25 KB saved, %"), saved(1, |e| e.whole), least);
}

fn names(proxies: usize, kind: Kind) -> String {
    let explicit = if kind == Kind::Explicit { ", explicit" } else { "" };
    match proxies {
        0 => "no proxy".to_owned(),
        1 => format!("1 proxy{explicit}"),
        n => format!("{n} proxies{explicit}"),
    }
}

fn delays(proxies: usize) -> Vec<f64> {
    vec![ONE_WAY / (proxies + 1) as f64; proxies + 1]
}

/// Chain of machines with a proxy on each router.
struct World {
    // Dropped before the nodes they run in.
    _proxies: Vec<Proxy>,
    chain: Chain,
}

impl World {
    fn new(run: &Run, proxies: usize, kind: Kind) -> Result<World> {
        let links: Vec<_> = delays(proxies).into_iter().map(downloads::hop).collect();
        let chain = Chain::build(&links, run.seed(), run.journal())?;
        for host in [chain.client(), chain.server()] {
            host.set_congestion_control("cubic")?;
        }
        let started = match kind {
            Kind::OnPath => chain.hops().iter().map(Proxy::on_path).collect::<Result<_, _>>()?,
            Kind::Explicit => explicit(&chain)?,
        };
        Ok(World { _proxies: started, chain })
    }

    /// Returns the medians of `times` downloads (an odd number) in milliseconds.
    fn measure(&self, bytes: usize, times: usize, seed: u64) -> Result<Expected> {
        downloads::measure(self.chain.client(), self.chain.server(), bytes, times, seed)
    }
}

/// Starts explicit hops on all routers, and steers the client to the first. Each hop listens at its
/// address towards the client, and forwards to the next.
fn explicit(chain: &Chain) -> Result<Vec<Proxy>> {
    let at = |n: usize| IpAddr::from([10, n as u8 + 1, 0, 2]);
    let hops = chain.hops();
    let start = |(n, node)| Proxy::explicit(node, at(n), (n + 1 < hops.len()).then(|| at(n + 1)));
    let mut started: Vec<_> = hops.iter().enumerate().map(start).collect::<Result<_, _>>()?;
    started.push(Proxy::steer(chain.client(), at(0))?);
    Ok(started)
}
