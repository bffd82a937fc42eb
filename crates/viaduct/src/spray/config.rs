//! Config of a spray: the file as written, and the values that result from it.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use viaduct_proto::health::Timing;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::spray::{MAX_WEIGHT, slots};

use crate::run_dir::default_run_dir;
use crate::text;
use crate::value_parser::table::{Key, Wait, optional};

/// Maximum length of a config in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum number of replicas.
const MAX_REPLICAS: usize = 64;
/// Maximum length of a service's name, which is a part of the name of its nftables table.
const MAX_NAME: usize = 24;
/// Allowed range of the interval and the timeout of checks.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(600);

/// Validated config.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the service.
    pub name: String,
    /// Addresses of the service.
    pub addresses: Vec<IpAddr>,
    /// Ports of the service.
    pub ports: Vec<u16>,
    /// Interfaces at which packets to the service arrive.
    pub interfaces: Vec<String>,
    /// Checks of the replicas.
    pub check: Check,
    /// Replicas, in the order of the file.
    pub replicas: Vec<Replica>,
    /// Address at which metrics and `/healthz` are served.
    pub metrics: Option<SocketAddr>,
    /// Directory of the status socket, the journal and the list of drained replicas.
    pub run_dir: PathBuf,
}

/// Check of a replica.
#[derive(Clone, Debug)]
pub struct Check {
    /// Kind of probe.
    pub by: Kind,
    /// Port of the replica that is probed.
    pub port: u16,
    /// Path that [`Kind::Http`] requests.
    pub path: String,
    /// Public key of the replicas, for encrypted probes by [`Kind::Trickles`].
    pub key: Option<PublicKey>,
    /// Times and counts.
    pub timing: Timing,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// First request of a Trickles connection, over UDP.
    #[default]
    Trickles,
    /// TCP connection.
    Tcp,
    /// HTTP request.
    Http,
}

/// Replica of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Name.
    pub name: String,
    /// Addresses of the replica itself, one for each address family in which it gets packets. The
    /// first address is probed.
    pub addresses: Vec<IpAddr>,
    /// Device that leads to the replica, such as a tunnel; `None`: found in the routing tables.
    pub device: Option<String>,
    /// Weight. The replica's share of the packets is its weight divided by the sum of all weights.
    pub weight: u32,
    /// True if the replica is drained: it gets no packets.
    pub is_drained: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    spray: SprayTable,
    #[serde(default)]
    check: CheckTable,
    #[serde(default)]
    replica: Vec<ReplicaTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [spray]")]
struct SprayTable {
    name: String,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    interfaces: Vec<String>,
    metrics: Option<SocketAddr>,
    #[serde(default = "default_run_dir")]
    run_dir: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [check]")]
struct CheckTable {
    #[serde(default)]
    by: Kind,
    port: Option<u16>,
    path: Option<String>,
    #[serde(default, deserialize_with = "optional::<Key, _>")]
    key: Option<PublicKey>,
    #[serde(default, deserialize_with = "optional::<Wait, _>")]
    interval: Option<Duration>,
    #[serde(default, deserialize_with = "optional::<Wait, _>")]
    timeout: Option<Duration>,
    rise: Option<u32>,
    fall: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[replica]]")]
struct ReplicaTable {
    name: String,
    addresses: Vec<IpAddr>,
    device: Option<String>,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    drain: bool,
}

fn one() -> u32 {
    1
}

impl Config {
    /// Reads and checks `path`. Errors: a line with the position, the mistake and a correct form.
    pub fn load(path: &Path) -> Result<Config> {
        let text =
            text::read(path, MAX_CONFIG).map_err(|what| anyhow!("{}: {what}", path.display()))?;
        Config::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Config> {
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            anyhow!("{}{}", text::position(text, at), text::explain(text, at, error.message()))
        })?;
        validate(file)
    }

    /// Name of the service's files and nftables table.
    pub fn instance(&self) -> String {
        format!("spray_{}", self.name.replace('-', "_"))
    }

