//! Clocks of handshakes. The file `<site>.clocks` in the service's state directory keeps them
//! across a restart, so that the restarted gateway rejects replays of earlier initiations. Each
//! line has a peer's public key, and the times of the latest initiations received and sent, in
//! nanoseconds since 1970.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::warn;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::repair::{Clocks, MAX_PEERS};
use viaduct_sys::journal::replace_file;

/// Minimum number of seconds between writes if only the clocks of sent initiations have changed:
/// these clocks rise with each attempt.
const SENT_EVERY: u32 = 60;
/// Margin added to a sent clock that is ahead of the machine's clock, which must have been set
/// back. The margin exceeds the possible rise of the sent clock between its last write and the
/// restart.
const SENT_MARGIN: u64 = 2 * SENT_EVERY as u64 * 1_000_000_000;
/// Maximum length of the file in bytes.
const MAX_FILE: u64 = MAX_PEERS as u64 * 2 * 128;

/// File of clocks, and its last written content.
#[derive(Debug)]
pub struct ClockFile {
    path: PathBuf,
    written: HashMap<PublicKey, Clocks>,
    /// Calls of [`ClockFile::update`] since the last write.
    calls: u32,
    is_failing: bool,
}

impl ClockFile {
    /// Creates the state for the file `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> ClockFile {
        ClockFile { path, written: HashMap::new(), calls: 0, is_failing: false }
    }

    /// Reads `path`. Invalid lines are skipped.
    pub fn read(path: &Path) -> HashMap<PublicKey, Clocks> {
        let is_small = fs::metadata(path).is_ok_and(|of| of.is_file() && of.len() <= MAX_FILE);
        let text =
            if is_small { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        text.lines().filter_map(|text| line(text, now)).collect()
    }

    /// Writes `clocks` if they have risen. Must be called once a second.
    pub fn update(&mut self, clocks: &HashMap<PublicKey, Clocks>) {
        self.calls += 1;
        let heard = |key: &PublicKey, of: &Clocks| {
            self.written.get(key).is_none_or(|written| written.heard != of.heard)
        };
        let is_due = clocks.iter().any(|(key, of)| heard(key, of)) || self.calls >= SENT_EVERY;
        if is_due && *clocks != self.written {
            self.write(clocks);
        }
    }

    /// Writes `clocks`, if there are any. Must also be called at shutdown: [`ClockFile::update`]
    /// delays some writes.
    pub fn write(&mut self, clocks: &HashMap<PublicKey, Clocks>) {
        // The packet thread has not reported any clocks yet.
        if clocks.is_empty() && self.written.is_empty() {
            return;
        }
        let mut text = String::new();
        for (key, of) in clocks {
            let _ = writeln!(text, "{key} {} {}", of.heard, of.sent);
        }
        let done = replace_file(&self.path, text.as_bytes());
        if let Err(error) = &done
            && !self.is_failing
        {
            warn!("cannot write {}: {error}", self.path.display());
        }
        self.is_failing = done.is_err();
        self.calls = 0;
        if done.is_ok() {
            self.written.clone_from(clocks);
        }
    }
}

fn line(text: &str, now: u128) -> Option<(PublicKey, Clocks)> {
    let mut words = text.split_whitespace();
    let key = words.next()?.parse().ok()?;
    let (heard, sent): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let margin = if u128::from(sent) > now { SENT_MARGIN } else { 0 };
    Some((key, Clocks { heard, sent: sent.saturating_add(margin) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_proto::keys::SecretKey;

    #[test]
    fn clocks_are_read_back_and_unset_ones_are_left_out() {
        let directory = std::env::temp_dir().join(format!("viaduct-clocks-{}", std::process::id()));
        let path = directory.join("a.clocks");
        assert!(ClockFile::read(&path).is_empty(), "there is no file yet");
        let clocks = HashMap::from([(
            SecretKey::from_bytes([3; 32]).public(),
            Clocks { heard: 1_700_000_000_000_000_000, sent: 7 },
        )]);
        let mut file = ClockFile::new(path.clone());
        file.update(&clocks);
        assert_eq!(ClockFile::read(&path), clocks);
        let noise = fs::read_to_string(&path).unwrap() + "nonsense\n\nab 1 2\n";
        fs::write(&path, noise).unwrap();
        assert_eq!(ClockFile::read(&path), clocks);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_clock_ahead_of_the_machines_gets_a_margin() {
        let key = SecretKey::from_bytes([3; 32]).public();
        let sent = |now| line(&format!("{key} 1 500"), now).unwrap().1.sent;
        assert_eq!((sent(501), sent(499)), (500, 500 + SENT_MARGIN));
    }
}
