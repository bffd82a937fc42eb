//! Screen of `viaduct top`: the effects of keys, and the text for a terminal of any size.
//!
//! ```text
//!   services ──Enter──▶ service: its peers, one line each ──Enter──▶ peer: all its counters
//!            ◀──Esc───          d: all its counters        ◀──Esc───
//! ```

use std::time::Duration;

use super::client::ServiceStatus;
use super::colours::Colours;
use super::gateway_page::GatewayPage;
use super::keys::Key;
use super::list;
use super::overview::{Overview, Service};

const HELP: &str = "\
up, down, j, k      a line
PgUp, PgDn, space   a page
Home, End, g, G     the beginning, the end
Enter, right, l     open the selected service or peer
Esc, left           back to the list
d                   all counters of a gateway, or one line per peer
?                   this help, or back
q, Ctrl-C           quit

out, in, new/s, lost, recovered and overhead are of the last second; rate and loss draw the last
two minutes: a full cell is the greatest value, or for loss at least 1 %. recovered: share of lost
packets; overhead: bytes of repairs / bytes of data.
";
/// Widths of a sparkline of two minutes. A cell is then 10, 5, 3 or 2 seconds.
const CELLS: [usize; 4] = [12, 24, 40, 60];
/// Minimum width of the terminal for each of [`CELLS`].
const WIDTHS: [usize; 4] = [0, 110, 140, 180];

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Width.
    pub columns: usize,
    /// Height.
    pub rows: usize,
}

/// Position in the lists of services and peers.
#[derive(Debug, Default)]
pub struct Screen {
    /// Name of the opened service, if any.
    service: Option<String>,
    /// Name of the opened peer, if any.
    peer: Option<String>,
    services: Cursor,
    peers: Cursor,
    /// First visible line of the page's body.
    offset: usize,
    help: bool,
    details: bool,
    /// True if only one service is watched, so that there is no list of services.
    is_single: bool,
}

/// Selected line of a list. The same name stays selected when other lines appear and disappear.
#[derive(Debug, Default)]
struct Cursor {
    name: String,
    at: usize,
}

/// Page before it is fitted to the terminal.
struct Page {
    /// Lines that do not scroll.
    header: Vec<String>,
    body: Vec<String>,
    /// True if the body is a list of which one line is selected.
    is_list: bool,
}

impl Cursor {
    /// Finds the selected name among `names` again. Returns its index.
    fn settle(&mut self, names: &[&str]) -> usize {
        let found = names.iter().position(|name| *name == self.name);
        self.select(names, found.unwrap_or(self.at))
    }

    fn select(&mut self, names: &[&str], at: usize) -> usize {
        self.at = at.min(names.len().saturating_sub(1));
        self.name = names.get(self.at).copied().unwrap_or_default().to_owned();
        self.at
    }
}

impl Screen {
    /// Screen that begins with the list of services, or with the only service.
    pub fn new(names: &[String]) -> Screen {
        let service = if let [only] = names { Some(only.clone()) } else { None };
        Screen { service, ..Screen::default() }
    }

    /// Screen of one service.
    pub fn single(name: &str) -> Screen {
        Screen { service: Some(name.to_owned()), is_single: true, ..Screen::default() }
    }

    /// Handles a key on a terminal of `rows` lines. Returns true if the key quits.
    pub fn press(&mut self, key: Key, overview: &Overview, rows: usize) -> bool {
        let page = rows.saturating_sub(4).max(1);
        match key {
            Key::Quit => return true,
            Key::Up => self.scroll(overview, |at| at.saturating_sub(1)),
            Key::Down => self.scroll(overview, |at| at.saturating_add(1)),
            Key::PageUp => self.scroll(overview, |at| at.saturating_sub(page)),
            Key::PageDown => self.scroll(overview, |at| at.saturating_add(page)),
            Key::Home => self.scroll(overview, |_| 0),
            Key::End => self.scroll(overview, |_| usize::MAX),
            Key::Help => (self.help, self.offset) = (!self.help, 0),
            Key::Open if !self.help => self.open(overview),
            Key::Back => self.back(),
            Key::Details => (self.details, self.offset) = (!self.details, 0),
            Key::Open | Key::Other => {}
        }
        false
    }

    /// Moves the selected line of a list, or the first line of a text.
    fn scroll(&mut self, overview: &Overview, to: impl Fn(usize) -> usize) {
        match self.list(overview).filter(|_| !self.help) {
            Some(names) => {
                let cursor =
                    if self.service.is_none() { &mut self.services } else { &mut self.peers };
                let at = cursor.settle(&names);
                cursor.select(&names, to(at));
            }
            None => self.offset = to(self.offset),
        }
    }

