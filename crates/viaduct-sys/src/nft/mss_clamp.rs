//! MSS clamp: lowers the MSS option in forwarded SYNs between the sites, so that the repair of any
//! segment fits into one datagram. This holds even for the first segment of a connection.
//!
//! ```text
//!   host --SYN, MSS 1460--> [ forward: table inet viaduct_<instance> ] --SYN, MSS 1360--> wan
//! ```
//!
//! The rules of the [`Table`] never raise an MSS, and change no other packet.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::nft::table::{NftError, Table, check_instance, check_interface, set};

// Bytes of the IP and TCP headers, without options.
const HEADERS_V4: u32 = 40;
const HEADERS_V6: u32 = 60;
/// Rules of a clamp: one for each family and direction.
const RULES: usize = 4;

/// Parameters of a clamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MssClamp {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// WAN interface.
    pub interface: String,
    /// Prefixes of the peer sites.
    pub peers: Vec<(IpAddr, u8)>,
    /// Max bytes of a packet. The MSS is 40 bytes less for IPv4, and 60 for IPv6.
    pub max_packet: u32,
}

impl Table for MssClamp {
    fn instance(&self) -> &str {
        &self.instance
    }

    /// Checks the instance, the interface and the packet size.
    fn check(&self) -> Result<(), NftError> {
        check_instance(&self.instance)?;
        check_interface(&self.interface)?;
        if !(576..=65535).contains(&self.max_packet) {
            return Err(NftError::MaxPacket(self.max_packet));
        }
        Ok(())
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        vec![("forward", RULES)]
    }

    fn contents(&self) -> String {
        let (v4, v6): (Vec<_>, Vec<_>) = self.peers.iter().partition(|(ip, _)| ip.is_ipv4());
        let mut lines = vec![
            set("peers4", "ipv4_addr", &v4),
            set("peers6", "ipv6_addr", &v6),
            "chain forward {\ntype filter hook forward priority mangle; policy accept;".to_owned(),
        ];
        for (family, set, headers) in [("ip", "peers4", HEADERS_V4), ("ip6", "peers6", HEADERS_V6)]
        {
            let mss = self.max_packet - headers;
            for (way, end) in [("oifname", "daddr"), ("iifname", "saddr")] {
                lines.push(format!(
                    "{way} \"{}\" {family} {end} @{set} tcp flags & (syn | rst) == syn \
                     tcp option maxseg size > {mss} tcp option maxseg size set {mss}",
                    self.interface
                ));
            }
        }
        lines.push("}".to_owned());
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_the_script_are_refused() {
        let good = MssClamp {
            instance: "berlin_1".into(),
            interface: "eth0.7".into(),
            peers: Vec::new(),
            max_packet: 1400,
        };
        assert!(good.check().is_ok());
        for instance in ["", "a b", "a;flush ruleset", "ä"] {
            assert!(MssClamp { instance: instance.into(), ..good.clone() }.check().is_err());
        }
        for interface in ["", "a\"b", "wan*", "sixteen-letters-"] {
            assert!(MssClamp { interface: interface.into(), ..good.clone() }.check().is_err());
        }
        assert!(MssClamp { max_packet: 59, ..good }.check().is_err());
    }
}
