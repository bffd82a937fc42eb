//! Writing to standard output and standard error. A closed pipe, as with `head`, is not an error.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Result;

/// Prints a line, formatted as by `println!`. Returns the result of [`print()`].
macro_rules! print_line {
    ($($argument:tt)*) => { $crate::stdout::print(&format!("{}\n", format_args!($($argument)*))) };
}
pub(crate) use print_line;

/// Prints a message to standard error. Unlike `eprintln!`, does not panic if that is closed.
pub fn print_error(message: &str) {
    let _ = writeln!(io::stderr(), "viaduct: {message}");
}

/// Prints `text`.
///
/// # Errors
/// Writing fails for a reason other than a closed pipe.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
