//! The page in Chromium, with real gateways.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use viaduct_lab::binary::use_binary;
use viaduct_lab::emulator::Direction;
use viaduct_lab::gateways::GatewaySpec;
use viaduct_lab::topology::programs::Iperf;
use viaduct_lab::topology::{Journal, user_and_system};
use viaduct_lab::world::World;
use viaduct_proto::link::{LinkConfig, LinkStats};

use super::cdp::Browser;
use super::common::until;
use super::{Dash, VIADUCT, more, scratch, serve};

/// Two sites with gateways, and a link between them.
pub(super) fn world(link: &str) -> World {
    use_binary(VIADUCT);
    let mut world = World::new((1400, 1500), &link.parse().unwrap(), 1, &Journal::new()).unwrap();
    world.protect(&GatewaySpec::default()).unwrap();
    world
}

/// Counters of the link from A to B.
fn link(world: &World) -> LinkStats {
    world.link().unwrap().stats().unwrap().a_to_b
}

#[test]
fn a_step_of_the_loss_is_seen_in_two_seconds_and_in_its_size() {
    const LINK: &str = "rate=100M,delay=5ms";
    const STEP: Duration = Duration::from_secs(8);
    let dir = scratch("browser");
    let mut world = world(LINK);
    let dash = Dash::start(world.gateways().unwrap().directory(), "127.0.0.1", &[]);
    let mut browser = Browser::start(&dir);
    let world = &world;
    let set_loss = |percent: u32| {
        let lossy: LinkConfig = format!("{LINK},loss={percent}%").parse().unwrap();
        world.link().unwrap().set(Direction::AtoB, lossy).unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(move || Iperf::udp(40_000_000, 1_000, 40).run(world.a1(), world.b1()).unwrap());
        thread::sleep(Duration::from_secs(2));
        let origin = format!("http://{}/", dash.at);
        opens_within_a_second(&mut browser, &origin);
        let mut delays = Vec::new();
        for _ in 0..2 {
            delays.push(seen_after(&mut browser, || set_loss(2)));
            set_loss(0);
        }
        let mut before = LinkStats::default();
        let mut begun = Instant::now();
        delays.push(seen_after(&mut browser, || {
            (before, begun) = (link(world), Instant::now());
            set_loss(2);
        }));
        println!("the steps are seen after {delays:?}");
        // Another test may delay a step.
        for (series, name) in ["recovered packets", "losses"].iter().enumerate() {
            let mut delays: Vec<_> = delays.iter().map(|of| of[series]).collect();
            delays.sort();
            assert!(delays[1] < Duration::from_secs(2), "the {name} are seen after {delays:?}");
        }
        thread::sleep(STEP.saturating_sub(begun.elapsed()));
        let after = link(world);
        let real = (after.lost - before.lost) as f64 / (after.sent - before.sent) as f64 * 100.0;
        // The first seconds have packets from before the step.
        let mean = "series.lost_in.slice(-10).reduce((sum, loss) => sum + loss, 0) / 10";
        let shown = browser.evaluate(mean).as_f64().unwrap();
        assert!((shown - real).abs() < real / 10.0, "{shown} % are shown, {real} % were lost");

        browser.evaluate("1"); // reads the last events
        let foreign: Vec<_> =
            browser.requests.iter().filter(|url| !url.starts_with(&origin)).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
        assert!(browser.requests.len() >= 6, "{:?}", browser.requests);
        fits_a_phone(&mut browser);
    });
    fs::remove_dir_all(&dir).unwrap();
}

/// Waits until no losses are shown, begins a step, and returns the times after which the recovered
/// packets and the losses show it.
fn seen_after(browser: &mut Browser, begin: impl FnOnce()) -> [Duration; 2] {
    /// Loss in percent from which the step counts as seen: 5 of the 5,000 packets of a second.
    const MIN_LOSS: f64 = 0.1;
    until("no loss is shown", || {
        shown(browser, "lost_in").is_some_and(|loss| loss < MIN_LOSS)
            && shown(browser, "recovered_in").is_some_and(|packets| packets < 1.0)
    });
    begin();
    let begun = Instant::now();
    [("recovered_in", 20.0), ("lost_in", MIN_LOSS)].map(|(series, least)| {
        until("the step is seen", || shown(browser, series).is_some_and(|value| value > least));
        begun.elapsed()
    })
}

