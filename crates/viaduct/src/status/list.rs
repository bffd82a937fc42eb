//! Tables of services and of a gateway's peers.

use std::time::Duration;

use super::client::{Answers, ServiceStatus, Unread};
use super::colours::Colours;
use super::numbers::{bytes, percent, short_time, thousands};
use super::overview::{Overview, Rates, Service};
use super::summary::{Count, Counts, Summary};
use super::table::{Cell, Column, NONE, lines};
use crate::gateway::status::Status;

const RED: u8 = 31;
const GREEN: u8 = 32;

const fn left(name: &'static str, rank: u8) -> Column {
    Column { name, right: false, rank }
}

const fn right(name: &'static str, rank: u8) -> Column {
    Column { name, right: true, rank }
}

/// Columns of `viaduct status`: totals since the start of each service.
const TOTALS: [Column; 11] = [
    left("name", 0),
    left("kind", 5),
    right("peers", 2),
    right("flows", 4),
    right("sent", 3),
    right("received", 3),
    right("lost", 1),
    right("recovered", 6),
    right("overhead", 7),
    right("up", 8),
    left("state", 0),
];

/// Columns of `viaduct top`: rates of the last second, and sparklines of the last two minutes.
const RATES: [Column; 13] = [
    left("name", 0),
    left("kind", 8),
    right("peers", 7),
    right("flows", 6),
    right("new/s", 9),
    right("out Mb/s", 2),
    right("in Mb/s", 2),
    left("rate", 3),
    right("lost", 1),
    left("loss", 4),
    right("recovered", 5),
    right("overhead", 10),
    left("state", 0),
];

/// Columns of the peers of a gateway.
const PEERS: [Column; 10] = [
    left("peer", 0),
    right("out Mb/s", 3),
    right("in Mb/s", 3),
    left("rate", 5),
    right("lost out", 1),
    right("lost in", 1),
    left("loss", 4),
    right("recovered", 2),
    right("overhead", 6),
    left("state", 0),
];

/// Formats all services as a table of totals.
pub fn totals(answers: &Answers, width: usize, colours: Colours) -> Vec<String> {
    let unread = |name: &str, reason: &Unread| {
        let mut row = vec![Cell::from(NONE); TOTALS.len()];
        row[0] = name.into();
        row[TOTALS.len() - 1] = Cell::from(reason.to_string()).colour(RED);
        row
    };
    let row = |(name, answer): (&String, &Result<ServiceStatus, Unread>)| match answer {
        Ok(status) => total(name, &status.summary()),
        Err(reason) => unread(name, reason),
    };
    let rows: Vec<_> = answers.iter().map(row).collect();
    lines(&TOTALS, &rows, width, colours)
}

fn total(name: &str, summary: &Summary) -> Vec<Cell> {
    let Summary { counts, peers, flows, uptime, .. } = summary;
    let moved = |count: Count| match counts[count] {
        0 => NONE.to_owned(),
        some => bytes(some),
    };
    vec![
        name.into(),
        summary.kind.into(),
        peers_up(*peers),
        flows.map_or(NONE.to_owned(), thousands).into(),
        moved(Count::Sent).into(),
        moved(Count::Received).into(),
        percent(counts.lost(), counts.covered()).into(),
        percent(counts[Count::Recovered], counts.lost()).into(),
        overhead(counts).into(),
        uptime.map_or(NONE.to_owned(), short_time).into(),
        state(summary.trouble()),
    ]
}

/// Formats the services of `viaduct top`, with sparklines of `cells` characters.
pub fn rates(
    overview: &Overview,
    now: Duration,
    cells: usize,
    width: usize,
    colours: Colours,
) -> Vec<String> {
    let row = |(name, service): (&str, &Service)| -> Vec<Cell> {
        let Summary { kind, peers, flows, .. } = service.summary;
        let Rate { out, back, new, lost, recovered, overhead, .. } = Rate::new(&service.rates);
        vec![
            name.into(),
            Cell::from(if kind.is_empty() { NONE } else { kind }),
            peers_up(peers),
            flows.map_or(NONE.to_owned(), thousands).into(),
            new.into(),
            out.into(),
            back.into(),
            service.rates.trend.rates(cells).into(),
            lost.into(),
            service.rates.trend.losses(cells).into(),
            recovered.into(),
            overhead.into(),
            match (&service.now, service.trouble(now)) {
                (None, None) => NONE.into(),
                (_, trouble) => state(trouble),
            },
        ]
    };
    let rows: Vec<_> = overview.services().map(row).collect();
    lines(&RATES, &rows, width, colours)
}

