//! 1,000 flows over four proxies that share an address; one proxy fails. A router distributes the
//! flows over the proxies by a resilient group of next hops.
//!
//! ```text
//!   a ── ain ═ group of 4 next hops ═ proxies with 10.9.0.80 ═ aout ══ bout ══ bin ── b: echoes
//! ```

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::experiments::prelude::*;
use crate::topology::Racks;
use crate::topology::programs::sessions::{ECHO_BYTES, SessionServer};

const PROXIES: usize = 4;
const PORT: u16 = 7_000;
const SERVER_PORT: u16 = 9_000;
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 80);
const LINK: &str = "rate=500M,delay=2ms";
/// Time limit of an echo.
const ECHO_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the measurement, and records its check.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let count = run.choose(1_000, 200);
    run.param("flows", count);
    let world = Racks::build(PROXIES, &link(LINK), run.seed(), run.journal())?;
    let server = SessionServer::start(&world.sites[1].host, SERVER_PORT)?;
    let to = format!("{}", server.address());
    let listen = format!("{SERVICE}:{PORT}");
    let mut proxies = Vec::new();
    for node in &world.sites[0].members {
        node.ip(&[format!("addr add {SERVICE}/32 dev lo")])?;
        proxies.push(Some(Proxy::start(node, &["--listen", &listen, "--to", &to])?));
    }
    route(&world, &[0, 1, 2, 3])?;
    let mut flows = open(&world, count)?;
    let of_each = world.sites[0].members.iter().map(accepted).collect::<Result<Vec<_>>>()?;
    ensure!(
        of_each.iter().sum::<usize>() == count,
        "the proxies have {of_each:?} of {count} flows"
    );
    proxies[1] = None;
    world.sites[0].cut_off(1)?;
    route(&world, &[0, 2, 3])?;
    let alive = flows.iter_mut().filter_map(|flow| echo(flow).ok()).count();
    let others = count - of_each[1];
    run.param("flows of the proxy that died", of_each[1]);
    let lost = others as f64 - alive as f64;
    run.at_most("four proxies, one fails: flows of the others lost", lost, 0.0);
    // New flows go to the remaining proxies.
    open(&world, 50)?;
    Ok(())
}

/// Makes the router send the service's packets to these proxies. Flows of proxies that were in the
/// group before do not move.
fn route(world: &Racks, proxies: &[usize]) -> Result<()> {
    let inner = &world.sites[0].inner;
    let ids: Vec<_> = proxies.iter().map(|n| (n + 1).to_string()).collect();
    let group = format!("group {} type resilient buckets 128 idle_timer 60", ids.join("/"));
    if proxies.len() == PROXIES {
        inner.set_sysctls(&[("net/ipv4/fib_multipath_hash_policy", "1")])?;
        let hop = |n: usize| format!("nexthop add id {n} via 10.101.{n}.2 dev m{n}");
        let mut lines: Vec<_> = (1..=PROXIES).map(hop).collect();
        lines.push(format!("nexthop add id 10 {group}"));
        lines.push(format!("route add {SERVICE}/32 nhid 10"));
        inner.ip(&lines)?;
    } else {
        inner.ip(&[format!("nexthop replace id 10 {group}")])?;
    }
    Ok(())
}

/// Opens flows, each with an echo.
fn open(world: &Racks, count: usize) -> Result<Vec<TcpStream>> {
    let open = || -> Result<TcpStream> {
        let mut flow = TcpStream::connect((SERVICE, PORT))?;
        flow.set_read_timeout(Some(ECHO_TIMEOUT))?;
        flow.write_all(b"E")?;
        echo(&mut flow)?;
        Ok(flow)
    };
    world.sites[0].host.netns().enter(|| (0..count).map(|_| open()).collect())?
}

fn echo(flow: &mut TcpStream) -> Result<()> {
    let sent = [0x5a; ECHO_BYTES];
    flow.write_all(&sent)?;
    let mut back = [0; ECHO_BYTES];
    flow.read_exact(&mut back)?;
    ensure!(sent == back, "a wrong byte");
    Ok(())
}

/// Returns the number of flows that a proxy has accepted.
fn accepted(node: &Node) -> Result<usize> {
    let filter = format!("sport = :{PORT}");
    let listed = node.run("ss", &["-Htn", "state", "established", &filter])?;
    Ok(listed.lines().filter(|line| !line.is_empty()).count())
}
