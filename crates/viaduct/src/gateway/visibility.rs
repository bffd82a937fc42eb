//! Preflight: mechanisms that hide packets of the WAN from the taps.
//!
//! ```text
//!   eth0 ──▶ bridge, bond, VLAN, PPPoE ──▶ tap on the WAN ──▶ routing
//!    │ └──── flowtable: past the interfaces above eth0 ─────────▶
//!    └────── hardware: past the kernel ─────────────────────────▶
//! ```
//!
//! A flowtable that contains the WAN, but no interface below it, hides nothing: the kernel shows
//! packets to taps before the flowtable takes them, and again when they leave.

use viaduct_sys::capture::offload::{OffloadState, offloads_tc};
use viaduct_sys::nft::flowtables::{Flowtable, flowtables};
use viaduct_sys::route::links::{Link, LinkKind, Links};
use viaduct_sys::route::qdisc::has_ingress;

/// Warnings about the interface `wan`, each with its cure. If the gateway `only_observes`,
/// interfaces below `wan` that merge packets cause no warning, since the gateway then segments
/// merged packets again. Interfaces below a PPP link cause no such warning either.
pub fn warnings(wan: &str, only_observes: bool) -> Vec<String> {
    let Ok(links) = Links::read() else { return Vec::new() };
    let Some(link) = links.named(wan) else { return Vec::new() };
    // Without CAP_NET_ADMIN the kernel lists no flowtables; `--check` warns about the capability.
    let tables = flowtables().unwrap_or_default();
    let below = links.below(link);
    let mut warnings = flows(&tables, wan, &below);
    let has_rules =
        |name: &str| offloads_tc(name).unwrap_or(false) && has_ingress(name).unwrap_or(false);
    warnings.extend(hardware_rules(link, &below, has_rules));
    warnings.extend(port(&links, link));
    warnings.extend(bridge(link, &below));
    if !only_observes && link.kind != LinkKind::Ppp {
        warnings.extend(below.iter().filter_map(|lower| merges(lower, wan)));
    }
    warnings
}

/// Flowtables that forward packets past the tap on `wan`.
fn flows(tables: &[Flowtable], wan: &str, below: &[&Link]) -> Vec<String> {
    let cure = "exempt the peers' prefixes by a rule before its `flow add`";
    let warning = |table: &Flowtable| {
        let name = &table.name;
        if table.is_hardware {
            return Some(format!(
                "flowtable {name} forwards connections in hardware, past the tap on {wan}; their \
                 packets are not protected: remove its `flags offload`, or {cure}"
            ));
        }
        let lower = below.iter().find(|lower| table.has(&lower.name))?;
        Some(format!(
            "flowtable {name} has the device {}, which carries {wan}: packets of connections skip \
             {wan} and its tap, at least on arrival, and are not protected: {cure}",
            lower.name
        ))
    };
    tables.iter().filter_map(warning).collect()
}

/// Rules of `tc` that hardware carries out before the kernel sees a packet. `has_rules` returns
/// whether an interface has such rules.
fn hardware_rules(wan: &Link, below: &[&Link], has_rules: impl Fn(&str) -> bool) -> Option<String> {
    let all = [&[wan][..], below].concat();
    let name = &all.iter().find(|link| has_rules(&link.name))?.name;
    Some(format!(
        "hw-tc-offload of {name} is on: tc rules may forward packets in hardware, past the tap. \
         If one of them does: ethtool -K {name} hw-tc-offload off"
    ))
}

/// Warning if the WAN is only a port of a bridge or bond.
fn port(links: &Links, wan: &Link) -> Option<String> {
    let master = links.at(wan.master?)?;
    let (kind, why) = match master.kind {
        LinkKind::Bridge => ("bridge", "this machine's own packets take the bridge"),
        LinkKind::Bond => ("bond", "other ports carry a part of the packets"),
        _ => return None,
    };
    let (wan, master) = (&wan.name, &master.name);
    Some(format!("[site] wan: {wan} is a port of the {kind} {master}, and {why}: use {master}"))
}

/// Warning if the WAN is a bridge that forwards packets between its ports.
fn bridge(wan: &Link, below: &[&Link]) -> Option<String> {
    let ports = below.iter().filter(|link| link.master == Some(wan.index)).count();
    let wan = Some(wan).filter(|wan| wan.kind == LinkKind::Bridge && ports > 1)?;
    Some(format!(
        "[site] wan: {} is a bridge of {ports} ports: packets from port to port pass no tap; only \
         those that this machine routes are protected",
        wan.name
    ))
}

