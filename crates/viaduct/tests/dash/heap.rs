//! Memory of the page.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use viaduct_lab::world::World;
use viaduct_sys::process::Process;

use super::browser::world;
use super::cdp::Browser;
use super::common::{free_port, until};
use super::{Dash, VIADUCT, scratch, serve};

#[test]
#[ignore = "takes ten minutes: run by `make test` concurrently with the others"]
fn the_page_keeps_its_memory_for_ten_minutes() {
    const TIME: Duration = Duration::from_secs(600);
    const CLICK_INTERVAL: Duration = Duration::from_secs(15);
    let dir = scratch("heap");
    let mut world = world("rate=100M,delay=5ms,loss=1%");
    let run_dir = world.gateways().unwrap().directory().to_owned();
    let _ping = ping(&world);
    let (_proxied, proxy) = proxied(&dir, &run_dir);
    let dash = Dash::start(&run_dir, "127.0.0.1", &[]);
    let mut browser = Browser::start(&dir.join("profile"));
    browser.call("Page.navigate", &json!({ "url": format!("http://{}/", dash.at) }));
    until("plots are drawn", || {
        browser.evaluate("typeof plots === 'object' && plots.length > 0") == true
    });
    // Memory that is allocated only once, such as that of the compiled code, is not growth.
    request(proxy);
    show(&mut browser, "policy");
    show(&mut browser, "peer");
    thread::sleep(Duration::from_secs(10));
    let before = heap(&mut browser);
    let begun = Instant::now();
    for kind in ["policy", "peer"].into_iter().cycle() {
        thread::sleep(CLICK_INTERVAL);
        if begun.elapsed() > TIME {
            break;
        }
        request(proxy);
        show(&mut browser, kind);
    }
    let grown = heap(&mut browser) - before;
    assert!(grown < 5e6, "the heap has grown by {grown} bytes");
    let age = browser.evaluate("Date.now() / 1000 - times.at(-1)").as_f64().unwrap();
    assert!(age < 5.0, "the last sample is {age} s old: the page has stopped");
    let samples = browser.evaluate("times.length").as_u64().unwrap();
    assert!(samples > 1_000, "only {samples} samples are plotted");
    show(&mut browser, "peer");
    let known = "series.lost_in.filter((loss) => loss !== null).length";
    let known = browser.evaluate(known).as_u64().unwrap();
    assert!(known > 900, "the loss is known in {known} samples only");
    drop(browser);
    fs::remove_dir_all(&dir).unwrap();
}

/// Size of the page's heap in bytes, without garbage.
fn heap(browser: &mut Browser) -> f64 {
    browser.call("HeapProfiler.collectGarbage", &json!({}));
    browser.call("Runtime.getHeapUsage", &json!({}))["usedSize"].as_f64().unwrap()
}

/// Clicks on the first subject of this kind in the list, and waits until its plots are drawn.
fn show(browser: &mut Browser, kind: &str) {
    let link = format!("document.querySelector('nav a[href*=\"/{kind}/\"]')");
    until("the subject is listed", || browser.evaluate(&format!("{link} !== null")) == true);
    browser.evaluate(&format!("{link}.click()"));
    let is_drawn = format!("plots.address === {link}.getAttribute('href')");
    until("the plots of the subject are drawn", || browser.evaluate(&is_drawn) == true);
}

/// Starts a flow of a few packets a second through the gateways.
fn ping(world: &World) -> Process {
    let mut ping = world.a1().command("ping");
    ping.args(["-n", "-q", "-i", "0.2", &world.b1().v4().to_string()]);
    ping.stdin(Stdio::null()).stdout(Stdio::null());
    world.a1().spawn(ping).unwrap()
}

/// Starts a file server, and a proxy in front of it that has a policy. Returns both, and the
/// proxy's port.
fn proxied(dir: &Path, run_dir: &Path) -> ([Process; 2], u16) {
    let (server, to) = serve(dir, run_dir);
    let port = free_port();
    let config = dir.join("proxy.toml");
    let text = format!(
        "[proxy]\nlisten = '127.0.0.1:{port}'\nto = '127.0.0.1:{to}'\nrun-dir = '{}'\n\
         [[policy]]\nname = 'files'\nports = ['{to}']\n",
        run_dir.display()
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(VIADUCT);
    command.args(["proxy", "--config"]).arg(&config);
    let proxy = Process::spawn(command).unwrap();
    until("the proxy is up", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    ([server, proxy], port)
}

/// Sends a request to the server through the proxy.
fn request(proxy: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
}
