//! Rows of a page, and colours on a terminal.

use std::fmt::{self, Display, Formatter};

use super::numbers::thousands;

/// True to use colours.
#[derive(Clone, Copy, Debug)]
pub struct Colours(pub bool);

impl Colours {
    pub(super) fn paint(self, code: u8, text: impl Display) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    pub(super) fn bold(self, text: impl Display) -> String {
        self.paint(1, text)
    }

    pub(super) fn green(self, text: impl Display) -> String {
        self.paint(32, text)
    }

    /// Formats a count that should be zero: red if it is not.
    pub(super) fn alarm(self, count: u64) -> String {
        let text = thousands(count);
        if count > 0 { self.paint(31, text) } else { text }
    }
}

/// Writes a row: its name and its text.
pub(super) fn row(f: &mut Formatter<'_>, name: &str, what: impl Display) -> fmt::Result {
    writeln!(f, "  {name:<9} {what}")
}