/// Warning if the interface `lower`, below the WAN, merges received packets before the tap
/// sees them.
fn merges(lower: &Link, wan: &str) -> Option<String> {
    let name = &lower.name;
    let mut features = OffloadState::read(name).ok()?.features;
    features.retain(|feature| feature.starts_with("rx-"));
    let cure: Vec<String> = features.iter().map(|feature| format!("{feature} off")).collect();
    (!cure.is_empty()).then(|| {
        format!(
            "{name} merges received packets before the tap on {wan}; merged packets are not \
             protected: ethtool -K {name} {}",
            cure.join(" ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_sys::netns::Netns;
    use viaduct_sys::process::tool;

    fn run(line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        tool::run(words[0], &words[1..], "").is_ok()
    }

    /// Runs `work` in a namespace with `eth0` and `eth1`, whose other ends are `far0` and `far1`.
    fn in_namespace(work: impl FnOnce() + Send) {
        let make = || {
            for (name, far) in [("eth0", "far0"), ("eth1", "far1")] {
                assert!(run(&format!("ip link add {name} type veth peer name {far}")));
                assert!(run(&format!("ethtool -K {name} gro off")));
            }
            work();
        };
        Netns::new().unwrap().enter(make).unwrap();
    }

    #[test]
    fn a_port_and_a_bridge_are_warned_of_and_a_single_port_is_not() {
        in_namespace(|| {
            assert!(warnings("eth0", false).is_empty());
            assert!(run("ip link add br0 type bridge") && run("ip link set eth0 master br0"));
            assert!(warnings("br0", false).is_empty());
            let [of_port] = &warnings("eth0", false)[..] else { panic!("one warning is expected") };
            assert!(of_port.contains("eth0 is a port of the bridge br0"), "{of_port}");
            assert!(run("ip link set eth1 master br0"));
            let [of_bridge] = &warnings("br0", false)[..] else {
                panic!("one warning is expected")
            };
            assert!(of_bridge.contains("br0 is a bridge of 2 ports"), "{of_bridge}");
        });
    }

    #[test]
    fn a_port_that_merges_packets_is_warned_of_unless_all_is_observed() {
        in_namespace(|| {
            assert!(run("ip link add br0 type bridge") && run("ip link set eth0 master br0"));
            assert!(run("ethtool -K eth0 gro on"));
            let [merged] = &warnings("br0", false)[..] else { panic!("one warning is expected") };
            assert!(merged.contains("eth0 merges received packets before the tap"), "{merged}");
            let (_, cure) = merged.split_once(": ").unwrap();
            assert!(warnings("br0", true).is_empty());
            assert!(run(cure), "{cure}");
            assert!(warnings("br0", false).is_empty(), "the cure does not help: {cure}");
        });
    }

    /// Interfaces `bond0` and `eth0`, its port.
    fn bonded() -> Links {
        let link = |index, name: &str, kind, master| Link {
            index,
            name: name.to_owned(),
            mtu: 1500,
            is_running: true,
            is_ethernet: true,
            kind,
            master,
            lower: None,
        };
        let bond = link(7, "bond0", LinkKind::Bond, None);
        [bond, link(2, "eth0", LinkKind::Other, Some(7))].into_iter().collect()
    }

    /// As the test below, on kernels without bonds, too.
    #[test]
    fn a_port_of_a_bond_is_warned_of() {
        let links = bonded();
        let [bond, eth0] = ["bond0", "eth0"].map(|name| links.named(name).unwrap());
        let warning = port(&links, eth0).unwrap();
        assert!(warning.contains("eth0 is a port of the bond bond0"), "{warning}");
        assert!(warning.ends_with("use bond0"), "{warning}");
        assert_eq!((port(&links, bond), bridge(bond, &links.below(bond))), (None, None));
    }

    #[test]
    fn hardware_offload_below_the_wan_is_warned_of() {
        let links = bonded();
        let bond = links.named("bond0").unwrap();
        let below = links.below(bond);
        let warning = hardware_rules(bond, &below, |name| name == "eth0").unwrap();
        assert!(warning.ends_with("ethtool -K eth0 hw-tc-offload off"), "{warning}");
        assert_eq!(hardware_rules(bond, &below, |_| false), None);
    }

    #[test]
    fn a_bond_is_expected_in_place_of_its_port() {
        in_namespace(|| {
            if !run("ip link add bond0 type bond") {
                eprintln!("skipped: this kernel has no bonds");
                return;
            }
            assert!(run("ip link set eth0 down") && run("ip link set eth0 master bond0"));
            let found = warnings("eth0", false);
            assert!(found[0].contains("eth0 is a port of the bond bond0"), "{found:?}");
            assert!(warnings("bond0", true).is_empty());
        });
    }

    #[test]
    fn a_flowtable_below_the_wan_or_in_hardware_is_warned_of() {
        in_namespace(|| {
            assert!(run("ip link add br0 type bridge") && run("ip link set eth0 master br0"));
            let links = Links::read().unwrap();
            let below = links.below(links.named("br0").unwrap());
            let table = |device: &str, is_hardware| Flowtable {
                name: "inet fw4 ft".to_owned(),
                devices: vec![device.to_owned(), "lan0".to_owned()],
                is_hardware,
            };
            assert!(flows(&[table("br0", false)], "br0", &below).is_empty());
            assert!(flows(&[table("eth1", false)], "br0", &below).is_empty());
            let software = &flows(&[table("eth0", false)], "br0", &below)[0];
            assert!(software.contains("ft has the device eth0, which carries br0"), "{software}");
            let hardware = &flows(&[table("br0", true)], "br0", &below)[0];
            assert!(hardware.contains("remove its `flags offload`"), "{hardware}");
            let hook = "hook ingress priority 0; devices = { eth0, far0 };";
            let rules = format!("table inet fw4 {{ flowtable ft {{ {hook} }}; }}");
            if let Err(error) = tool::run("nft", &["-f", "-"], &rules) {
                assert!(error.to_string().contains("Could not process rule"), "{error}");
                eprintln!("skipped: this kernel has no flowtables");
                return;
            }
            let found = warnings("br0", false);
            assert!(found[0].contains("flowtable inet fw4 ft has the device eth0"), "{found:?}");
        });
    }
}
