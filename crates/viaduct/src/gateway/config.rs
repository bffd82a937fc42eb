//! `site.toml`: first what the user wrote, then what it means. Everything is checked before
//! anything is touched, and each error is one line that says what would be right.

mod file;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use viaduct_proto::fec::Code;
use viaduct_proto::repair::{MOST_PEERS, PublicKey, SecretKey};

use file::{DEFAULT_FLUSH, File, PeerTable};

/// What it means.
#[derive(Clone, Debug)]
pub struct Config {
    /// The site's name.
    pub name: String,
    /// Its secret key.
    pub secret: SecretKey,
    /// Its addresses.
    pub prefixes: Vec<IpNet>,
    /// The interface towards the peers.
    pub wan: String,
    /// Where peers send their repairs.
    pub listen: SocketAddr,
    /// Longest packet that the site's hosts send, if that is known to be below the WAN's MTU.
    pub host_mtu: Option<usize>,
    /// Bytes of memory for packets, all peers and rings together.
    pub memory: usize,
    /// Directory for the control socket and the journal of changes.
    pub run_dir: PathBuf,
    /// Where Prometheus finds the metrics.
    pub metrics: Option<SocketAddr>,
    /// Where the site's hosts ask the packet cache.
    pub cache: Option<SocketAddr>,
    /// The peer sites.
    pub peers: Vec<Peer>,
    /// What is odd but allowed, one line each.
    pub warnings: Vec<String>,
}

/// A peer site.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: PublicKey,
    /// Where its gateway listens.
    pub endpoint: Option<SocketAddr>,
    /// Its addresses.
    pub prefixes: Vec<IpNet>,
    /// How what leaves for it is encoded.
    pub code: Option<Code>,
    /// Idle time after which unfilled bins fire.
    pub flush_after: Duration,
    /// Age at which session keys are replaced.
    pub rekey_after: Duration,
}

/// One thing wrong with a config: where, what, and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("{}: {place}{what}", file.display())]
pub struct ConfigError {
    file: PathBuf,
    place: String,
    what: String,
}

impl Config {
    /// Reads and checks `path`. Touches nothing but that file and the key file it names.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let fail = |place: &str, what: String| ConfigError {
            file: path.to_owned(),
            place: place.to_owned(),
            what,
        };
        let text =
            std::fs::read_to_string(path).map_err(|e| fail("", format!("cannot be read: {e}")))?;
        let file: File = toml::from_str(&text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            fail(&line(&text, at), e.message().replace('\n', " "))
        })?;
        meaning(file, path.parent().unwrap_or(Path::new("."))).map_err(|(place, what)| {
            fail(&if place.is_empty() { place } else { format!("{place}: ") }, what)
        })
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.name))
    }

    /// The journal of changes to the system.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("{}.changes.json", self.name))
    }
}

/// The line of `text` that byte `at` is in, and the key that is set there.
fn line(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let number = before.matches('\n').count() + 1;
    // Where the key itself is wrong, the message names it.
    match before[start..].split_once('=') {
        Some((key, _)) => format!("line {number}: {}: ", key.trim()),
        None => format!("line {number}: "),
    }
}

type Wrong = (String, String);

fn wrong<T>(place: impl fmt::Display, what: impl fmt::Display) -> Result<T, Wrong> {
    Err((place.to_string(), what.to_string()))
}

fn meaning(file: File, dir: &Path) -> Result<Config, Wrong> {
    let site = file.site;
    check_name("[site] name", &site.name)?;
    if site.prefixes.is_empty() {
        return wrong("[site] prefixes", "is empty; list the addresses of this site's hosts");
    }
    if site.wan.is_empty() || site.wan.len() > 15 {
        return wrong("[site] wan", "an interface name of 1 to 15 characters is expected");
    }
    if let Some(mtu) = site.host_mtu
        && !(576..=9000).contains(&mtu)
    {
        return wrong("[site] host_mtu", format!("is {mtu}; 576 to 9000 bytes are expected"));
    }
    if site.memory.0 < 4 << 20 {
        return wrong("[site] memory", "is below 4MiB, the least that a code can work with");
    }
    if let Some(machine) = memory_of_machine()
        && site.memory.0 > machine / 2
    {
        let what = format!("is above {}MiB, half of this machine's", machine >> 21);
        return wrong("[site] memory", what);
    }
    if site.listen.port() == 0 {
        return wrong("[site] listen", "has port 0; peers need a fixed one, such as 7400");
    }
    let path = dir.join(&site.key);
    let secret = read_key(&path)?;
    let mut warnings = Vec::new();
    warn_of_readers(&path, &mut warnings);
    warn_of_listeners(&site.prefixes, file.metrics.listen, file.cache.listen, &mut warnings);
    let peers = peers(file.peer, &mut warnings)?;
    check_prefixes(&site.prefixes, &peers)?;
    if let Some(own) = peers.iter().find(|peer| peer.key == secret.public()) {
        return wrong(
            format!("peer {:?}: key", own.name),
            "is this site's own public key; the peer's is expected",
        );
    }
    Ok(Config {
        name: site.name,
        secret,
        prefixes: site.prefixes,
        wan: site.wan,
        listen: site.listen,
        host_mtu: site.host_mtu,
        memory: site.memory.0,
        run_dir: site.run_dir,
        metrics: file.metrics.listen,
        cache: file.cache.listen,
        peers,
        warnings,
    })
}