/// Opens the page of site A at site B's gateway, and checks its first plot and its facts.
fn opens_within_a_second(browser: &mut Browser, origin: &str) {
    let page = format!("{origin}#site-b/peer/site-a");
    browser.call("Page.navigate", &json!({ "url": page }));
    until("plots are drawn", || {
        browser.evaluate("typeof plots === 'object' && plots.length > 0 && $('title').textContent")
            == "site-b · site-a"
    });
    let first = "performance.getEntriesByName('plotted')[0].startTime";
    let first = browser.evaluate(first).as_f64().unwrap();
    assert!(first < 1_000.0, "the first plot appears after {first} ms");
    let facts = browser.evaluate("$('facts').textContent");
    assert!(facts.as_str().unwrap().contains("transportUDP: as configured"), "{facts}");
}

/// Latest value of a series, as the page shows it next to the plot.
fn shown(browser: &mut Browser, series: &str) -> Option<f64> {
    let text = format!("document.querySelector('[data-series={series}]').textContent");
    browser.evaluate(&text).as_str()?.parse().ok()
}

/// Checks that nothing is wider than the screen of a phone.
fn fits_a_phone(browser: &mut Browser) {
    let phone = json!({ "width": 360, "height": 640, "deviceScaleFactor": 2, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", &phone);
    until("the page fits a phone", || {
        browser.evaluate("document.documentElement.scrollWidth <= 360") == true
            && browser.evaluate("plots.every((plot) => plot.chart.width <= 360)") == true
    });
}

#[test]
fn names_are_text_and_colours_follow_the_scheme() {
    let dir = scratch("names");
    let hostile = dir.join("<img src=x onerror=document.title=1>");
    fs::create_dir_all(&hostile).unwrap();
    let (_server, _) = serve(&hostile, &dir);
    let dash = Dash::start(&dir, "127.0.0.1", &[]);
    let mut browser = Browser::start(&dir.join("profile"));
    let url = format!("http://{}/", dash.at);
    browser.call("Page.navigate", &json!({ "url": url }));
    until("the server is shown", || {
        browser.evaluate("typeof plots === 'object' && plots.length > 0") == true
    });
    let nav = browser.evaluate("$('services').textContent");
    assert!(nav.as_str().unwrap().contains("<img src=x onerror="), "{nav}");
    assert_eq!(browser.evaluate("document.images.length"), 0);
    assert_eq!(browser.evaluate("document.title"), "TCP – viaduct");
    let back = "getComputedStyle(document.body).backgroundColor";
    let mut backs = Vec::new();
    for scheme in ["light", "dark"] {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        browser.call("Emulation.setEmulatedMedia", &json!({ "features": feature }));
        backs.push(browser.evaluate(back));
    }
    assert_eq!(backs, ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]);
    drop(browser);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn ten_viewers_cost_a_gateway_nothing() {
    const TIME: Duration = Duration::from_secs(10);
    let mut world = world("rate=100M,delay=5ms,loss=1%");
    let gateways = world.gateways().unwrap();
    let directory = gateways.directory().to_owned();
    let pid = gateways.a.pid().unwrap().as_raw_nonzero().get().cast_unsigned();
    let used = || user_and_system(pid).unwrap().iter().sum::<f64>();
    let spent = || {
        let before = used();
        thread::sleep(TIME);
        (used() - before) / TIME.as_secs_f64()
    };
    let world = &world;
    thread::scope(|scope| {
        // 100 packets a second.
        scope.spawn(move || Iperf::udp(800_000, 1_000, 24).run(world.a1(), world.b1()).unwrap());
        thread::sleep(Duration::from_secs(1));
        let alone = spent();
        let dash = Dash::start(&directory, "127.0.0.1", &[]);
        let viewers: Vec<_> = (0..10).map(|_| dash.watch()).collect();
        let watched = spent();
        println!("{watched} of a core with viewers, {alone} without");
        assert!(watched - alone <= 0.01, "{watched} of a core with viewers, {alone} without");
        for (mut stream, _) in viewers {
            more(&mut stream);
        }
    });
}
