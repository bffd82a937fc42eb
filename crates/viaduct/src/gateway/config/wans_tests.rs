use std::path::Path;

use viaduct_proto::keys::SecretKey;
use viaduct_proto::repair::{Coding, Repairs};

use super::*;

/// Config of a site with two WANs.
fn good() -> String {
    let key = SecretKey::from_bytes([8; 32]).public();
    format!(
        r#"[site]
name = "a"
key = "site.key"
prefixes = ["10.1.0.0/16"]
[[site.wan]]
name = "fibre"
interface = "wan0"
listen = "192.0.2.1:7400"
via = ["192.0.2.254", "2001:db8::fe"]
[[site.wan]]
name = "lte"
interface = "wan1"
listen = "198.51.100.1:7400"
[[site.class]]
name = "backup"
ports = [873, "8000-8080"]
wan = "lte"
[[peer]]
name = "b"
key = "{key}"
endpoints = ["192.0.2.2:7400", "198.51.100.2:7400"]
prefixes = ["10.2.0.0/16"]
[peer.fec]
path = "other"
[[peer.class]]
name = "voice"
dscp = ["ef"]
repairs = "duplicate"
"#
    )
}

fn parse(text: &str) -> Result<Config, String> {
    let secret = SecretKey::from_bytes([7; 32]);
    let parsed = Config::parse(Path::new("site.toml"), text, Some(&secret));
    parsed.map_err(|error| error.to_string())
}

/// Checks that the config with `to` in place of `from` is rejected with an error that
/// contains `part`.
fn refused(from: &str, to: &str, part: &str) {
    let text = good();
    assert!(text.contains(from), "{from:?} is not in the config");
    let error = parse(&text.replacen(from, to, 1)).unwrap_err();
    assert!(error.contains(part) && !error.contains('\n'), "{part:?} is expected in: {error}");
}

#[test]
fn two_wans_are_paths_to_each_peer() {
    let config = parse(&good()).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.interfaces().collect::<Vec<_>>(), ["wan0", "wan1"]);
    assert_eq!(config.listens().map(|at| at.port()).collect::<Vec<_>>(), [7_400, 7_400]);
    assert_eq!((config.wans[0].via.len(), config.wans[1].via.len()), (2, 0));
    let class = &config.path_classes[0];
    assert_eq!((class.wan, &class.matches.ports[..]), (1, &[873..=873, 8_000..=8_080][..]));
    let paths = config.peers[0].paths.unwrap();
    assert_eq!(paths.repairs, RepairPath::Other);
    assert_eq!(paths.endpoints[1].to_string(), "198.51.100.2:7400");
    let Some(Coding::Auto(settings)) = &config.peers[0].coding else { panic!("auto") };
    assert_eq!(settings.classes[0].repairs, Repairs::Duplicate);
}

#[test]
fn a_single_wan_has_no_paths() {
    let text = good().replace("prefixes = [\"10.1.0.0/16\"]", "prefixes = [\"10.1.0.0/16\"]\nx");
    let (head, _) = text.split_once("\nx").unwrap();
    let (_, peer) = text.split_once("[[peer]]").unwrap();
    let single = |peer: &str| {
        let site = format!("{head}\nwan = \"wan0\"\nlisten = \"192.0.2.1:7400\"\n");
        parse(&format!("{site}[[peer]]{peer}"))
    };
    let endpoints = "endpoints = [\"192.0.2.2:7400\", \"198.51.100.2:7400\"]";
    let plain = peer.replace(endpoints, "").replace("path = \"other\"", "");
    let config = single(&plain.replace("duplicate", "copies")).unwrap();
    assert!(config.wans.is_empty() && config.peers[0].paths.is_none());
    assert_eq!(config.interfaces().collect::<Vec<_>>(), ["wan0"]);
    for (text, key) in [
        (peer.to_owned(), "endpoints"),
        (plain, "duplicate"),
        (peer.replace(endpoints, "").replace("duplicate", "copies"), "fec: path"),
    ] {
        let error = single(&text).unwrap_err();
        assert!(error.contains(key) && error.contains("two [[site.wan]]"), "{error}");
    }
}

#[test]
fn settings_that_two_wans_exclude_are_refused() {
    let site = "prefixes = [\"10.1.0.0/16\"]";
    let with = |line: &str| format!("{site}\n{line}");
    refused(site, &with("listen = \"192.0.2.1:7400\""), "[site] listen: cannot be set with");
    refused(site, &with("workers = 2"), "a single worker");
    refused(site, &with("lanes = 4"), "each path is a lane");
    let member = "member = [{ name = \"a1\", key = \"00\" }]";
    refused(site, &with(member), "a rack have a single WAN");
    refused(site, &with("tls_listen = \"192.0.2.1:443\""), "split mode needs a single WAN");
    refused("[peer.fec]", "mode = \"split\"\n[peer.fec]", "mode = \"split\": is not possible");
    refused("[peer.fec]", "transport = \"fake-tcp\"\n[peer.fec]", "transport: is not possible");
    refused("path = \"other\"", "path = \"other\"\nlower_mtu = true", "lower_mtu: is not possible");
    refused("endpoints = [", "endpoint = \"192.0.2.2:7400\"\n#", "endpoint: is not possible");
    let member = "member = [{ name = \"b1\", key = \"00\" }]\n[peer.fec]";
    refused("[peer.fec]", member, "peer \"b\": member: is not possible with two");
    refused("path = \"other\"", "path = \"same\"", "needs fec: path = \"other\"");
}

#[test]
fn wrong_values_are_refused() {
    refused("name = \"lte\"\ninterface", "name = \"fibre\"\ninterface", "name: is the same twice");
    refused("\"wan1\"", "\"wan0\"", "interface: is the same twice");
    refused("listen = \"198.51.100.1", "listen = \"192.0.2.1", "listen: is the same twice");
    refused("\"198.51.100.1:7400\"", "\"0.0.0.0:7400\"", "an address of this WAN");
    refused("\"198.51.100.1:7400\"", "\"198.51.100.1:0\"", "has port 0");
    refused("\"2001:db8::fe\"", "\"192.0.2.253\"", "one router for IPv4");
    refused(", \"198.51.100.2:7400\"]", "]", "the peer's address for each [[site.wan]]");
    refused("\"198.51.100.2:7400\"", "\"198.51.100.1:7400\"", "own [[site.wan]] listen");
    refused("\"198.51.100.2:7400\"", "\"[2001:db8::2]:7400\"", "IPv6 but [[site.wan]] listen");
    refused("\"198.51.100.2:7400\"]", "\"192.0.2.2:7400\"]", "is the same twice");
    refused("wan = \"lte\"", "wan = \"dsl\"", "\"dsl\" is not a WAN; one of \"fibre\", \"lte\"");
    refused("via = [", "gateway = [", "[[site.wan]]");
    let second = good().split_once("[[site.wan]]\nname = \"lte\"").map(|(head, _)| head.len());
    let mut one = good();
    let at = one.find("[[site.class]]").unwrap();
    one.replace_range(second.unwrap()..at, "");
    assert!(parse(&one).unwrap_err().contains("has 1 tables; 2 are expected"));
}
