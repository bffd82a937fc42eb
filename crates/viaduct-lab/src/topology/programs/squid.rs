//! Debian's Squid as a child cache, as its parent, or as a cache next to a proxy. The configuration
//! consists of the files of `examples/squid/` and a few additional lines for a short-lived world.
//! Of these files, at most the address of the child's parent is changed.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use viaduct_sys::process::Process;

use super::{admin_command, serve};
use crate::stop;
use crate::topology::{Host, Node, Scratch, TopologyError};

const CHILD: &str = include_str!("../../../../../examples/squid/child.conf");
const PARENT: &str = include_str!("../../../../../examples/squid/parent.conf");
const CACHE: &str = include_str!("../../../../../examples/squid/cache.conf");
/// Parent as named in `child.conf`: the near end of a tunnel.
const THROUGH_TUNNEL: &str = "cache_peer 127.0.0.1 parent 3129 ";
/// Listening port of a child or a parent. A cache that is a proxy's next hop listens
/// at [`CACHE_PORT`].
const PORT: u16 = 3128;
const CACHE_PORT: u16 = 3129;
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Additional setting: no caching, so that every request crosses the link.
const NO_CACHING: &str = "cache deny all\n";
/// Additional setting of a cache: even a file that was written just now counts as fresh.
const CACHING: &str = "refresh_pattern . 60 100% 600\n";
/// Additional settings: no logs or other files; immediate shutdown.
const FOR_A_WORLD: &str = "
cache_mem 8 MB
access_log none
cache_store_log none
pid_filename none
netdb_filename none
pinger_enable off
coredump_dir /
max_filedescriptors 8192
shutdown_lifetime 0 seconds
";

/// Start command with a private /dev/shm, because Squid's shared memory would otherwise remain
/// after Squid is killed.
const ALONE: &str = "mount -t tmpfs tmpfs /dev/shm && exec squid -N -d1 -n \"$0\" -f \"$1\"";

/// Running Squid; stopped when dropped.
#[derive(Debug)]
pub struct Squid {
    host: Host,
    _process: Process,
    _scratch: Scratch,
}

/// Running Squid that caches for a proxy; stopped when dropped.
#[derive(Debug)]
pub struct SquidCache {
    _process: Process,
    _scratch: Scratch,
}

/// Persistence of Squid's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Persistent connections, Squid's default.
    Kept,
    /// A connection per request, as at the time of the slides.
    OneEach,
}

impl Squid {
    /// Starts a child whose parent is at `parent`. If `parent` is `None`, the child reaches its
    /// parent through the near end of a tunnel in the same host (port 3129), as in `child.conf`.
    pub fn child(
        host: &Host,
        parent: Option<SocketAddr>,
        connections: Connections,
    ) -> Result<Squid, TopologyError> {
        let direct = |to: SocketAddr| format!("cache_peer {} parent {} ", to.ip(), to.port());
        let config = match parent {
            Some(to) => CHILD.replace(THROUGH_TUNNEL, &direct(to)),
            None => CHILD.to_owned(),
        };
        Self::start(host, "child", &config, connections)
    }

    /// Starts a parent with `parent.conf`.
    pub fn parent(host: &Host, connections: Connections) -> Result<Squid, TopologyError> {
        Self::start(host, "parent", PARENT, connections)
    }

    /// Starts a cache in `node` with `cache.conf`, for a proxy on the same machine.
    pub fn cache(node: &Node) -> Result<SquidCache, TopologyError> {
        let (process, scratch) = launch(node, "cache", &(CACHE.to_owned() + CACHING), CACHE_PORT)?;
        Ok(SquidCache { _process: process, _scratch: scratch })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.v4().into(), PORT)
    }

    fn start(
        host: &Host,
        name: &str,
        config: &str,
        connections: Connections,
    ) -> Result<Squid, TopologyError> {
        let mut text = format!("{config}{NO_CACHING}");
        if connections == Connections::OneEach {
            text += "server_persistent_connections off\nclient_persistent_connections off\n";
        }
        let (process, scratch) = launch(host, name, &text, PORT)?;
        Ok(Squid { host: host.clone(), _process: process, _scratch: scratch })
    }
}

/// Starts a Squid that listens at `port`, with these settings and those for a short-lived world.
fn launch(
    node: &Node,
    name: &str,
    config: &str,
    port: u16,
) -> Result<(Process, Scratch), TopologyError> {
    let wrong = |e| node.io("write Squid's configuration".into(), e);
    let scratch = Scratch::new().map_err(wrong)?;
    let log = scratch.write("cache.log", "").map_err(wrong)?;
    // Squid writes its log as a user of its own.
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).map_err(wrong)?;
    let own = format!("visible_hostname {name}\ncache_log {}\n", log.display());
    let text = format!("{config}{FOR_A_WORLD}{own}");
    let file = scratch.write("squid.conf", text).map_err(wrong)?;
    let mut squid = admin_command(node, "unshare");
    squid.args(["--mount", "sh", "-c", ALONE, name]).arg(file);
    let process = serve(node, squid, port)?;
    wait_for(&log, node)?;
    Ok((process, scratch))
}

/// Waits until Squid has rebuilt its cache index; until then it aborts uncacheable responses.
fn wait_for(log: &Path, node: &Node) -> Result<(), TopologyError> {
    let seen = || fs::read_to_string(log).is_ok_and(|text| text.contains("storeLateRelease"));
    if stop::wait_until(START_TIMEOUT, Duration::from_millis(20), seen)? {
        return Ok(());
    }
    let (node, what) = (node.name().into(), "Squid's cache index".into());
    Err(TopologyError::TimedOut { node, what, after: START_TIMEOUT })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::{Documents, Requests, WebServer};
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    #[test]
    fn the_child_example_uses_only_the_tunnel() {
        assert_eq!(CHILD.lines().filter(|line| line.starts_with("cache_peer")).count(), 1);
        assert!(CHILD.contains(THROUGH_TUNNEL));
        assert!(CHILD.lines().any(|line| line == "never_direct allow all"));
    }

    #[test]
    fn documents_arrive_complete_through_a_child_and_its_parent() {
        let spec = DumbbellSpec { hosts: 2, ..DumbbellSpec::default() };
        let world = Dumbbell::build(&spec, &Journal::new()).unwrap();
        let (documents, origin) = (Documents::new(1), world.b1());
        let server = WebServer::with_documents(origin, &documents).unwrap();
        for connections in [Connections::Kept, Connections::OneEach] {
            let parent = Squid::parent(&world.hosts_b()[1], connections).unwrap();
            let child = &world.hosts_a()[1];
            let child = Squid::child(child, Some(parent.address()), connections).unwrap();
            let load = Requests {
                rate: 50.0,
                duration: Duration::from_secs(1),
                timeout: Duration::from_secs(5),
                to: child.address(),
                server: server.address(),
                proxied: true,
                seed: 1,
            };
            let made = load.run(world.a1(), &documents).unwrap();
            assert!(!made.is_empty() && made.iter().all(|r| r.time.is_some()), "{made:?}");
        }
    }
}