    /// Names of the lines of the list that is shown; `None` if a text is shown.
    fn list<'a>(&self, overview: &'a Overview) -> Option<Vec<&'a str>> {
        let Some(service) = &self.service else { return Some(overview.names()) };
        if self.details || self.peer.is_some() {
            return None;
        }
        let gateway = overview.service(service)?.now.as_ref()?.gateway()?;
        Some(gateway.counters.peers.iter().map(|(name, _)| name.as_str()).collect())
    }

    fn open(&mut self, overview: &Overview) {
        let Some(names) = self.list(overview).filter(|names| !names.is_empty()) else { return };
        self.offset = 0;
        if self.service.is_none() {
            self.services.settle(&names);
            (self.service, self.peers) = (Some(self.services.name.clone()), Cursor::default());
        } else {
            self.peers.settle(&names);
            self.peer = Some(self.peers.name.clone());
        }
    }

    fn back(&mut self) {
        self.offset = 0;
        if self.help {
            self.help = false;
        } else if self.peer.take().is_none()
            && !self.is_single
            && let Some(name) = self.service.take()
        {
            self.services.name = name;
        }
    }

    /// Text of the screen at `now`.
    pub fn show(
        &mut self,
        overview: &Overview,
        now: Duration,
        size: Size,
        colours: Colours,
    ) -> String {
        let page = self.page(overview, now, size.columns, colours);
        self.fit(page, size.rows, colours)
    }

    fn page(&mut self, overview: &Overview, now: Duration, width: usize, colours: Colours) -> Page {
        if self.help {
            return Page::text(HELP);
        }
        // Two columns mark the selected line.
        let inner = width.saturating_sub(2);
        let fits = WIDTHS.iter().rposition(|least| width >= *least).unwrap_or(0);
        let cells = CELLS[fits];
        let Some(name) = &self.service else {
            self.services.settle(&overview.names());
            return services(overview, list::rates(overview, now, cells, inner, colours), now);
        };
        let Some(service) = overview.service(name) else {
            return Page::text(&format!("{name}: not running; shown as soon as it starts"));
        };
        let Some(status) = &service.now else {
            let reason = service.trouble(now).unwrap_or("waiting for its status".to_owned());
            return Page::text(&format!("{name}: {}", colours.paint(31, reason)));
        };
        let Some(gateway) = status.gateway().filter(|_| !self.details) else {
            return Page::text(&status.page(service.before.as_ref(), colours));
        };
        let before = service.before.as_ref().and_then(ServiceStatus::gateway);
        let page = GatewayPage::new(gateway, before, colours);
        match &self.peer {
            Some(peer) => Page::text(&format!("{}{}", page.header(), page.peer(peer))),
            None => {
                let names: Vec<&str> =
                    gateway.counters.peers.iter().map(|(name, _)| name.as_str()).collect();
                self.peers.settle(&names);
                let lines = list::peers(gateway, service, cells, inner, colours);
                Page::list(page.header().lines().map(str::to_owned).collect(), lines)
            }
        }
    }

    /// Cuts the page to `rows` lines, of which the last one names the keys.
    fn fit(&mut self, page: Page, rows: usize, colours: Colours) -> String {
        let Page { header, mut body, is_list } = page;
        let room = rows.saturating_sub(header.len() + 1).max(1);
        let last = body.len().saturating_sub(room);
        if is_list {
            let at = if self.service.is_none() { self.services.at } else { self.peers.at };
            for (line, text) in body.iter_mut().enumerate() {
                *text = match line == at {
                    true => format!("{} {text}", colours.bold(">")),
                    false => format!("  {text}"),
                };
            }
            // The selected line stays visible.
            self.offset = self.offset.min(at).max((at + 1).saturating_sub(room));
        }
        self.offset = self.offset.min(last);
        let below = body.len() - self.offset;
        let place = match (self.offset, below.saturating_sub(room)) {
            (0, 0) => String::new(),
            (above, below) => format!("  {above} lines above, {below} below"),
        };
        let shown = body.into_iter().skip(self.offset).take(room);
        let lines: Vec<String> = header.into_iter().chain(shown).collect();
        let back = if self.is_at_top() { "" } else { "Esc goes back, " };
        format!("{}\n{back}q quits, ? lists keys{place}\n", lines.join("\n"))
    }

    fn is_at_top(&self) -> bool {
        let is_list = self.service.is_none() || (self.is_single && self.peer.is_none());
        is_list && !self.help
    }
}

impl Page {
    /// Text whose first line does not scroll.
    fn text(text: &str) -> Page {
        let mut lines = text.lines().map(str::to_owned);
        let header = lines.next().into_iter().collect();
        Page { header, body: lines.collect(), is_list: false }
    }

    /// List below `header`. The first of `lines` has the names of the columns.
    fn list(mut header: Vec<String>, lines: Vec<String>) -> Page {
        let mut lines = lines.into_iter();
        header.extend(lines.next().map(|names| format!("  {names}")));
        Page { header, body: lines.collect(), is_list: true }
    }
}

/// Page of all services.
fn services(overview: &Overview, lines: Vec<String>, now: Duration) -> Page {
    let all = overview.services().count();
    let is_in_trouble = |(_, service): &(&str, &Service)| service.trouble(now).is_some();
    let troubled = overview.services().filter(is_in_trouble).count();
    let title = match (&overview.trouble, all, troubled) {
        (Some(trouble), ..) => trouble.clone(),
        (None, 0, _) => "no service runs; shown as soon as one starts".to_owned(),
        (None, 1, 0) => "1 service, up".to_owned(),
        (None, all, 0) => format!("{all} services, all up"),
        (None, 1, _) => "1 service, with a problem".to_owned(),
        (None, all, some) => format!("{all} services, {some} of them with a problem"),
    };
    match all {
        0 => Page::text(&title),
        _ => Page::list(vec![title], lines),
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
