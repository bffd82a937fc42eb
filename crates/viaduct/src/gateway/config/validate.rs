//! Validation of a config: each value is checked by itself, then against the others.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use viaduct_proto::keys::{PublicKey, SecretKey};
use viaduct_proto::repair::lanes::LaneCount;

use super::error::{Invalid, check_name, invalid};
use super::file::{File, SiteTable};
use super::members::{check_slices, site_rack};
use super::peers::{check_prefixes, peers};
use super::values::{is_one_host, prefixes};
use super::wans::{path_classes, wans};
use super::{Config, Peer};
use crate::settings::OptionsTable;
use crate::status_socket::temporary_path;
use crate::{key, text};

/// Minimum of the default number of lanes for several workers.
const USUAL_LANES: usize = 16;
/// Maximum length of a key file in bytes.
const MAX_KEY_FILE: u64 = 4 << 10;
/// Maximum length of a socket's path (`sockaddr_un`), without the terminating NUL.
const MAX_SOCKET_PATH: usize = 107;

/// Validates `file`, whose paths are relative to `dir`, and returns its meaning.
/// The key file is read only if there is no `secret`.
pub(super) fn validate(
    file: File,
    dir: &Path,
    secret: Option<&SecretKey>,
) -> Result<Config, Invalid> {
    let site = file.site;
    check_site(&site)?;
    let (wan, listen, wans) = wans(&site)?;
    check_listener("[site] listen", Some(listen))?;
    let path = dir.join(&site.key);
    let secret = secret.map_or_else(|| read_key(&path), |secret| Ok(secret.clone()))?;
    let mut config = Config {
        peers: Vec::new(),
        warnings: Vec::new(),
        prefixes: prefixes(&site.prefixes),
        listen,
        path_classes: path_classes(&site, &wans)?,
        wans,
        tls_listen: site.tls_listen.as_ref().map(|at| at.0),
        host_mtu: site.host_mtu.map(|bytes| bytes.0),
        workers: site.workers.0,
        lanes: lanes(&site)?,
        memory: site.memory,
        run_dir: site.run_dir,
        metrics: file.metrics.listen.map(|at| at.0),
        cache: file.cache.listen.map(|at| at.0),
        split: OptionsTable::default(),
        policies: file.policy,
        rack: site_rack(site.member, site.route_table, secret.public())?,
        name: site.name,
        wan,
        secret,
    };
    check_run_dir(&config)?;
    check_listener("[metrics] listen", config.metrics)?;
    check_listener("[cache] listen", config.cache)?;
    config.warnings.extend(key::readable_by_others("[site] key", &path));
    warn_about_listeners(&mut config);
    let (peers, mut warnings) = peers(file.peer, &config)?;
    config.warnings.append(&mut warnings);
    config.peers = peers;
    check_prefixes(&config)?;
    check_slices(&config, &config.peers)?;
    let peers = &config.peers;
    if (file.split.is_some() || !config.policies.is_empty()) && !peers.iter().any(|p| p.split) {
        let why = "no peer has mode = \"split\"; set it for a peer, or remove [split] and all \
                   [[policy]]; either needs a restart";
        return invalid("[split]", why);
    }
    if config.tls_listen.is_some() && !peers.iter().any(Peer::may_use_tls) {
        let why = "no peer has mode = \"split\" with transport \"auto\" or \"tls\"; remove it";
        return invalid("[site] tls_listen", why);
    }
    config.split = file.split.unwrap_or_default();
    Ok(config)
}

fn check_site(site: &SiteTable) -> Result<(), Invalid> {
    check_name("[site] name", &site.name)?;
    if site.prefixes.is_empty() {
        return invalid("[site] prefixes", "is empty; list the addresses of this site's hosts");
    }
    if let Some(machine) = memory_of_machine()
        && site.memory > machine / 2
    {
        let what = format!("is above {} MiB, half of this machine's", machine >> 21);
        return invalid("[site] memory", what);
    }
    let tls = site.tls_listen.as_ref().map(|at| at.0);
    if tls.is_some_and(|at| at.port() == 0) {
        return invalid("[site] tls_listen", "has port 0; peers need a fixed one, such as 443");
    }
    check_listener("[site] tls_listen", tls)
}

/// Number of lanes: by default 1 for one worker, and 16 or more for several.
fn lanes(site: &SiteTable) -> Result<LaneCount, Invalid> {
    let (workers, given) = (site.workers.0, site.lanes.map(|lanes| lanes.0));
    let default = if workers == 1 { 1 } else { workers.next_power_of_two().max(USUAL_LANES) };
    let lanes = given.or(LaneCount::new(default)).unwrap_or(LaneCount::ONE);
    if lanes.get() < workers {
        let what = format!("is {}; each of {workers} workers needs one at least", lanes.get());
        return invalid("[site] lanes", what);
    }
    Ok(lanes)
}

/// Bytes of this machine's memory, if the kernel reports it.
fn memory_of_machine() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1 << 10)
}

fn check_listener(place: &str, at: Option<SocketAddr>) -> Result<(), Invalid> {
    match at {
        Some(at) if !at.ip().is_unspecified() && !is_one_host(at.ip()) => {
            invalid(place, format!("{at} is not the address of one machine"))
        }
        _ => Ok(()),
    }
}

fn read_key(path: &Path) -> Result<SecretKey, Invalid> {
    let place = format!("[site] key: {}", path.display());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.parse::<PublicKey>().is_ok() {
        return invalid(place, "is a key; the name of the file with the secret key is expected");
    }
    if !path.exists() {
        let what = format!("does not exist; `viaduct key new --out {}` creates it", path.display());
        return invalid(place, what);
    }
    let text =
        text::read(&key::accessible(path), MAX_KEY_FILE).or_else(|what| invalid(&place, what))?;
    text.parse().or_else(|what| invalid(&place, what))
}

fn check_run_dir(config: &Config) -> Result<(), Invalid> {
    let (place, dir) = ("[site] run_dir", &config.run_dir);
    if dir.as_os_str().is_empty() {
        return invalid(place, "is empty; a directory is expected");
    }
    if dir.exists() && !dir.is_dir() {
        return invalid(place, format!("{} is not a directory", dir.display()));
    }
    // The longest path of a socket: the temporary one of the socket for upgrade requests.
    let socket = temporary_path(&config.upgrade_socket());
    let length = socket.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        let socket = socket.display();
        let what = format!(
            "the socket {socket} would have a path of {length} bytes; at most \
             {MAX_SOCKET_PATH} are possible: a shorter run_dir or name is expected"
        );
        return invalid(place, what);
    }
    Ok(())
}

fn warn_about_listeners(config: &mut Config) {
    let inside = |ip: IpAddr| config.prefixes.iter().any(|net| net.contains(&ip));
    if let Some(at) = config.metrics
        && !at.ip().is_loopback()
        && !inside(at.ip())
    {
        config.warnings.push(format!(
            "[metrics] listen: {at} is neither local nor an address of this site: all hosts that \
             reach it can read the counters"
        ));
    }
    if let Some(at) = config.cache
        && !inside(at.ip())
    {
        config.warnings.push(format!(
            "[cache] listen: {at} is not an address of this site: the site's hosts may be unable \
             to reach it, and other hosts may reach it"
        ));
    }
}
