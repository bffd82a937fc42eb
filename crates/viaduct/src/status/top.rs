//! `viaduct top`: redraws the page each second, with the rates of that second.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::client::{ServiceStatus, StatusClient};
use super::colours::Colours;
use super::terminal::{Terminal, rows};
use super::view::View;

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Redraws the page until a key quits. After a restart, the service is shown as soon as it
/// answers.
pub fn run(client: &StatusClient, colours: Colours) -> Result<()> {
    let mut before: Option<ServiceStatus> = Some(client.read()?);
    let mut now: Option<ServiceStatus> = None;
    let terminal = Terminal::take()?;
    let mut view = View::default();
    loop {
        let trouble = match client.read() {
            Ok(read) => {
                before = now.replace(read).or(before);
                None
            }
            Err(error) => {
                (before, now) = (None, None);
                Some(format!("{error:#}\n"))
            }
        };
        let until = Instant::now() + REFRESH_INTERVAL;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let (page, header) = match &now {
                Some(now) if view.details => (now.page(before.as_ref(), colours), 1),
                Some(now) => now.brief(before.as_ref(), colours),
                None => (trouble.clone().unwrap_or_default(), 0),
            };
            terminal.draw(&view.show(&page, header, rows() - 1))?;
            if terminal.keys(left)?.into_iter().any(|key| view.press(key, rows())) {
                return Ok(());
            }
        }
    }
}
