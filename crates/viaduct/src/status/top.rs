//! `viaduct top`: the page again each second, with what happened in that second.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::page::Ink;
use super::source::{Seen, Source};
use super::terminal::Terminal;

const EVERY: Duration = Duration::from_secs(1);
const CTRL_C: u8 = 3;
const ESCAPE: u8 = 27;

/// Draws until a key ends it. One that is restarted meanwhile is shown again when it
/// answers.
pub fn run(source: &Source, ink: Ink) -> Result<()> {
    let mut before: Option<Seen> = Some(source.read()?);
    let terminal = Terminal::take()?;
    loop {
        let page = match source.read() {
            Ok(now) => {
                let page = now.page(before.as_ref(), ink);
                before = Some(now);
                page
            }
            Err(error) => {
                before = None;
                format!("{error:#}\n")
            }
        };
        terminal.draw(&format!("{page}\nq quits\n"))?;
        if wait(&terminal)? {
            return Ok(());
        }
    }
}

/// Waits for the next second; whether a key wants the end.
fn wait(terminal: &Terminal) -> Result<bool> {
    let until = Instant::now() + EVERY;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if matches!(terminal.key(left)?, Some(b'q' | b'Q' | CTRL_C | ESCAPE)) {
            return Ok(true);
        }
    }
    Ok(false)
}
