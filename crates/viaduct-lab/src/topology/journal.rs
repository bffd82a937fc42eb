//! Journal of all commands that were run, so that a person can repeat them by hand.

use std::sync::{Arc, Mutex, PoisonError};

/// List of commands, shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    aloud: bool,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Journal {
    /// Creates an empty journal that prints nothing.
    pub fn new() -> Journal {
        Journal::default()
    }

    /// Creates an empty journal that also prints each command to stderr (`--verbose`).
    pub fn aloud() -> Journal {
        Journal { aloud: true, ..Journal::default() }
    }

    /// Records that `command` runs in `node`.
    pub fn note(&self, node: &str, command: &str) {
        let line = format!("[{node}] {command}");
        if self.aloud {
            eprintln!("{line}");
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Returns all lines so far, as in `[gwa] ip link set wan0 up`.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_write_into_one_list() {
        let journal = Journal::new();
        let clone = journal.clone();
        clone.note("a1", "ip link");
        clone.note("gwa", "true");
        assert_eq!(journal.lines(), ["[a1] ip link", "[gwa] true"]);
    }
}
