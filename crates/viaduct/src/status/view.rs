//! Part of a page that fits a terminal: the header, and as much of the rest as there is room
//! for.

use super::keys::Key;

const HELP: &str = "\
up, down, j, k     a line
PgUp, PgDn, space  a page
Home, End, g, G    the beginning, the end
d                  details of each peer, or one line each
?                  this help, or back
q, Esc, Ctrl-C     quit
";

/// Scroll position and mode of the display.
#[derive(Debug, Default)]
pub(super) struct View {
    offset: usize,
    help: bool,
    /// True to show all details of each peer.
    pub(super) details: bool,
}

impl View {
    /// Handles a key, with `rows` lines on the screen. Returns true if the key quits.
    pub(super) fn press(&mut self, key: Key, rows: usize) -> bool {
        let page = rows.saturating_sub(3).max(1);
        match key {
            Key::Quit => return true,
            Key::Up => self.offset = self.offset.saturating_sub(1),
            Key::Down => self.offset = self.offset.saturating_add(1),
            Key::PageUp => self.offset = self.offset.saturating_sub(page),
            Key::PageDown => self.offset = self.offset.saturating_add(page),
            Key::Home => self.offset = 0,
            Key::End => self.offset = usize::MAX,
            Key::Help => self.help = !self.help,
            Key::Details => (self.details, self.offset) = (!self.details, 0),
            Key::Other => {}
        }
        false
    }

    /// Visible part of `page` on a screen of `rows` lines. The first `header` lines are fixed.
    pub(super) fn show(&mut self, page: &str, header: usize, rows: usize) -> String {
        let lines: Vec<&str> =
            if self.help { HELP.lines().collect() } else { page.lines().collect() };
        let header = if self.help { 0 } else { header.min(lines.len()) };
        // The last line lists the keys.
        let room = rows.saturating_sub(header + 1).max(1);
        let body = &lines[header..];
        self.offset = self.offset.min(body.len().saturating_sub(room));
        let shown = body.iter().skip(self.offset).take(room);
        let more = body.len() - self.offset.min(body.len());
        let below = more.saturating_sub(room);
        let place = match (self.offset, below) {
            (0, 0) => String::new(),
            (above, below) => format!("  {above} lines above, {below} below"),
        };
        let all: Vec<&str> = lines[..header].iter().chain(shown).copied().collect();
        format!("{}\nq quits, ? lists keys{place}\n", all.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(lines: usize) -> String {
        let peers: Vec<String> = (0..lines).map(|n| format!("peer {n}")).collect();
        format!("site a\n{}\n", peers.join("\n"))
    }

    #[test]
    fn the_header_stays_and_the_rest_scrolls() {
        let (mut view, page) = (View::default(), page(100));
        let top = view.show(&page, 1, 24);
        assert_eq!(top.lines().count(), 24);
        assert!(top.starts_with("site a\npeer 0\n") && top.contains("78 below"), "{top}");
        assert!(!view.press(Key::Down, 24) && !view.press(Key::PageDown, 24));
        let next = view.show(&page, 1, 24);
        assert!(next.starts_with("site a\npeer 22\n") && next.contains("22 lines above"), "{next}");
        view.press(Key::End, 24);
        let end = view.show(&page, 1, 24);
        assert!(end.starts_with("site a\npeer 78\n") && end.contains("peer 99\n"), "{end}");
        view.press(Key::Up, 24);
        assert!(view.show(&page, 1, 24).starts_with("site a\npeer 77\n"));
        assert!(view.press(Key::Quit, 24));
    }

    #[test]
    fn keys_are_listed_and_what_fits_does_not_scroll() {
        let (mut view, page) = (View::default(), page(2));
        view.press(Key::Down, 24);
        assert_eq!(view.show(&page, 1, 24), "site a\npeer 0\npeer 1\nq quits, ? lists keys\n");
        view.press(Key::Help, 24);
        assert!(view.show(&page, 1, 24).contains("PgUp"));
        view.press(Key::Help, 24);
        assert!(view.show(&page, 1, 3).starts_with("site a\n"));
    }
}
