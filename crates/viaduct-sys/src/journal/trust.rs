//! Checks of a journal's origin: its changes are undone with all privileges of this process, so no
//! other user may have written it.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::JournalError;

/// Max bytes of a journal: some thousands of changes.
const MAX_BYTES: u64 = 16 << 20;
/// Write access for group and others.
const WRITABLE: u32 = 0o022;
/// Mode bit of a directory in which users can delete only their own files.
const STICKY: u32 = 0o1000;

/// Reads the journal at `path`; `None` if there is none. Errors: another user could have written
/// the journal, or it cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, JournalError> {
    let failed = |source| JournalError::File { action: "read", path: path.to_owned(), source };
    let untrusted = |why| JournalError::Untrusted { path: path.to_owned(), why };
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        match fs::metadata(directory) {
            Ok(found) => check_directory(&found, own()).map_err(untrusted)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
    }
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(untrusted("it is a symbolic link"));
        }
        Err(error) => return Err(failed(error)),
    };
    check_file(&file.metadata().map_err(failed)?, own()).map_err(untrusted)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    match u64::try_from(bytes.len()) {
        Ok(0..=MAX_BYTES) => Ok(Some(bytes)),
        _ => Err(untrusted("it is larger than any journal")),
    }
}

/// Opens a file for reading. A symbolic link is not followed, and opening a pipe does not block.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Reads a file in a directory that may belong to another user. Errors: the file is a link, is not
/// a regular file, or has more than `max` bytes; or it cannot be read.
pub fn read_unlinked(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let file = open(path)?;
    let found = file.metadata()?;
    // An open file that has just been replaced has no name left.
    if !found.is_file() || found.nlink() > 1 {
        return Err(invalid("it is a link, or not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(invalid("it is too large"));
    }
    Ok(bytes)
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn check_directory(found: &Metadata, own: u32) -> Result<(), &'static str> {
    if ![own, 0].contains(&found.uid()) {
        return Err("its directory belongs to another user");
    }
    match found.mode() & (WRITABLE | STICKY) {
        0 | STICKY.. => Ok(()),
        _ => Err("other users may write to its directory (chmod go-w)"),
    }
}

fn check_file(found: &Metadata, own: u32) -> Result<(), &'static str> {
    if !found.is_file() {
        return Err("it is not a regular file");
    }
    if ![own, 0].contains(&found.uid()) {
        return Err("it belongs to another user");
    }
    if found.mode() & WRITABLE != 0 {
        return Err("other users may write to it (chmod go-w)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn refusal(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn a_journal_that_another_user_could_write_is_refused() {
        let place = std::env::temp_dir().join(format!("viaduct-trust-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let path = place.join("journal");
        mode(&place, 0o755);
        assert!(read(&path).unwrap().is_none());
        fs::write(&path, "{}").unwrap();
        mode(&path, 0o644);
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"{}"[..]));
        mode(&path, 0o666);
        assert!(refusal(&path).contains("other users may write to it"));
        mode(&path, 0o600);
        symlink(&path, place.join("link")).unwrap();
        assert!(refusal(&place.join("link")).contains("symbolic link"));
        assert!(refusal(&place.join(".")).contains("not a regular file"));
        mode(&place, 0o777);
        assert!(refusal(&path).contains("may write to its directory"));
        // As in /tmp: other users cannot replace the file.
        mode(&place, 0o1777);
        assert!(read(&path).unwrap().is_some());
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn only_a_regular_file_with_one_name_is_read() {
        let place = std::env::temp_dir().join(format!("viaduct-unlinked-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let (path, link) = (place.join("list"), place.join("link"));
        fs::write(&path, "text").unwrap();
        assert_eq!(read_unlinked(&path, 4).unwrap(), b"text");
        assert!(read_unlinked(&path, 3).is_err() && read_unlinked(&place, 4).is_err());
        symlink(&path, &link).unwrap();
        assert!(read_unlinked(&link, 4).is_err());
        fs::remove_file(&link).unwrap();
        fs::hard_link(&path, &link).unwrap();
        assert!(read_unlinked(&path, 4).is_err());
        let mode = rustix::fs::Mode::RUSR;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, place.join("pipe"), fifo, mode, 0).unwrap();
        assert!(read_unlinked(&place.join("pipe"), 4).is_err());
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn another_users_file_and_directory_are_refused() {
        let found = fs::metadata(std::env::current_exe().unwrap()).unwrap();
        if found.uid() != 0 {
            let stranger = found.uid() + 1;
            assert!(check_file(&found, stranger).is_err());
        }
        let place = std::env::temp_dir().join(format!("viaduct-trust-of-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let path = place.join("journal");
        fs::write(&path, "{}").unwrap();
        if rustix::process::geteuid().is_root() {
            let other = Some(65_534);
            std::os::unix::fs::chown(&path, other, None).unwrap();
            assert!(refusal(&path).contains("it belongs to another user"));
            std::os::unix::fs::chown(&place, other, None).unwrap();
            assert!(refusal(&path).contains("its directory belongs"));
        }
        fs::remove_dir_all(&place).unwrap();
    }
}
