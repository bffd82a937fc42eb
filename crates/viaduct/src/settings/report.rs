//! Settings as text, for `--check`: effects on the machine, and warnings about settings without
//! effect.

use std::fmt;
use std::fs;
use std::net::IpAddr;

use viaduct_sys::nft::intercept::Intercept;

use super::Settings;

/// Kernel settings that enable forwarding: true for IPv4 or false for IPv6, name, and file.
const FORWARDING: [(bool, &str, &str); 2] = [
    (true, "net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    (false, "net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"),
];

impl Settings {
    /// Warnings about settings that are allowed but have less effect than they seem to.
    pub fn warnings(&self) -> Vec<String> {
        let intercepted: Vec<_> = self.intercept.iter().flat_map(prefixes).collect();
        let forwarding = FORWARDING.into_iter().filter_map(|(v4, name, file)| {
            let concerned = intercepted.iter().any(|(ip, _)| ip.is_ipv4() == v4);
            let is_off = || fs::read_to_string(file).is_ok_and(|value| value.trim() == "0");
            (concerned && is_off()).then(|| {
                format!(
                    "{name} is 0: this machine forwards no traffic that is not intercepted, such \
                     as UDP and ICMP, and no connections while the proxy is down; set it to 1"
                )
            })
        });
        let shadowed = self.engine.policies.shadowed().map(|(later, earlier)| {
            format!(
                "policy {later} never applies: policy {earlier} comes first and matches all its \
                 flows"
            )
        });
        forwarding.chain(shadowed).collect()
    }

    /// Writes the effects on the machine, and on what servers see.
    pub(super) fn write_interception(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(intercept) = &self.intercept else { return Ok(()) };
        let nets: Vec<_> = prefixes(intercept).map(|(ip, len)| format!("{ip}/{len}")).collect();
        write!(f, "  intercepts connections through this machine to {}", nets.join(", "))?;
        match &intercept.ports[..] {
            [] => {}
            ports => write!(f, ", port {}", in_ranges(ports))?,
        }
        writeln!(f, "; connections to its own addresses are not intercepted")?;
        match self.engine.target.keeps_clients() {
            true => writeln!(f, "  keeps the clients' addresses towards servers"),
            false => writeln!(f, "  servers see this machine's address"),
        }
    }
}

fn prefixes(intercept: &Intercept) -> impl Iterator<Item = &(IpAddr, u8)> {
    intercept.ways.iter().flat_map(|way| &way.to)
}

/// Ports in short form: `80, 8000-8080`.
fn in_ranges(ports: &[u16]) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    let mut sorted = ports.to_vec();
    sorted.sort_unstable();
    for port in sorted {
        match ranges.last_mut() {
            Some((_, last)) if port <= last.saturating_add(1) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let text = |&(first, last): &(u16, u16)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_ranges() {
        assert_eq!(in_ranges(&[8080, 80, 443, 8081, 8082]), "80, 443, 8080-8082");
    }
}
