//! Results on disk: one file per experiment in one directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Outcome;

/// Failure to write or read a result.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused an operation.
    #[error("{path}: cannot {what}", path = path.display())]
    Io {
        /// Affected file or directory.
        path: PathBuf,
        /// Attempted operation, as in "write the result".
        what: &'static str,
        /// Error of the file system.
        source: io::Error,
    },
    /// The file is not a result.
    #[error("{path}: not a result of `viaduct lab run`", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
}

/// Writes `outcome` into `dir`, which is created if it is missing; the file of `maelstrom/burst` is
/// `maelstrom-burst.json`. Returns the path of the file.
pub fn save(dir: &Path, outcome: &Outcome) -> Result<PathBuf, StoreError> {
    fs::create_dir_all(dir).map_err(|e| refused(dir, "create the directory", e))?;
    let path = dir.join(format!("{}.json", outcome.experiment.replace('/', "-")));
    save_as(&path, outcome)?;
    Ok(path)
}

/// Writes `outcome` to `path` atomically: a partial file never appears there.
pub fn save_as(path: &Path, outcome: &Outcome) -> Result<(), StoreError> {
    let json = |source| StoreError::Json { path: path.into(), source };
    let text = serde_json::to_string_pretty(outcome).map_err(json)? + "\n";
    // A pipe or a device such as /dev/stdout cannot be replaced by a rename.
    if path.exists() && !path.is_file() {
        return fs::write(path, text).map_err(|e| refused(path, "write the result", e));
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .map_err(|e| refused(path, "write the result", e))
}

/// Reads every result in `dir`, ordered by file name. Fails if the directory cannot be read or a
/// `.json` file in it is not a result.
pub fn load_all(dir: &Path) -> Result<Vec<Outcome>, StoreError> {
    let entries = fs::read_dir(dir).map_err(|e| refused(dir, "read the results", e))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| load(path)).collect()
}

fn load(path: &Path) -> Result<Outcome, StoreError> {
    let text = fs::read(path).map_err(|e| refused(path, "read the result", e))?;
    serde_json::from_slice(&text).map_err(|source| StoreError::Json { path: path.into(), source })
}

fn refused(path: &Path, what: &'static str, source: io::Error) -> StoreError {
    StoreError::Io { path: path.into(), what, source }
}