    /// Path of the status socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("spray-{}.sock", self.name))
    }

    /// Path of the journal of changed rules.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("spray-{}.changes.json", self.name))
    }
}

fn validate(file: File) -> Result<Config> {
    let File { spray, check, replica } = file;
    let name = |name: &str| text::check_name(name).map_err(|what| anyhow!("name: {what}"));
    name(&spray.name)?;
    if spray.name.len() > MAX_NAME {
        bail!("name: {:?}: at most {MAX_NAME} characters are expected", spray.name);
    }
    if spray.addresses.is_empty() || spray.addresses.iter().any(|ip| !is_host(*ip)) {
        bail!("addresses: the service's addresses are expected, such as [\"192.0.2.80\"]");
    }
    if spray.ports.is_empty() || spray.ports.contains(&0) {
        bail!("ports: the service's ports are expected, such as [80]");
    }
    if spray.interfaces.is_empty() {
        bail!(
            "interfaces: those at which clients' packets arrive are expected, such as [\"eth0\"]"
        );
    }
    if !(1..=MAX_REPLICAS).contains(&replica.len()) {
        bail!("{} replicas: 1 to {MAX_REPLICAS} tables [[replica]] are expected", replica.len());
    }
    let mut replicas: Vec<Replica> = Vec::new();
    for table in replica {
        name(&table.name)?;
        if replicas.iter().any(|other| other.name == table.name) {
            bail!("replica {} is given twice", table.name);
        }
        let context = format!("replica {}", table.name);
        replicas.push(validate_replica(table, &spray.addresses).context(context)?);
    }
    let check = validate_check(check, spray.ports[0]).context("[check]")?;
    Ok(Config {
        name: spray.name,
        addresses: spray.addresses,
        ports: spray.ports,
        interfaces: spray.interfaces,
        check,
        replicas,
        metrics: spray.metrics,
        run_dir: spray.run_dir,
    })
}

fn validate_replica(table: ReplicaTable, service: &[IpAddr]) -> Result<Replica> {
    let ReplicaTable { name, addresses, device, weight, drain } = table;
    if addresses.is_empty() || addresses.iter().any(|ip| !is_host(*ip)) {
        bail!(
            "addresses: the replica's own addresses are expected, such as [\"10.0.0.2\", \
             \"fd00::2\"]"
        );
    }
    if let Some(shared) = addresses.iter().find(|ip| service.contains(ip)) {
        bail!(
            "addresses: {shared} is the service's: an address that only this replica has is \
             expected"
        );
    }
    if addresses.len() > 2
        || addresses.len() == 2 && addresses[0].is_ipv4() == addresses[1].is_ipv4()
    {
        bail!("addresses: at most one of IPv4 and one of IPv6 are expected");
    }
    if let Some(missing) =
        service.iter().find(|ip| addresses.iter().all(|own| own.is_ipv4() != ip.is_ipv4()))
    {
        bail!("addresses: none is of the family of {missing}, an address of the service");
    }
    if !MAX_WEIGHT.contains(&weight) {
        bail!(
            "weight: {weight}: a number from {} to {} is expected; `drain = true` sends nothing",
            MAX_WEIGHT.start(),
            MAX_WEIGHT.end()
        );
    }
    Ok(Replica { name, addresses, device, weight, is_drained: drain })
}

fn validate_check(table: CheckTable, port: u16) -> Result<Check> {
    let usual = Timing::default();
    let timing = Timing {
        interval: table.interval.unwrap_or(usual.interval),
        timeout: table.timeout.unwrap_or(usual.timeout),
        rise: table.rise.unwrap_or(usual.rise),
        fall: table.fall.unwrap_or(usual.fall),
    };
    for (what, span) in [("interval", timing.interval), ("timeout", timing.timeout)] {
        if !INTERVALS.contains(&span) {
            bail!("{what}: a time from 10ms to 10m is expected");
        }
    }
    for (what, count) in [("rise", timing.rise), ("fall", timing.fall)] {
        if !(1..=100).contains(&count) {
            bail!("{what}: {count}: a number from 1 to 100 is expected");
        }
    }
    let path = table.path.unwrap_or_else(|| "/".to_owned());
    if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("path: {path:?}: a path such as /health is expected");
    }
    if table.key.is_some() && table.by != Kind::Trickles {
        bail!("key: only probes by \"trickles\" can be encrypted");
    }
    Ok(Check { by: table.by, port: table.port.unwrap_or(port), path, key: table.key, timing })
}

