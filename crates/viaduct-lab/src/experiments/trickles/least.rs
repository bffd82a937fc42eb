//! NAT that assigns each new connection to the server with the fewest connections, like the NAT
//! in front of the paper's TCP servers. Later packets of a connection go to the same server as
//! its first.
//!
//! ```text
//!   SYN ─▶ [ queue ] ─▶ fewest connections in conntrack ─▶ [ mark ] ─▶ [ dnat ] ─▶ b1 or b2
//! ```

use std::io::{self, Read as _, Seek as _};
use std::sync::Arc;
use std::thread::JoinHandle;

use viaduct_sys::nft::intercept::Selector;
use viaduct_sys::nft::nfqueue::{NfQueue, SNAP, Verdict};
use viaduct_sys::nft::syn_hold::{SynHold, SynPath};
use viaduct_sys::nft::table::Table as _;
use viaduct_sys::poll::{Waker, wait};

use super::replicas::SERVICE;
use super::served::PORT;
use crate::experiments::prelude::*;

/// Number of the queue that holds SYNs, and its length.
const QUEUE: (u16, u32) = (71, 1024);
/// Connection table of the kernel, for the network namespace of the opening thread.
const CONNECTIONS: &str = "/proc/thread-self/net/nf_conntrack";
/// States of closed connections. Their timeouts are shortened, because otherwise each reading
/// would parse thousands of entries.
const OVER: [&str; 2] = ["time_wait", "close"];

/// Least-connections balancer; removed when dropped.
#[derive(Debug)]
pub(super) struct LeastConnections<'a> {
    gateway: &'a Node,
    hold: SynHold,
    dealing: Arc<Dealing>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Dealing {
    stop: AtomicBool,
    waker: Waker,
    servers: [Ipv4Addr; 2],
}

impl<'a> LeastConnections<'a> {
    /// Starts the balancer at `gateway`, in front of `servers`.
    pub(super) fn start(gateway: &'a Node, servers: [Ipv4Addr; 2]) -> Result<LeastConnections<'a>> {
        gateway.run("nft", &[&translation(servers)])?;
        let keys = OVER.map(|state| format!("net/netfilter/nf_conntrack_tcp_timeout_{state}"));
        gateway.set_sysctls(&keys.each_ref().map(|key| (key.as_str(), "1")))?;
        let way = Selector { from: Vec::new(), to: vec![(SERVICE.into(), 32)] };
        let hold = SynHold {
            instance: "least".to_owned(),
            queue: QUEUE.0,
            whose: SynPath::Forwarded,
            ways: vec![way],
            ports: vec![PORT],
        };
        let (queue, connections) = gateway.netns().enter(|| -> Result<_> {
            let opened = (NfQueue::open(QUEUE.0, QUEUE.1)?, File::open(CONNECTIONS)?);
            hold.apply()?;
            Ok(opened)
        })??;
        let stop = AtomicBool::new(false);
        let dealing = Arc::new(Dealing { stop, waker: Waker::new()?, servers });
        let run = dealing.clone();
        // If the queue has no reader, SYNs pass unmarked and reach no server, and the fetches
        // fail with an error.
        let thread = thread::spawn(move || run.run(&queue, connections).unwrap_or_default());
        Ok(LeastConnections { gateway, hold, dealing, thread: Some(thread) })
    }
}

impl Dealing {
    fn run(&self, queue: &NfQueue, mut connections: File) -> io::Result<()> {
        let mut packet = [0; SNAP];
        // If both servers have equally many connections, the server that was not chosen last is
        // next.
        let mut last = 1;
        while !self.stop.load(Ordering::Relaxed) {
            let Some(held) = queue.recv(&mut packet)? else {
                wait(&[queue], &self.waker, Duration::from_secs(1));
                continue;
            };
            let open = self.open(&mut connections)?;
            last = if open[0] == open[1] { 1 - last } else { usize::from(open[1] < open[0]) };
            // The kernel has added the connection to its table when this call returns.
            queue.verdict(held.id, Verdict::Mark(1 + last as u32))?;
        }
        Ok(())
    }

    /// Counts the connections of each server that neither end has closed.
    fn open(&self, connections: &mut File) -> io::Result<[usize; 2]> {
        let mut text = String::new();
        connections.rewind()?;
        connections.read_to_string(&mut text)?;
        let open = text.lines().filter(|line| {
            ["SYN_SENT", "SYN_RECV", "ESTABLISHED"].iter().any(|state| line.contains(state))
        });
        let lines: Vec<&str> = open.collect();
        // The reply direction has the server as its source.
        Ok(self.servers.map(|server| {
            let whose = format!(" src={server} ");
            lines.iter().filter(|line| line.contains(&whose)).count()
        }))
    }
}

impl Drop for LeastConnections<'_> {
    fn drop(&mut self) {
        self.dealing.stop.store(true, Ordering::Relaxed);
        self.dealing.waker.wake();
        // A panic of the thread was already printed. If a removal fails, so does the next step.
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = self.gateway.netns().enter(|| self.hold.undo());
        let _ = self.gateway.run("nft", &["delete table ip least"]);
    }
}

/// Returns the rules that send a connection's packets to the server that its SYN was marked for.
fn translation([b1, b2]: [Ipv4Addr; 2]) -> String {
    format!(
        "table ip least {{
            chain deal {{
                type nat hook prerouting priority dstnat; policy accept;
                ip daddr {SERVICE} tcp dport {PORT} meta mark 1 dnat to {b1}
                ip daddr {SERVICE} tcp dport {PORT} meta mark 2 dnat to {b2}
            }}
        }}"
    )
}