/// Formats the peers of a gateway, with sparklines of `cells` characters.
pub fn peers(
    gateway: &Status,
    service: &Service,
    cells: usize,
    width: usize,
    colours: Colours,
) -> Vec<String> {
    let none = Rates::default();
    let row = |(at, name): (usize, &String)| -> Vec<Cell> {
        let rates = service.peers.get(name).unwrap_or(&none);
        let rate = Rate::new(rates);
        vec![
            name.as_str().into(),
            rate.out.into(),
            rate.back.into(),
            rates.trend.rates(cells).into(),
            rate.lost_out.into(),
            rate.lost_in.into(),
            rates.trend.losses(cells).into(),
            rate.recovered.into(),
            rate.overhead.into(),
            state(
                gateway
                    .peers
                    .get(at)
                    .and_then(|peer| Some(format!("{}: {}", peer.state, peer.reason.as_ref()?))),
            ),
        ]
    };
    let names = gateway.counters.peers.iter().map(|(name, _)| name).enumerate();
    let rows: Vec<_> = names.map(row).collect();
    lines(&PEERS, &rows, width, colours)
}

/// Rates and shares of the last second, as text.
struct Rate {
    out: String,
    back: String,
    new: String,
    lost: String,
    lost_out: String,
    lost_in: String,
    recovered: String,
    overhead: String,
}

impl Rate {
    fn new(rates: &Rates) -> Rate {
        let (seconds, change) = rates.change.unwrap_or((1.0, Counts::default()));
        let megabits = |count: Count| match change[count] {
            0 => NONE.to_owned(),
            bytes => format!("{:.1}", bytes as f64 * 8.0 / 1e6 / seconds),
        };
        let new = (change[Count::Begun] as f64 / seconds).round() as u64;
        Rate {
            out: megabits(Count::Sent),
            back: megabits(Count::Received),
            new: if change[Count::Begun] == 0 { NONE.to_owned() } else { thousands(new) },
            lost: percent(change.lost(), change.covered()),
            lost_out: percent(change[Count::LostOut], change[Count::CoveredOut]),
            lost_in: percent(change[Count::LostIn], change[Count::CoveredIn]),
            recovered: percent(change[Count::Recovered], change.lost()),
            overhead: overhead(&change),
        }
    }
}

fn overhead(counts: &Counts) -> String {
    // Only gateways have loss counts and repairs.
    if counts.covered() == 0 && counts[Count::RepairBytes] == 0 {
        return NONE.to_owned();
    }
    percent(counts[Count::RepairBytes], counts[Count::Sent])
}

fn peers_up(peers: Option<(usize, usize)>) -> Cell {
    match peers {
        None => NONE.into(),
        Some((up, all)) if up < all => Cell::from(format!("{up}/{all}")).colour(RED),
        Some((up, all)) => format!("{up}/{all}").into(),
    }
}

