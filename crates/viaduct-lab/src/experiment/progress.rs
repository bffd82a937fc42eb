//! Progress line on stderr: rewritten in place on a terminal; one line per step if stderr is not
//! a terminal or `TERM` is `dumb`.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Progress display of one experiment.
#[derive(Debug)]
pub(super) struct Progress {
    name: String,
    total: usize,
    done: usize,
    line: Option<Line>,
}

impl Progress {
    /// Creates the display for the experiment `name`; `quiet` shows nothing.
    pub(super) fn new(name: &str, quiet: bool) -> Progress {
        Progress { name: name.into(), total: 0, done: 0, line: (!quiet).then(Line::new) }
    }

    /// Sets the number of steps; called again for each repeat.
    pub(super) fn expect(&mut self, total: usize) {
        (self.total, self.done) = (total, 0);
    }

    /// Begins the next step.
    pub(super) fn step(&mut self, what: &str) {
        self.done += 1;
        let of = if self.total == 0 { String::new() } else { format!("/{}", self.total) };
        if let Some(line) = &mut self.line {
            line.show(format!("{} [{}{of}] {what}", self.name, self.done));
        }
    }

    /// Clears the line.
    pub(super) fn end(&mut self) {
        self.line = None;
    }
}

/// Line redrawn by a thread, with the elapsed time of the step.
#[derive(Debug)]
struct Line {
    texts: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Line {
    fn new() -> Line {
        if !std::io::stderr().is_terminal() || std::env::var_os("TERM").is_some_and(|t| t == "dumb")
        {
            return Line { texts: None, thread: None };
        }
        let (texts, incoming) = channel::<String>();
        let thread = thread::spawn(move || {
            let (mut text, mut since) = (String::new(), Instant::now());
            loop {
                match incoming.recv_timeout(Duration::from_millis(500)) {
                    Ok(new) => (text, since) = (new, Instant::now()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                draw(&format!("{text}  {} s", since.elapsed().as_secs()));
            }
            draw("");
        });
        Line { texts: Some(texts), thread: Some(thread) }
    }

    fn show(&self, text: String) {
        match &self.texts {
            // The send cannot fail: the thread receives until `texts` is dropped.
            Some(texts) => drop(texts.send(text)),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.texts = None;
        if let Some(thread) = self.thread.take() {
            // An error would only mean that the thread panicked while drawing.
            let _ = thread.join();
        }
    }
}

/// Replaces the terminal's line; dimmed unless `NO_COLOR` is set.
fn draw(text: &str) {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let (on, off) = if plain { ("", "") } else { ("\x1b[2m", "\x1b[0m") };
    // A failed write of a progress line is ignored.
    let _ = write!(std::io::stderr(), "\r\x1b[K{on}{text}{off}");
}