/// Bytes of this machine's memory, if it says so.
fn memory_of_machine() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1 << 10)
}

fn check_name(place: &str, name: &str) -> Result<(), Wrong> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fine) || name.starts_with('.') {
        return wrong(
            place,
            format!("{name:?}: 1 to 64 letters, digits, '-', '_' or '.' are expected"),
        );
    }
    Ok(())
}

fn read_key(path: &Path) -> Result<SecretKey, Wrong> {
    let place = "[site] key";
    match std::fs::read_to_string(path) {
        Ok(text) => text.parse().or_else(|e| wrong(place, format!("{}: {e}", path.display()))),
        Err(e) => {
            wrong(place, format!("{}: {e}; `viaduct key new --out {0}` makes one", path.display()))
        }
    }
}

fn warn_of_readers(key: &Path, warnings: &mut Vec<String>) {
    let mode = std::fs::metadata(key).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        let (path, mode) = (key.display(), mode & 0o777);
        warnings.push(format!(
            "[site] key: {path} has mode {mode:o}: others can read it; 600 is right"
        ));
    }
}

fn warn_of_listeners(
    site: &[IpNet],
    metrics: Option<SocketAddr>,
    cache: Option<SocketAddr>,
    warnings: &mut Vec<String>,
) {
    let inside = |ip: IpAddr| site.iter().any(|net| net.contains(&ip));
    if let Some(at) = metrics
        && !at.ip().is_loopback()
        && !inside(at.ip())
    {
        warnings.push(format!("[metrics] listen: {at} is neither local nor an address of this site: whoever reaches it reads the counters"));
    }
    if let Some(at) = cache
        && !inside(at.ip())
    {
        warnings.push(format!("[cache] listen: {at} is not an address of this site: its hosts may not reach it, others may"));
    }
}

fn peers(tables: Vec<PeerTable>, warnings: &mut Vec<String>) -> Result<Vec<Peer>, Wrong> {
    if tables.is_empty() {
        return wrong("", "no [[peer]]; at least one peer site is expected");
    }
    if tables.len() > MOST_PEERS {
        return wrong("[[peer]]", format!("{} are too many; at most {MOST_PEERS}", tables.len()));
    }
    let mut peers: Vec<Peer> = Vec::new();
    for table in tables {
        check_name("[[peer]] name", &table.name)?;
        let place = |key: &str| format!("peer {:?}: {key}", table.name);
        if peers.iter().any(|peer| peer.name == table.name) {
            return wrong(place("name"), "is used by another peer too; each needs its own");
        }
        if table.prefixes.is_empty() {
            return wrong(place("prefixes"), "is empty; list the addresses of that site's hosts");
        }
        if table.rekey_after.0 < Duration::from_secs(10) {
            return wrong(place("rekey_after"), "is below 10s, the least");
        }
        if let Some(endpoint) = table.endpoint
            && (endpoint.port() == 0 || endpoint.ip().is_unspecified())
        {
            let what =
                format!("{endpoint}: an address and a port are expected, such as 192.0.2.2:7400");
            return wrong(place("endpoint"), what);
        }
        let key = match table.key.parse::<PublicKey>() {
            Ok(key) => key,
            Err(e) => return wrong(place("key"), e),
        };
        if let Some(twin) = peers.iter().find(|peer| peer.key == key) {
            return wrong(
                place("key"),
                format!("is that of peer {:?} too; each needs its own", twin.name),
            );
        }
        let code = table.fec.code().or_else(|what| wrong(place("fec"), what))?;
        if let Some(code) = &code {
            match code.check() {
                Ok(odd) => warnings.extend(odd.iter().map(|w| format!("{}: {w}", place("fec")))),
                Err(e) => return wrong(place("fec"), e),
            }
        }
        peers.push(Peer {
            key,
            endpoint: table.endpoint,
            prefixes: table.prefixes,
            code,
            flush_after: table.fec.flush_after.map_or(DEFAULT_FLUSH, |span| span.0),
            rekey_after: table.rekey_after.0,
            name: table.name,
        });
    }
    Ok(peers)
}

fn check_prefixes(local: &[IpNet], peers: &[Peer]) -> Result<(), Wrong> {
    let mut all: Vec<(String, IpNet)> = Vec::new();
    let ours = local.iter().map(|net| ("[site]".to_owned(), *net));
    let theirs = peers
        .iter()
        .flat_map(|peer| peer.prefixes.iter().map(|net| (format!("peer {:?}", peer.name), *net)));
    for (owner, net) in ours.chain(theirs) {
        if net.trunc() != net {
            return wrong(
                format!("{owner}: prefixes"),
                format!("{net} has bits beyond its length; {} is expected", net.trunc()),
            );
        }
        let overlap = |other: &IpNet| other.contains(&net) || net.contains(other);
        if let Some((other, theirs)) = all.iter().find(|(_, other)| overlap(other)) {
            return wrong(
                format!("{owner}: prefixes"),
                format!("{net} overlaps {theirs} of {other}; each address belongs to one site"),
            );
        }
        all.push((owner, net));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
