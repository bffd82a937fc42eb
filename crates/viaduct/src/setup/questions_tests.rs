//! Scripted answers, for machines that exist only as [`Facts`].

use std::io::Cursor;

use viaduct_proto::keys::SecretKey;
use viaduct_sys::route::links::{Link, LinkKind};
use viaduct_sys::route::survey::{ForwardRoute, OwnAddress};

use super::*;
use crate::gateway::config::Config;

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.to_owned(),
        mtu: 1500,
        is_running: true,
        is_ethernet: name != "lo",
        kind: LinkKind::Other,
        master: None,
        lower: None,
    }
}

fn route(to: &str, interface: u32, is_connected: bool) -> ForwardRoute {
    let net: IpNet = to.parse().unwrap();
    ForwardRoute { to: (net.addr(), net.prefix_len()), interface, is_connected }
}

fn own(interface: u32, ip: &str) -> OwnAddress {
    OwnAddress { interface, ip: ip.parse().unwrap(), is_permanent: true }
}

/// Router with a WAN `eth0`, two networks at `lan0` and `lan1`, and an unused `eth9`.
fn router() -> Facts {
    let names = ["lo", "eth0", "lan0", "lan1", "eth9"];
    Facts {
        host_name: "rome.example".to_owned(),
        links: (1..).zip(names).map(|(index, name)| link(index, name)).collect(),
        addresses: vec![
            own(2, "2001:db8::1"),
            own(2, "192.0.2.1"),
            own(3, "10.1.0.1"),
            own(4, "10.1.1.1"),
        ],
        routes: vec![
            route("0.0.0.0/0", 2, false),
            route("192.0.2.0/30", 2, true),
            route("10.1.0.0/24", 3, true),
            route("10.1.1.0/24", 4, true),
            route("10.9.0.0/16", 4, false),
            route("fd00:1:0:1::/64", 3, true),
            route("fe80::/64", 3, true),
        ],
        forwards: [true, false],
    }
}

fn given(flags: &[(Item, &str)]) -> Given {
    let mut given = Given::default();
    for &(item, text) in flags {
        given.values[item as usize] = Some(text.to_owned());
    }
    given
}

fn setup(flags: &[(Item, &str)]) -> Setup {
    Setup::new(router(), given(flags)).unwrap()
}

/// Draft by flags and defaults.
fn by_defaults(mut setup: Setup) -> Draft {
    setup.take_defaults().unwrap();
    assert_eq!(setup.poll_question(), None);
    setup.finish().unwrap()
}

const OSLO: [(Item, &str); 2] = [(Item::Peer, "oslo"), (Item::PeerPrefix, "10.2.0.0/16")];

