//! Ports in use, and rules of nftables that translate addresses, as `nft -j list ruleset` prints
//! them.

use serde_json::json;

use super::*;

const PEER: &str = "10.2.0.0/16";

#[test]
fn a_tcp_port_is_in_use_only_if_fake_tcp_needs_it() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = other.local_addr().unwrap();
    let said = ports_in_use(&Config::of_test(&listen.to_string(), ""));
    assert!(said.iter().any(|line| line.contains(&format!("TCP {listen} is in use"))), "{said:?}");
    let said = ports_in_use(&Config::of_test(&listen.to_string(), "workers = 2\n"));
    assert!(!said.iter().any(|line| line.contains("TCP")), "{said:?}");
}

fn chain_of(rules: &[Value]) -> Option<String> {
    let rules: Vec<Value> = rules
        .iter()
        .map(
            |expr| json!({"rule": {"family": "ip", "table": "nat", "chain": "post", "expr": expr}}),
        )
        .collect();
    let wans = ["wan0", "lte0"];
    let found = translation(&json!({ "nftables": rules }), &wans, &[PEER.parse().unwrap()]);
    found.map(|(chain, kind)| format!("{chain}: {kind}"))
}

fn out(op: &str, name: &Value) -> Value {
    json!({"match": {"op": op, "left": {"meta": {"key": "oifname"}}, "right": name}})
}

#[test]
fn only_rules_that_may_translate_packets_to_peers_are_named() {
    let masquerade = json!({"masquerade": null});
    let warned = Some("ip nat post: masquerade".to_owned());
    assert_eq!(chain_of(&[json!([masquerade])]), warned);
    assert_eq!(chain_of(&[json!([out("==", &json!("wan0")), masquerade])]), warned);
    assert_eq!(chain_of(&[json!([out("==", &json!("lte0")), masquerade])]), warned);
    assert_eq!(chain_of(&[json!([out("==", &json!("wan*")), masquerade])]), warned);
    assert_eq!(chain_of(&[json!([out("!=", &json!("docker0")), masquerade])]), warned);
    assert_eq!(chain_of(&[json!([out("==", &json!({"set": ["a", "wan0"]})), masquerade])]), warned);
    for op in ["==", "!="] {
        assert_eq!(chain_of(&[json!([out(op, &json!("@inside")), masquerade])]), warned);
    }
    assert_eq!(chain_of(&[json!([out("==", &json!("docker0")), masquerade])]), None);
    let others = json!({"set": ["wan0", "lte0"]});
    assert_eq!(chain_of(&[json!([out("!=", &others), masquerade])]), None);
    // A chain may have the name of a statement.
    assert_eq!(chain_of(&[json!([{"jump": {"target": "masquerade"}}])]), None);
    let exempt = json!([
        {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
            "right": {"prefix": {"addr": "10.2.0.0", "len": 16}}}},
        {"return": null}
    ]);
    assert_eq!(chain_of(&[exempt, json!([masquerade])]), None);
}