fn state(trouble: Option<String>) -> Cell {
    match trouble {
        Some(what) => Cell::from(what).colour(RED),
        None => Cell::from("up").colour(GREEN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::snapshot::ProxyStatus;
    use crate::gateway::status::PeerStatus;
    use viaduct_proto::repair::stats::PeerStats;

    /// Gateway with a peer that is up and one that is down, after this many seconds.
    fn gateway(seconds: u64) -> ServiceStatus {
        let mut stats = PeerStats { up: true, ..PeerStats::default() };
        stats.sender.bytes = 12_500_000 * seconds;
        stats.sender.repair_bytes = 500_000 * seconds;
        stats.receiver.bytes = 125_000 * seconds;
        stats.reported.covered = 1_000 * seconds;
        stats.reported.lost = 10 * seconds;
        stats.reported.recovered = 9 * seconds;
        let mut status = Status { uptime: seconds as f64, ..Status::default() };
        status.counters.peers =
            vec![("oslo".to_owned(), stats), ("bern".to_owned(), PeerStats::default())];
        status.peers = vec![
            PeerStatus { state: "up".to_owned(), ..PeerStatus::default() },
            PeerStatus {
                state: "down".to_owned(),
                name: "bern".to_owned(),
                reason: Some("no answer".to_owned()),
                ..PeerStatus::default()
            },
        ];
        ServiceStatus::Gateway(Box::new(status))
    }

    fn proxy(seconds: u64) -> ServiceStatus {
        let mut status = ProxyStatus { uptime: seconds as f64, ..ProxyStatus::default() };
        status.listen = vec![([127, 0, 0, 1], 7_000).into()];
        status.counters.open = 1_234;
        status.counters.opened = 50 * seconds;
        status.counters.bytes = [1_000 * seconds, 250_000 * seconds];
        ServiceStatus::Proxy(Box::new(status))
    }

    fn page(lines: &[String]) -> String {
        lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn the_status_of_all_services_is_one_table() {
        let answers = Answers::from([
            ("rome".to_owned(), Ok(gateway(7_384))),
            ("proxy-7000".to_owned(), Ok(proxy(61))),
            ("serve-80".to_owned(), Err(Unread::Denied)),
        ]);
        let wide = page(&totals(&answers, usize::MAX, Colours(false)));
        assert_eq!(
            wide,
            "\
name        kind     peers  flows      sent   received    lost  recovered  overhead     up  state
proxy-7000  proxy        -  1,234  59.6 KiB   14.5 MiB       -          -         -  1m 1s  up
rome        gateway    1/2      -  86.0 GiB  880.2 MiB  1.00 %    90.00 %    4.00 %  2h 3m  \
peer bern: down: no answer
serve-80    -            -      -         -          -       -          -         -      -  \
only the service's user and root may read its status
"
        );
    }

    #[test]
    fn the_list_of_services_fits_80_columns_and_fewer() {
        let mut overview = Overview::default();
        let second = Duration::from_secs;
        overview.handle_names(second(0), &["rome", "proxy-7000"].map(str::to_owned));
        for seconds in 1..=30 {
            overview.handle_answer(second(seconds), "rome", Ok(gateway(seconds)));
            overview.handle_answer(second(seconds), "proxy-7000", Ok(proxy(seconds)));
        }
        let show = |width| page(&rates(&overview, second(30), 12, width, Colours(false)));
        assert_eq!(
            show(80),
            "\
name        out Mb/s  in Mb/s  rate            lost  loss          state
proxy-7000       0.0      2.0           ███       -                up
rome           100.0      1.0           ███  1.00 %           ███  peer bern: d…
"
        );
        assert_eq!(
            show(40),
            "\
name          lost  state
proxy-7000       -  up
rome        1.00 %  peer bern: down: no…
"
        );
    }

    #[test]
    fn peers_of_a_gateway_have_rates_and_their_own_state() {
        let mut overview = Overview::default();
        overview.handle_names(Duration::ZERO, &["rome".to_owned()]);
        for seconds in 1..=30 {
            overview.handle_answer(Duration::from_secs(seconds), "rome", Ok(gateway(seconds)));
        }
        let service = overview.service("rome").unwrap();
        let status = service.now.as_ref().and_then(ServiceStatus::gateway).unwrap();
        let show = |width| page(&peers(status, service, 12, width, Colours(false)));
        assert_eq!(
            show(100),
            "\
peer  out Mb/s  in Mb/s  rate          lost out  loss          recovered  overhead  state
oslo     100.0      1.0           ███    1.00 %           ███    90.00 %    4.00 %  up
bern         -        -           ▁▁▁         -                        -         -  down: no answer
"
        );
    }
}