#[test]
fn a_dialogue_asks_for_each_value_and_repeats_questions_after_wrong_answers() {
    let key = SecretKey::from_bytes([7; 32]).public().to_string();
    let answers = format!(
        "\nrome\noslo\n10.2.0.1/16\n10.2.0.0/16, fd00:2::/48\n192.0.2.2\nzz\n{key}\neth7\n\n\n\n"
    );
    let mut setup = setup(&[]);
    let mut said = Vec::new();
    super::super::ask(&mut setup, &mut Cursor::new(answers), &mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    for part in [
        "Name of this site [rome]: ",
        "is this site's name; the other's is expected",
        "10.2.0.1/16 has bits beyond its length; 10.2.0.0/16 is expected",
        "64 hexadecimal digits; this has 2 characters",
        "Interface towards oslo (eth0, lan0, lan1, eth9) [eth0]: ",
        "\"eth7\": one of eth0, lan0, lan1, eth9 is expected",
        "Address of this gateway for repairs (UDP, or TCP) [192.0.2.1:7400]: ",
        "Prefixes of this site's hosts [10.1.0.0/23,fd00:1:0:1::/64]: ",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let draft = setup.finish().unwrap();
    assert_eq!(draft.peer_prefixes, ["10.2.0.0/16", "fd00:2::/48"]);
    assert_eq!(draft.peer_endpoint.as_deref(), Some("192.0.2.2:7400"));
    assert_eq!(draft.peer_key.unwrap().to_string(), key);
}

#[test]
fn an_input_that_ends_early_is_an_error() {
    let mut setup = setup(&[]);
    let error = super::super::ask(&mut setup, &mut Cursor::new("rome\n"), &mut Vec::new());
    assert!(error.unwrap_err().to_string().contains("nothing was written"));
    assert_eq!(setup.poll_question().unwrap().item, Item::Peer);
}

#[test]
fn routes_determine_the_interface_the_address_and_the_prefixes() {
    let draft = by_defaults(setup(&OSLO));
    assert_eq!((&draft.wan[..], &draft.listen[..]), ("eth0", "192.0.2.1:7400"));
    assert_eq!(draft.endpoint.as_deref(), Some("192.0.2.1:7400"));
    // A route to the peer's hosts takes precedence over the default route.
    let inside = by_defaults(setup(&[(Item::Peer, "oslo"), (Item::PeerPrefix, "10.9.0.0/17")]));
    assert_eq!((&inside.wan[..], &inside.listen[..]), ("lan1", "10.1.1.1:7400"));
    assert_eq!(inside.prefixes, ["10.1.0.0/24", "192.0.2.0/30", "fd00:1:0:1::/64"]);
}

#[test]
fn the_family_of_the_address_is_that_of_the_peer() {
    let flags = [OSLO[0], OSLO[1], (Item::PeerEndpoint, "2001:db8::2")];
    let draft = by_defaults(setup(&flags));
    assert_eq!(draft.listen, "[2001:db8::1]:7400");
    assert_eq!(draft.peer_endpoint.as_deref(), Some("[2001:db8::2]:7400"));
    let command = draft.peer_command(&SecretKey::from_bytes([1; 32]).public());
    assert!(command.contains(" --peer-endpoint '[2001:db8::1]:7400'"), "{command}");
    assert!(command.ends_with(" --endpoint '[2001:db8::2]:7400'"), "{command}");
}

#[test]
fn an_address_that_may_change_is_not_listened_on() {
    let mut facts = router();
    facts.addresses[1].is_permanent = false;
    let draft = by_defaults(Setup::new(facts, given(&OSLO)).unwrap());
    assert_eq!(draft.listen, "0.0.0.0:7400");
    assert_eq!(draft.endpoint.as_deref(), Some("192.0.2.1:7400"));
}

#[test]
fn behind_nat_the_peer_gets_no_private_address() {
    let mut facts = router();
    facts.addresses[1].ip = "192.168.7.2".parse().unwrap();
    let flags = [OSLO[0], OSLO[1], (Item::PeerEndpoint, "oslo.example")];
    let draft = by_defaults(Setup::new(facts.clone(), given(&flags)).unwrap());
    assert_eq!((&draft.listen[..], draft.endpoint), ("192.168.7.2:7400", None));
    let public = Given { endpoint: Some("203.0.113.9:7777".to_owned()), ..given(&flags) };
    let draft = by_defaults(Setup::new(facts.clone(), public).unwrap());
    assert_eq!(draft.listen, "192.168.7.2:7777");
    assert_eq!(draft.endpoint.as_deref(), Some("203.0.113.9:7777"));
    // Inside one network, such as a laboratory, private addresses are as good as others.
    let flags = [OSLO[0], OSLO[1], (Item::PeerEndpoint, "192.168.9.2")];
    let draft = by_defaults(Setup::new(facts, given(&flags)).unwrap());
    assert_eq!(draft.endpoint.as_deref(), Some("192.168.7.2:7400"));
}

#[test]
fn errors_name_the_flag_of_a_missing_or_wrong_value() {
    let missing = setup(&[]).take_defaults().unwrap_err();
    assert_eq!(missing, "--peer NAME is missing; --peer-prefix PREFIX,... is missing");
    let facts = Facts { links: router().links, ..Facts::default() };
    let missing = Setup::new(facts, given(&OSLO)).unwrap().take_defaults().unwrap_err();
    assert!(missing.starts_with("--name NAME is missing; --wan INTERFACE is missing: no route"));
    for (item, text, part) in [
        (Item::Name, "a b", "--name: \"a b\": 1 to 64 letters"),
        (Item::PeerPrefix, ",", "--peer-prefix: a prefix is expected"),
        (Item::PeerEndpoint, "300.0.2.1", "--peer-endpoint: \"300.0.2.1:7400\": an address or"),
        (Item::PeerKey, "ff", "--peer-key: a key is 64 hexadecimal digits"),
        (Item::Wan, "wan9", "--wan: \"wan9\": one of eth0, lan0"),
        (Item::Listen, "oslo.example", "--listen: a numeric address with a port is expected"),
    ] {
        let error = Setup::new(router(), given(&[(item, text)])).unwrap_err();
        assert!(error.starts_with(part), "{error}");
    }
    let open = setup(&OSLO).open_flags();
    assert_eq!(
        open,
        "--name rome --peer-endpoint HOST:PORT --peer-key KEY --wan eth0 --listen 192.0.2.1:7400 \
         --prefix 10.1.0.0/23,fd00:1:0:1::/64"
    );
}

#[test]
fn one_of_the_sites_must_know_the_other() {
    let mut facts = router();
    facts.addresses.clear();
    let flags = [OSLO[0], OSLO[1], (Item::Listen, "0.0.0.0:7400")];
    let mut setup = Setup::new(facts, given(&flags)).unwrap();
    setup.take_defaults().unwrap();
    assert!(setup.finish().unwrap_err().contains("--peer-endpoint, or --endpoint"));
}

#[test]
fn the_file_of_a_draft_is_a_valid_config_of_the_same_values() {
    let [ours, theirs] = [1, 2].map(|byte| SecretKey::from_bytes([byte; 32]));
    let key = theirs.public().to_string();
    let flags = [OSLO[0], OSLO[1], (Item::PeerKey, &key), (Item::PeerEndpoint, "oslo.example:9")];
    let draft = by_defaults(setup(&flags));
    let text = draft.file("rome.key", &key);
    let config = Config::parse("rome.toml".as_ref(), &text, Some(&ours)).unwrap();
    assert_eq!((&config.name[..], &config.wan[..]), ("rome", "eth0"));
    assert_eq!(config.listen.to_string(), draft.listen);
    assert_eq!(config.prefixes.len(), 2);
    let peer = &config.peers[0];
    assert_eq!((peer.key, &peer.name[..]), (theirs.public(), "oslo"));
    assert_eq!(peer.endpoint_name, Some(("oslo.example".to_owned(), 9)));
    // Without the key, the error says how to get it.
    let error = Config::parse("rome.toml".as_ref(), &draft.file("rome.key", ""), Some(&ours));
    assert!(error.unwrap_err().to_string().contains("`viaduct setup` at that site prints"));
}
