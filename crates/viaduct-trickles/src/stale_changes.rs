//! Cleanup of rules that killed clients have left behind.
//!
//! The journal of a server is named after its port, and the journal of a proxy after the proxy, so
//! servers and proxies find their journals at their next start. The journal of a run, of a C
//! program, or of a proxy that has taken over from another process is named after the process ID,
//! so later processes use other names. Therefore the next process of these kinds reverts the
//! changes of processes that no longer exist.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use tracing::debug;
use viaduct_sys::journal::Changes;

/// Names of these journals: the parts before and after the process ID.
const NAMES: [(&str, &str); 3] = [("run_", "_trickles"), ("takeover_", "_"), ("viaduct_c_", "_")];

/// Reverts the changes of clients that no longer exist, by their journals in `run_dir`.
pub fn revert_stale_changes(run_dir: &Path) {
    let Ok(entries) = fs::read_dir(run_dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let gone = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
        if owner(path.file_name()).is_some_and(gone)
            && let Err(error) = Changes::open(&path)
        {
            debug!("cannot remove the rules of a killed client: {error}");
        }
    }
}

/// Process ID in the name of a journal.
fn owner(name: Option<&OsStr>) -> Option<u32> {
    let name = name?.to_str()?.strip_suffix(".json")?;
    NAMES.iter().find_map(|(before, after)| {
        let rest = name.strip_prefix(before)?;
        let (pid, rest) = rest.split_at(rest.find('_')?);
        rest.starts_with(after).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_named_by_their_process() {
        let owner = |name| owner(Some(OsStr::new(name)));
        assert_eq!(owner("run_71_trickles_auto.json"), Some(71));
        assert_eq!(owner("viaduct_c_703_0.json"), Some(703));
        assert_eq!(owner("takeover_12_1_trickles_udp.json"), Some(12));
        let others = [
            "run_71_trickles_auto",
            "run_x_trickles_auto.json",
            "proxy_7_trickles.json",
            "run_71_count.json",
            "viaduct_c_.json",
        ];
        assert_eq!(others.map(owner), [None; 5]);
    }
}
