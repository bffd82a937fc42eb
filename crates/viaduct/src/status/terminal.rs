//! Terminal that is redrawn repeatedly, and restored at the end.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::keys::{ESCAPE, Key};
use super::screen::Size;

/// Alternate screen, hidden cursor, and lines cut at the edge instead of wrapped, so that each
/// line is one row.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Reverts [`ENTER`].
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Moves to the top left corner, where a page begins.
const HOME: &str = "\x1b[H";
/// Erases the rest of a line, and begins the next one.
const WIPE_LINE: &str = "\x1b[K\r\n";
/// Erases the rest of the screen, after the last line.
const WIPE_BELOW: &str = "\x1b[J";
/// Time after an escape within which the remaining bytes of a key may arrive.
const ESCAPE_WAIT: Duration = Duration::from_millis(50);

/// Terminal in raw mode. Dropping it restores the terminal.
pub struct Terminal {
    before: Termios,
    /// Set by a termination signal.
    ended: Arc<AtomicBool>,
}

impl Terminal {
    /// Takes over the terminal: keys are read one by one, without echo, including Ctrl-C. From then
    /// on, termination signals only set [`Terminal::is_ended`].
    pub fn take() -> io::Result<Terminal> {
        let terminal = Terminal { before: tcgetattr(io::stdin())?, ended: Arc::default() };
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            // The first signal has no effect while the output is stopped; the second one ends the
            // program even then.
            flag::register_conditional_shutdown(signal, 1, terminal.ended.clone())?;
            flag::register(signal, terminal.ended.clone())?;
        }
        let mut raw = terminal.before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write(ENTER)?;
        Ok(terminal)
    }

    /// Returns whether a signal has asked the program to end.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Draws as much of `page` as fits.
    pub fn draw(&self, page: &str) -> io::Result<()> {
        let lines = page.lines().take(size().rows);
        let body: String = lines.flat_map(|line| [line, WIPE_LINE]).collect();
        write(&format!("{HOME}{body}{WIPE_BELOW}"))
    }

    /// Waits for keys, at most for `at_most`. Empty if none is pressed.
    pub(super) fn keys(&self, at_most: Duration) -> io::Result<Vec<Key>> {
        if !self.is_readable(at_most) {
            return Ok(Vec::new());
        }
        let mut bytes = [0; 64];
        let mut read = rustix::io::read(io::stdin(), &mut bytes)?;
        if read == 0 {
            // The terminal has gone.
            self.ended.store(true, Ordering::Relaxed);
        }
        // An arrow key sends several bytes, which may arrive separately on a slow line.
        if bytes[..read].ends_with(&[ESCAPE]) && read < bytes.len() && self.is_readable(ESCAPE_WAIT)
        {
            read += rustix::io::read(io::stdin(), &mut bytes[read..])?;
        }
        Ok(Key::parse_all(&bytes[..read]))
    }

    fn is_readable(&self, at_most: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        !matches!(poll(&mut fds, Some(&timeout)), Ok(0) | Err(rustix::io::Errno::INTR))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Size of the terminal, without its last row, in which nothing is drawn.
pub(super) fn size() -> Size {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    // The size is zero on terminals that do not report one, such as serial lines.
    let known = size.filter(|size| size.ws_row > 1 && size.ws_col > 0);
    let (rows, columns) = known.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    Size { rows: usize::from(rows) - 1, columns: columns.into() }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
