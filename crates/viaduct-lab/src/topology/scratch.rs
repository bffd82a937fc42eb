//! Temporary directory for the files of programs, removed when its value is dropped.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Name prefix of temporary objects of the lab; the lab's process ID and a number follow.
pub(crate) const PREFIX: &str = "viaduct-lab-";

/// Directory of this process below the system's directory for temporary files.
///
/// The directory's name contains the process ID; directories left by a killed lab are removed
/// when another lab creates one.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory that others may read (some servers read as user `nobody`).
    pub fn new() -> io::Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::temp_dir();
        for stale in left_behind(&base) {
            let _ = fs::remove_dir_all(stale);
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{PREFIX}{}-{count}", std::process::id()));
        // `create_dir_all` would accept an existing directory that belongs to another process.
        fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into the directory and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, content)?;
        Ok(path)
    }

    /// Writes a file that only its owner can read.
    pub fn write_secret(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.write(name, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path)
    }

    /// Writes an executable file.
    pub fn write_script(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.write(name, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A later lab removes the directory if this fails.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the directories of labs that no longer run.
pub(crate) fn left_behind(base: &Path) -> Vec<PathBuf> {
    let is_stale = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        pid.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    };
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_and_stale_directories_are_removed() {
        // Process ID above the kernel's maximum, so that no process has it.
        let stale = std::env::temp_dir().join(format!("{PREFIX}99999999-0"));
        fs::create_dir_all(stale.join("inner")).unwrap();
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        scratch.write("file", "text").unwrap();
        assert!(!stale.exists(), "left by a dead lab");
        assert!(path.join("file").exists());
        drop(scratch);
        assert!(!path.exists());
    }
}
