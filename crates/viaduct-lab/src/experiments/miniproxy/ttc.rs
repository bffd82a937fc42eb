//! Figure 4: time to complete a transfer, with proxies that split the way evenly.

use std::time::Duration;

use viaduct_proto::link::LinkConfig;

use super::model::{Expected, expected};
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::proxies::Proxy;
use crate::topology::Chain;
use crate::topology::programs::WebServer;

/// The experiment.
pub(in crate::experiments) struct Ttc;

/// One-way delay from the client to the server, milliseconds.
const ONE_WAY: f64 = 50.0;
const MOST_PROXIES: usize = 3;
/// Shares that the paper saves with one, two and three proxies, of the time to the first byte and of
/// the time for 25 KB.
const FIRST_BYTE: [f64; MOST_PROXIES] = [0.25, 1.0 / 3.0, 0.375];
const KB_25: [f64; MOST_PROXIES] = [0.33, 0.44, 0.49];
/// Longest that a download may take.
const LIMIT: Duration = Duration::from_secs(20);

impl Experiment for Ttc {
    fn about(&self) -> About {
        About {
            name: "miniproxy/ttc",
            title: "Time to complete a transfer, by number of proxies",
            figure: "Miniproxy, Figure 4",
            finding: "The time to the first byte falls by 25 %, 33.3 % and 37.5 % with 1, 2 and 3 \
                      proxies, that of 25 KB by 33 %, 44 % and 49 %.",
        }
    }

    fn run(&self, run: &mut Run) -> anyhow::Result<()> {
        let sizes: &[usize] =
            run.choose(&[10, 25, 50, 100, 150, 200, 250, 300, 400, 500], &[10, 25]);
        let times = run.choose(30, 7);
        run.param("link", "100 Mb/s, 100 ms there and back, evenly split");
        run.param("proxies", "on the path (tproxy), SYN forwarded early");
        run.param("downloads_each", times);
        run.congestion_control("cubic");
        run.steps((MOST_PROXIES + 1) * sizes.len());
        let size = ("size", "KB");
        let whole = Plot::line("Time to complete", size, ("time", "ms"));
        let first = Plot::line("Time to first byte", size, ("time", "ms"));
        let mut found = Vec::new();
        for proxies in 0..=MOST_PROXIES {
            let name = names(proxies);
            let series = [run.series(&whole, &name), run.series(&first, &name)];
            let model = run.series(&whole, &format!("{name}, by the model"));
            let world = World::new(run, proxies)?;
            let mut row = Vec::new();
            for &kb in sizes {
                run.step(&format!("{name}, {kb} KB"))?;
                let got = world.measure(kb * 1000, times, run.seed())?;
                run.point(series[0], kb as f64, got.whole);
                run.point(series[1], kb as f64, got.first_byte);
                run.point(model, kb as f64, expected(&delays(proxies), kb * 1000).whole);
                row.push(got);
            }
            found.push(row);
        }
        checks(run, &found);
        Ok(())
    }
}

fn checks(run: &mut Run, found: &[Vec<Expected>]) {
    for proxies in 1..=MOST_PROXIES {
        let saved = |at: usize, time: fn(&Expected) -> f64| {
            100.0 * (1.0 - time(&found[proxies][at]) / time(&found[0][at]))
        };
        let name = format!("{}: time to first byte sooner by, %", names(proxies));
        let least = 100.0 * FIRST_BYTE[proxies - 1] - 2.0;
        run.check(&name, saved(0, |e| e.first_byte), Bound::AtLeast(least));
        let name = format!("{}: 25 KB sooner by, %", names(proxies));
        let least = 100.0 * KB_25[proxies - 1] - 3.0;
        run.check(&name, saved(1, |e| e.whole), Bound::AtLeast(least));
    }
}

fn names(proxies: usize) -> String {
    match proxies {
        0 => "no proxy".to_owned(),
        1 => "1 proxy".to_owned(),
        n => format!("{n} proxies"),
    }
}

fn delays(proxies: usize) -> Vec<f64> {
    vec![ONE_WAY / (proxies + 1) as f64; proxies + 1]
}

/// A row of machines with a proxy on each router.
struct World {
    // Before what they run in.
    _proxies: Vec<Proxy>,
    chain: Chain,
}

impl World {
    fn new(run: &Run, proxies: usize) -> anyhow::Result<World> {
        let link = |delay: f64| -> LinkConfig {
            let text = format!("rate=100M,delay={}us,queue=100ms", (delay * 1e3).round());
            text.parse().expect("ours, and right")
        };
        let links: Vec<_> = delays(proxies).into_iter().map(link).collect();
        let chain = Chain::build(&links, run.seed(), run.journal())?;
        for host in [chain.client(), chain.server()] {
            host.set_congestion_control("cubic")?;
        }
        let started = chain.hops().iter().map(Proxy::on_path).collect::<Result<_, _>>()?;
        Ok(World { _proxies: started, chain })
    }

    /// Means over `times` downloads, in milliseconds.
    fn measure(&self, bytes: usize, times: usize, seed: u64) -> anyhow::Result<Expected> {
        let web = WebServer::start(self.chain.server(), bytes, seed)?;
        // The first download teaches the neighbours their addresses.
        web.download(self.chain.client(), LIMIT)?;
        let mut sum = Expected { first_byte: 0.0, whole: 0.0 };
        for _ in 0..times {
            let got = web.download(self.chain.client(), LIMIT)?;
            sum.first_byte += got.first_byte.as_secs_f64() * 1e3 / times as f64;
            sum.whole += got.time.as_secs_f64() * 1e3 / times as f64;
        }
        Ok(sum)
    }
}
