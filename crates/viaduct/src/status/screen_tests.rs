use super::*;
use crate::gateway::status::{PeerStatus, Status};
use crate::serve::status::ServeStatus;
use crate::status::client::Unread;
use viaduct_proto::repair::stats::PeerStats;

const TERMINAL: Size = Size { columns: 80, rows: 23 };

/// Gateway `rome` with this many peers, and the servers `serve-80` and `serve-81`. The status of
/// `serve-81` may not be read.
fn overview(peers: usize) -> Overview {
    let mut overview = Overview::default();
    overview.handle_names(Duration::ZERO, &["rome", "serve-80", "serve-81"].map(str::to_owned));
    for seconds in 1..=20 {
        let now = Duration::from_secs(seconds);
        let mut stats = PeerStats { up: true, ..PeerStats::default() };
        stats.sender.bytes = 1_250_000 * seconds;
        stats.receiver.link.covered = 1_000 * seconds;
        stats.receiver.link.lost = 20 * seconds;
        stats.receiver.link.recovered = 19 * seconds;
        let mut status = Status { site: "rome".to_owned(), ..Status::default() };
        status.uptime = seconds as f64;
        let name = |n| format!("peer-{n}");
        status.counters.peers = (0..peers).map(|n| (name(n), stats)).collect();
        status.peers = vec![PeerStatus { state: "up".to_owned(), ..Default::default() }; peers];
        overview.handle_answer(now, "rome", Ok(ServiceStatus::Gateway(Box::new(status))));
        let mut status = ServeStatus { serving: "/srv".to_owned(), ..ServeStatus::default() };
        status.tcp.requests = 50 * seconds;
        overview.handle_answer(now, "serve-80", Ok(ServiceStatus::Serve(Box::new(status))));
        overview.handle_answer(now, "serve-81", Err(Unread::Denied));
    }
    overview
}

fn show(screen: &mut Screen, overview: &Overview, size: Size) -> String {
    screen.show(overview, Duration::from_secs(20), size, Colours(false))
}

fn press(screen: &mut Screen, overview: &Overview, keys: &[Key]) -> String {
    for key in keys {
        assert!(!screen.press(*key, overview, TERMINAL.rows), "{key:?}");
    }
    show(screen, overview, TERMINAL)
}

#[test]
fn enter_opens_a_service_and_a_peer_and_escape_returns() {
    let (overview, mut screen) = (overview(2), Screen::new(&[]));
    let list = show(&mut screen, &overview, TERMINAL);
    assert_eq!(
        list,
        "\
3 services, 1 of them with a problem
  name      out Mb/s  rate            lost  loss          state
> rome          20.0            ██  2.00 %            ██  up
  serve-80         -            ██       -                up
  serve-81         -                     -                only the service's us…
q quits, ? lists keys
"
    );
    assert!(press(&mut screen, &overview, &[Key::Down]).contains("\n> serve-80 "));
    let server = press(&mut screen, &overview, &[Key::Open]);
    assert!(server.starts_with("serving /srv"), "{server}");
    assert!(server.contains("Esc goes back"), "{server}");
    let list = press(&mut screen, &overview, &[Key::Back]);
    assert!(list.contains("\n> serve-80 "), "the same line is selected: {list}");
    let gateway = press(&mut screen, &overview, &[Key::Home, Key::Open, Key::Down]);
    assert!(gateway.starts_with("site rome") && gateway.contains("\n> peer-1 "), "{gateway}");
    let peer = press(&mut screen, &overview, &[Key::Open]);
    assert!(peer.contains("peer peer-1  up") && !peer.contains("peer-0"), "{peer}");
    assert!(peer.contains("now       out 1,000 packets/s") || peer.contains("now "), "{peer}");
    let all = press(&mut screen, &overview, &[Key::Back, Key::Details]);
    assert!(all.contains("peer peer-0  up"), "{all}");
    let denied = press(&mut screen, &overview, &[Key::Back, Key::End, Key::Open]);
    assert!(denied.contains("only the service's user and root"), "{denied}");
    assert!(screen.press(Key::Quit, &overview, TERMINAL.rows));
}

#[test]
fn the_only_service_is_opened_immediately_and_a_named_one_has_no_list() {
    let (overview, names) = (overview(2), ["rome".to_owned()]);
    let mut screen = Screen::new(&names);
    assert!(show(&mut screen, &overview, TERMINAL).starts_with("site rome"));
    assert!(press(&mut screen, &overview, &[Key::Back]).starts_with("3 services, 1 of them"));
    let mut screen = Screen::single("rome");
    let page = press(&mut screen, &overview, &[Key::Back, Key::Back]);
    assert!(page.starts_with("site rome") && !page.contains("Esc"), "{page}");
    let mut gone = Screen::single("oslo");
    assert!(show(&mut gone, &overview, TERMINAL).starts_with("oslo: not running"));
}

#[test]
fn the_header_stays_and_the_selected_line_is_visible() {
    let (overview, mut screen) = (overview(100), Screen::single("rome"));
    let top = show(&mut screen, &overview, TERMINAL);
    assert_eq!(top.lines().count(), TERMINAL.rows);
    assert!(top.contains("> peer-0 ") && top.contains("80 below"), "{top}");
    let next = press(&mut screen, &overview, &[Key::PageDown, Key::PageDown]);
    assert!(next.starts_with("site rome") && next.contains("> peer-38 "), "{next}");
    let end = press(&mut screen, &overview, &[Key::End]);
    assert!(end.contains("> peer-99 ") && end.contains("80 lines above, 0 below"), "{end}");
    let up = press(&mut screen, &overview, &[Key::Up]);
    assert!(up.contains("> peer-98 ") && up.contains("  peer-99 "), "{up}");
    let help = press(&mut screen, &overview, &[Key::Help]);
    assert!(help.contains("PgUp") && help.contains("Esc goes back"), "{help}");
    let back = press(&mut screen, &overview, &[Key::Back]);
    assert!(back.contains("> peer-98 "), "{back}");
}

#[test]
fn every_size_of_a_terminal_is_drawn() {
    let overview = overview(30);
    let levels: [&[Key]; 5] = [
        &[],
        &[Key::Open],
        &[Key::Open, Key::Open],
        &[Key::Open, Key::Details, Key::End],
        &[Key::Help],
    ];
    for keys in levels {
        for columns in [1, 2, 3, 10, 20, 40, 80, 110, 200, 1_000] {
            for rows in 1..40 {
                let mut screen = Screen::new(&[]);
                keys.iter().for_each(|key| {
                    screen.press(*key, &overview, rows);
                });
                let page = show(&mut screen, &overview, Size { columns, rows });
                let header = page.lines().take_while(|line| !line.contains("q quits")).count();
                assert!(header < rows.max(5), "{columns}x{rows}:\n{page}");
            }
        }
    }
}

#[test]
fn services_that_come_and_go_do_not_move_the_selection() {
    let (mut overview, mut screen) = (overview(2), Screen::new(&[]));
    press(&mut screen, &overview, &[Key::Down]);
    let names = ["a", "rome", "serve-80"].map(str::to_owned);
    overview.handle_names(Duration::from_secs(20), &names);
    let list = show(&mut screen, &overview, TERMINAL);
    assert!(list.contains("> serve-80 "), "{list}");
    assert!(list.contains("  serve-81") && list.contains("stopped 0 s ago"), "{list}");
    for seconds in [200, 300] {
        overview.handle_names(Duration::from_secs(seconds), &["a".to_owned()]);
    }
    assert!(show(&mut screen, &overview, TERMINAL).contains("> a "), "the last line is left");
}
