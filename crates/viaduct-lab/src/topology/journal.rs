//! Every command that was run, so that a person can repeat by hand what the lab did.

use std::sync::{Arc, Mutex, PoisonError};

/// A list of commands; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    aloud: bool,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Journal {
    /// An empty journal that keeps to itself.
    pub fn new() -> Journal {
        Journal::default()
    }

    /// An empty journal that also prints each command to stderr as it is run (`--verbose`).
    pub fn aloud() -> Journal {
        Journal { aloud: true, ..Journal::default() }
    }

    /// Notes that `command` is run in `node`.
    pub fn note(&self, node: &str, command: &str) {
        let line = format!("[{node}] {command}");
        if self.aloud {
            eprintln!("{line}");
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// All lines so far, as in `[gwa] ip link set wan0 up`.
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
