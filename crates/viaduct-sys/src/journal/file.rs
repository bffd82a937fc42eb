//! The journal as a file.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::JournalError;
use super::change::Change;
use super::owner::Owner;
use super::trust;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    pub(super) owner: Owner,
    pub(super) changes: Vec<Change>,
    /// Changes of an earlier owner that are not undone yet, because another process has locked
    /// their nftables tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) disputed: Vec<Change>,
}

pub(super) fn read(path: &Path) -> Result<Option<Journal>, JournalError> {
    let Some(bytes) = trust::read(path)? else { return Ok(None) };
    parse(&bytes)
        .map(Some)
        .map_err(|source| JournalError::Corrupt { path: path.to_owned(), source })
}

/// Parses the journal in `bytes`.
pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<Journal> {
    serde_json::from_slice(bytes)
}

/// Number of the next temporary file of this process.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Suffix of the names of temporary files.
const TEMPORARY: &str = ".new";

/// Removes temporary files of `path` that earlier owners have left behind. The directory must be
/// locked, and no other owner may be alive.
pub(super) fn remove_temporary(path: &Path) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return };
    let Ok(entries) = fs::read_dir(directory) else { return };
    let name = name.as_encoded_bytes();
    for entry in entries.flatten() {
        let other = entry.file_name();
        let other = other.as_encoded_bytes();
        let rest = other.strip_prefix(name);
        if rest.is_some_and(|rest| rest.ends_with(TEMPORARY.as_bytes())) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Replaces a file atomically: after a power failure the file has either the old or the new bytes.
/// Each writer has a temporary file of its own. Another user may own the directory: links are not
/// followed. All users can read the file, whatever the umask is.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A service may run with a umask that lets its group write, so that the group can use its
    // sockets. The group must not be able to write this file: the next start would not trust it.
    replace(path, bytes, 0o644)
}

/// Replaces a file as [`replace_file`] does; only its owner can read it.
pub fn replace_secret_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o600)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}-{number}{TEMPORARY}", std::process::id()));
    if let Err(error) = write_and_rename(Path::new(&new), path, bytes, mode) {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

fn write_and_rename(new: &Path, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // A killed process with this process ID may have left the file.
    let _ = fs::remove_file(new);
    let mut file = File::options().write(true).create_new(true).mode(mode).open(new)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_in_place_of_the_temporary_file_is_not_followed() {
        let dir = std::env::temp_dir().join(format!("viaduct-replaced-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (path, new, other) = (dir.join("list"), dir.join("list.1-0.new"), dir.join("other"));
        fs::write(&other, "other").unwrap();
        symlink(&other, &new).unwrap();
        write_and_rename(&new, &path, b"text", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
        // The usual umask would remove the right of others to write.
        write_and_rename(&new, &path, b"text", 0o666).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        fs::remove_dir_all(&dir).unwrap();
    }
}
