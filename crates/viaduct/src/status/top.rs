//! `viaduct top`: redraws the page each second, with the rates of that second.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::page::Ink;
use super::source::{Seen, Source};
use super::terminal::{Terminal, rows};
use super::view::View;

const EVERY: Duration = Duration::from_secs(1);

/// Draws the page until a key ends it. A service that is restarted meanwhile is shown again when
/// it answers.
pub fn run(source: &Source, ink: Ink) -> Result<()> {
    let mut before: Option<Seen> = Some(source.read()?);
    let mut now: Option<Seen> = None;
    let terminal = Terminal::take()?;
    let mut view = View::default();
    loop {
        let trouble = match source.read() {
            Ok(read) => {
                before = now.replace(read).or(before);
                None
            }
            Err(error) => {
                (before, now) = (None, None);
                Some(format!("{error:#}\n"))
            }
        };
        let until = Instant::now() + EVERY;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let (page, header) = match &now {
                Some(now) if view.details() => (now.page(before.as_ref(), ink), 1),
                Some(now) => now.brief(before.as_ref(), ink),
                None => (trouble.clone().unwrap_or_default(), 0),
            };
            terminal.draw(&view.show(&page, header, rows() - 1))?;
            if terminal.keys(left)?.into_iter().any(|key| view.press(key, rows())) {
                return Ok(());
            }
        }
    }
}