fn is_host(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
}

impl Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addresses, ports) = (list(&self.addresses), list(&self.ports));
        let interfaces = list(&self.interfaces);
        writeln!(f, "spray {}: {addresses}, port {ports}, at {interfaces}", self.name)?;
        let Check { by, port, timing, .. } = &self.check;
        let known = timing.interval + timing.timeout * timing.fall;
        let by = format!("{by:?}").to_lowercase();
        writeln!(
            f,
            "  checks by {by} at port {port}: a replica that does not answer is known within \
             {:.2} s",
            known.as_secs_f64()
        )?;
        let weights: Vec<_> = self.replicas.iter().map(|replica| replica.weight).collect();
        let gets: Vec<_> = self.replicas.iter().map(|replica| !replica.is_drained).collect();
        let slots = slots(&weights, &gets);
        for (n, replica) in self.replicas.iter().enumerate() {
            let share = share(&slots, n) * 100.0;
            let (name, addresses) = (&replica.name, list(&replica.addresses));
            let drained = if replica.is_drained { ", drained" } else { "" };
            writeln!(f, "  replica {name} at {addresses}: {share:.1} % of the packets{drained}")?;
        }
        Ok(())
    }
}

/// Returns the share of the slots that replica `n` has.
pub fn share(slots: &[usize], n: usize) -> f64 {
    let own = slots.iter().filter(|slot| **slot == n).count();
    own as f64 / slots.len().max(1) as f64
}

fn list<T: Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[spray]\nname = \"www\"\naddresses = [\"192.0.2.80\"]\nports = [80]\n\
        interfaces = [\"eth0\"]\n[check]\ninterval = \"50ms\"\n\
        [[replica]]\nname = \"a\"\naddresses = [\"10.0.0.2\"]\nweight = 3\n\
        [[replica]]\nname = \"b\"\naddresses = [\"10.0.0.3\", \"fd00::3\"]\n";

    #[test]
    fn a_config_is_read_and_described() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!((config.check.port, config.check.by), (80, Kind::Trickles));
        let said = config.to_string();
        assert!(said.contains("known within 0.25 s"), "{said}");
        assert!(said.contains("replica a at 10.0.0.2: 75.0 % of the packets"), "{said}");
        let drained = GOOD.replace("weight = 3", "drain = true");
        let said = Config::parse(&drained).unwrap().to_string();
        assert!(said.contains("a at 10.0.0.2: 0.0 % of the packets, drained"), "{said}");
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |from: &str, to: &str| {
            assert!(GOOD.contains(from), "{from}");
            format!("{:#}", Config::parse(&GOOD.replacen(from, to, 1)).unwrap_err())
        };
        assert!(wrong("weight = 3", "weight = 0").contains("replica a: weight: 0: a number"));
        assert!(wrong("\"b\"", "\"a\"").contains("replica a is given twice"));
        assert!(wrong("\"10.0.0.2\"", "\"192.0.2.80\"").contains("is the service's"));
        assert!(wrong("\"192.0.2.80\"", "\"192.0.2.80\", \"2001:db8::1\"").contains("family"));
        assert!(wrong("50ms", "1ms").contains("[check]: interval: a time from 10ms"));
        assert!(wrong("[80]", "[]").contains("ports: the service's ports"));
        assert!(wrong("weight = 3", "wait = 3").contains("line 11: unknown key `wait`"));
        assert!(wrong("interval = \"50ms\"", "by = \"icmp\"").contains("line 7: by: "));
    }
}
