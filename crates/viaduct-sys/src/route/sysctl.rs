//! Kernel settings that are changed and later restored.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A setting with its earlier and its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctl {
    /// Path below `/proc/sys`, with slashes: `net/ipv4/conf/eth0/rp_filter`.
    pub name: String,
    /// Earlier value.
    pub before: String,
    /// New value.
    pub after: String,
}

/// Errors of reading or writing a setting.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the kernel setting {name:?}")]
pub struct SysctlError {
    /// `read` or `change`.
    pub action: &'static str,
    /// The setting.
    pub name: String,
    /// The kernel's error.
    pub source: io::Error,
}

impl Sysctl {
    /// Reads the setting's value in the calling thread's network namespace. Changes nothing.
    /// Errors: there is no such setting, or the name is invalid.
    pub fn plan(name: &str, value: &str) -> Result<Sysctl, SysctlError> {
        let failed = |source| SysctlError { action: "read", name: name.to_owned(), source };
        let before = fs::read_to_string(path(name).map_err(failed)?).map_err(failed)?;
        let (before, after) = (before.trim_end().to_owned(), value.to_owned());
        Ok(Sysctl { name: name.to_owned(), before, after })
    }

    /// Writes the new value. Errors: the kernel refuses the value, or denies access.
    pub fn apply(&self) -> Result<(), SysctlError> {
        self.write(&self.after)
    }

    /// Restores the earlier value. May be called repeatedly. A setting that has disappeared with
    /// its interface is not an error. Errors: the kernel denies access.
    pub fn undo(&self) -> Result<(), SysctlError> {
        match self.write(&self.before) {
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn write(&self, value: &str) -> Result<(), SysctlError> {
        let write = path(&self.name).and_then(|path| fs::write(path, value));
        write.map_err(|source| SysctlError { action: "change", name: self.name.clone(), source })
    }
}

fn path(name: &str) -> io::Result<PathBuf> {
    if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a path below /proc/sys is expected",
        ));
    }
    Ok(PathBuf::from("/proc/sys").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_proc_sys() {
        for name in ["../../etc/passwd", "/etc/passwd", "net//ipv4", ""] {
            assert!(Sysctl::plan(name, "1").is_err(), "{name}");
        }
        let known = Sysctl::plan("kernel/ostype", "x").unwrap();
        assert_eq!(known.before, "Linux");
    }
}
