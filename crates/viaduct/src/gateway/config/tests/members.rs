//! Racks in a config.

use super::*;

fn public(byte: u8) -> PublicKey {
    SecretKey::from_bytes([byte; 32]).public()
}

/// Config of a site with a rack, in which this gateway is the member `a2`.
fn rack() -> String {
    let members = format!(
        "[[site.member]]\nname = \"a1\"\nkey = \"{}\"\nslices = [\"10.2.0.0/17\"]\n\
         [[site.member]]\nname = \"a2\"\nkey = \"{}\"\nweight = 3\n[[peer]]\n",
        public(9),
        public(7),
    );
    let peers = format!(
        "[[peer.member]]\nname = \"b1\"\nkey = \"{}\"\nendpoint = \"192.0.2.2:7400\"\n\
         [[peer.member]]\nname = \"b2\"\nkey = \"{}\"\nendpoint = \"192.0.2.3:7400\"\n\
         drain = true\n",
        public(8),
        public(10),
    );
    let key = format!("key = \"{}\"\nendpoint = \"192.0.2.2:7400\"\n", public(8));
    let text = good().replace("[[peer]]\n", &members).replace(&key, "");
    text + &peers
}

/// Checks that the rack's config with `to` in place of `from` is rejected with a one-line error
/// that contains all `parts`.
fn refused(from: &str, to: &str, parts: &[&str]) {
    let text = rack();
    assert!(text.contains(from), "{from:?} is not in the config");
    let error = Dir::new().load(&text.replacen(from, to, 1)).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is expected in: {error}");
    }
}

#[test]
fn a_gateway_is_the_member_with_its_key_and_each_member_of_a_peer_is_a_peer() {
    let config = Dir::new().load(&rack()).unwrap();
    let own = config.rack.as_ref().unwrap();
    assert_eq!((own.own, own.own_weight(), own.route_table), (1, 3, 118));
    assert_eq!(own.members[0].slices, ["10.2.0.0/17".parse().unwrap()]);
    let names: Vec<_> = config.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!(names, ["b/b1", "b/b2"]);
    let weights: Vec<_> =
        config.peers.iter().map(|peer| peer.member.as_ref().unwrap().weight).collect();
    assert_eq!(weights, [1, 0]);
    assert_eq!(config.peers[1].endpoint, Some("192.0.2.3:7400".parse().unwrap()));
    assert_eq!(config.peer_sites().count(), 1);
    assert!(Dir::new().load(&good()).unwrap().rack.is_none());
}

#[test]
fn invalid_members_are_refused() {
    let own = public(7).to_string();
    refused(&own, &public(3).to_string(), &["no member has this gateway's public key"]);
    refused(&own, &public(9).to_string(), &["\"a2\": key: is used by another member too"]);
    refused("name = \"a2\"", "name = \"a1\"", &["\"a1\": name: is used by another member"]);
    refused("weight = 3", "weight = 101", &["\"a2\": weight: is 101; at most 100"]);
    refused("weight = 3", "wait = 3", &["`wait`", "`weight`"]);
    refused("weight = 3", "endpoint = \"192.0.2.9:1\"", &["only in [[peer.member]]"]);
    refused("10.2.0.0/17", "10.9.0.0/17", &["\"a1\": slices: 10.9.0.0/17 is not part"]);
    refused("10.2.0.0/17", "10.2.1.0/17", &["10.2.1.0/17 is not part"]);
    refused("listen =", "route_table = 254\nlisten =", &["route_table: is 254, a table of"]);
    let second = public(10).to_string();
    refused(&second, &public(8).to_string(), &["\"b/b2\": key: is that of peer \"b/b1\" too"]);
    refused("name = \"b2\"", "name = \"b1\"", &["member \"b1\": name: is used by another member"]);
    let peer = "name = \"b\"\n";
    refused(peer, "name = \"b\"\nmode = \"split\"\n", &["\"b\": mode: is for a peer with one"]);
    refused(peer, &format!("{peer}key = \"{own}\"\n"), &["\"b\": key: is for a peer with one"]);
    let alone = good().replace("listen =", "route_table = 9\nlisten =");
    let error = Dir::new().load(&alone).unwrap_err().to_string();
    assert!(error.contains("only with [[site.member]]"), "{error}");
}
