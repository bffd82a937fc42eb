//! A caching hop: policies send flows to a Squid, whose health is checked.

use std::fs;
use std::time::{Duration, Instant};

use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::Chain;
use viaduct_lab::topology::programs::{Squid, WebServer};

use super::chain;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Lines of the example, with the port of the test's web server.
fn example() -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/squid/cache.toml");
    let text = fs::read_to_string(file).unwrap();
    let (_, lines) = text.split_once("[proxy]\n").unwrap();
    assert!(lines.contains("ports = [\"80\"]"));
    lines.replace("ports = [\"80\"]", "ports = [\"8080\"]")
}

/// Headers of the response to a request for the file.
fn headers(chain: &Chain) -> String {
    let url = format!("http://{}:8080/file", chain.server().v4());
    let words = ["--silent", "--show-error", "--fail", "--max-time", "10", "--output", "/dev/null"];
    chain.client().run("curl", &[&words[..], &["--dump-header", "-", &url]].concat()).unwrap()
}

#[test]
fn squid_answers_from_its_cache_and_flows_go_directly_while_it_is_down() {
    let chain = chain("delay=1ms");
    let web = WebServer::start(chain.server(), 50_000, 1).unwrap();
    let squid = Squid::cache(&chain.hops()[0]).unwrap();
    let near = Proxy::configured(&chain.hops()[0], &example()).unwrap();
    assert_eq!(web.download(chain.client(), TIMEOUT).unwrap().bytes, 50_000);
    let cached = headers(&chain);
    assert!(cached.contains("X-Cache: HIT from cache"), "{cached}");

    drop(squid);
    let begun = Instant::now();
    let direct = headers(&chain);
    assert!(!direct.contains("X-Cache"), "{direct}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let deadline = Instant::now() + TIMEOUT;
    while !near.log().contains("flows go directly to their servers") {
        assert!(Instant::now() < deadline, "{}", near.log());
        headers(&chain);
    }
    let _squid = Squid::cache(&chain.hops()[0]).unwrap();
    while !headers(&chain).contains("X-Cache") {
        assert!(Instant::now() < deadline + TIMEOUT, "the cache is not used again: {}", near.log());
    }
}
