//! Measurements of hops: the table of the overlay node on this host, and the reports of the hops
//! themselves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};
use viaduct_proto::handlers::Tables;
use viaduct_proto::placement::Prefix;
use viaduct_proto::placement::report::{MAX_LEN, Report};
use viaduct_proto::split::proxy;
use viaduct_proto::time::Instant;

use super::auto::{AutoHops, AutoSpec, now};
use crate::engine::worker::Worker;
use crate::overlay_table::overlays;

/// Interval at which the node's table is read.
pub(super) const TABLE_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum time between two queries to the hops.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a hop's report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Reports of hops about some networks. They are passed on together: a choice based on only some of
/// them would be kept for a while.
pub(super) type Reported = (Vec<Prefix>, Vec<(SocketAddr, Report)>);

/// Follower of an overlay, for the choice of hops.
pub(super) struct OverlayFollower {
    pub(super) spec: AutoSpec,
    auto: Arc<AutoHops>,
    tables: Tables,
    next_query: Instant,
    /// State that was logged last: true if the node answers.
    has_table: Option<bool>,
    reports: UnboundedSender<Reported>,
}

impl OverlayFollower {
    /// Returns a follower of the overlay that `spec` names.
    pub(super) fn new(
        spec: AutoSpec,
        auto: Arc<AutoHops>,
        reports: UnboundedSender<Reported>,
    ) -> OverlayFollower {
        let tables = overlays()(&spec.overlay.to_string_lossy());
        OverlayFollower { spec, auto, tables, next_query: now(), has_table: None, reports }
    }

    /// Reads the node's table, and sends the queries that are due. Returns whether the addresses of
    /// the hops have changed.
    pub(super) fn turn(&mut self) -> bool {
        let table = (self.tables)();
        self.log(table.is_some());
        let has_changed = self.auto.hops().handle_table(now(), table);
        if now() >= self.next_query {
            self.next_query = now() + QUERY_INTERVAL;
            self.ask();
        }
        has_changed
    }

    fn log(&mut self, has_table: bool) {
        let before = self.has_table.replace(has_table);
        let overlay = self.spec.overlay.display();
        match (before, has_table) {
            (Some(true) | None, false) => {
                warn!("the overlay at {overlay} does not answer: flows go directly to servers");
            }
            (Some(false), true) => info!("the overlay at {overlay} answers"),
            _ => {}
        }
    }

    /// Asks all hops that are up for their round trips to the networks in use.
    fn ask(&self) {
        let mut hops = self.auto.hops();
        let networks = hops.poll_query(now());
        if networks.is_empty() {
            return;
        }
        let mut asked = JoinSet::new();
        for hop in hops.addresses().filter(|hop| hops.is_usable(*hop)) {
            let networks = networks.clone();
            asked.spawn(async move {
                match timeout(REPORT_TIMEOUT, ask(hop, networks)).await {
                    Ok(Ok(report)) => return Some((hop, report)),
                    Ok(Err(error)) => debug!("{hop} does not report: {error}"),
                    Err(_) => debug!("{hop} does not report in time"),
                }
                None
            });
        }
        let reports = self.reports.clone();
        tokio::spawn(async move {
            let reported = asked.join_all().await.into_iter().flatten().collect();
            // There is no receiver while the proxy shuts down.
            let _ = reports.send((networks, reported));
        });
    }
}

/// Asks a hop for its round trips to `networks`.
async fn ask(hop: SocketAddr, networks: Vec<Prefix>) -> io::Result<Report> {
    let mut stream = TcpStream::connect(hop).await?;
    stream.write_all(&proxy::query(networks)).await?;
    let mut bytes = Vec::new();
    stream.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes).await?;
    Report::parse(&bytes).ok_or_else(|| io::Error::other("no report of a hop"))
}

impl Worker {
    /// Report of this proxy about `networks`, for another proxy that may choose it as a hop.
    pub(in crate::engine) fn report(&self, networks: &[Prefix], now: Instant) -> Vec<u8> {
        let load = self.flows.len() as f64 / self.config.limits.flows.max(1) as f64;
        self.config.policies.auto.hops().report(now, networks, load).emit()
    }

    /// Measures the round trip to the server of flow `key`, if the flow goes there directly.
    pub(in crate::engine) fn measure(&mut self, key: usize, now: Instant) {
        let auto = &self.config.policies.auto;
        if auto.is_on()
            && let Some((server, rtt)) = self.flows.get(key).and_then(|flow| flow.server_rtt())
        {
            auto.hops().handle_finished(now, server, rtt.as_secs_f64() * 1e3);
        }
    }
}
