//! Source of the root secrets: a file, or a key in etcd. From the root secrets the replicas of a
//! server derive the secret of each period.
//!
//! ```text
//!   FILE ── when it changes ──┐
//!                             ├─▶ root_secrets::parse ─▶ SharedRotation ─▶ threads of Trickles
//!   etcd ── every 2 s ────────┘         │ with etcd
//!                                       └─▶ copy in the run directory, for a start without etcd
//! ```
//!
//! Requests never wait for the source: while reads of the source fail, its last valid content stays
//! in force.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{info, warn};
use viaduct_sys::journal::{read_unlinked, replace_secret_file};
use viaduct_trickles::SharedRotation;

use super::status::ReplicasStatus;
use crate::etcd::{Etcd, MAX_ANSWER};
use crate::{key, root_secrets};

/// Interval at which a file is checked for changes.
const FILE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which etcd is queried.
const ETCD_INTERVAL: Duration = Duration::from_secs(2);

/// Source of the root secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// File.
    File(PathBuf),
    /// Key in etcd.
    Etcd(Etcd),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix("etcd://") {
            Some(rest) => rest.parse().map(Source::Etcd),
            None => Ok(Source::File(text.into())),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Etcd(etcd) => write!(f, "{etcd}"),
        }
    }
}

/// Secrets of the replicas, kept up to date with their source.
#[derive(Debug)]
pub struct Replicas {
    source: Source,
    /// Copy of etcd's content.
    copy: PathBuf,
    rotation: SharedRotation,
    /// Content in force, and the reason of the last read's failure, if it failed.
    state: RefCell<(String, Option<String>)>,
    /// Modification time and length of the file that was read.
    stamp: RefCell<Option<(SystemTime, u64)>>,
    reload: Notify,
}

impl Replicas {
    /// Reads the source. `copy` is the path of the copy of etcd's content, which is read if etcd
    /// does not answer. Errors: there is no valid content.
    pub async fn open(source: Source, copy: PathBuf) -> Result<Rc<Replicas>> {
        if let Source::File(path) = &source {
            key::warn_if_readable("replicas", path);
        }
        let stamp = RefCell::new(stamp(&source));
        let (text, fault) = match (read(&source).await, &source) {
            (Ok(text), _) => (text, None),
            (Err(error), Source::File(_)) => return Err(error),
            (Err(error), Source::Etcd(_)) => {
                // The directory may belong to another user.
                let read = read_unlinked(&copy, MAX_ANSWER).ok();
                let Some(text) = read.and_then(|bytes| String::from_utf8(bytes).ok()) else {
                    return Err(error.context("cannot read the secrets, and there is no copy"));
                };
                let fault = format!("cannot read {source} ({error:#}); its copy is used");
                warn!("{fault}");
                (text, Some(fault))
            }
        };
        let parsed = root_secrets::parse(&text).with_context(|| source.to_string())?;
        let rotation = SharedRotation::new(parsed);
        let state = RefCell::new((text, fault));
        let replicas = Replicas { source, copy, rotation, state, stamp, reload: Notify::new() };
        replicas.save_copy();
        Ok(Rc::new(replicas))
    }

    /// Secrets for the threads of Trickles.
    pub fn rotation(&self) -> SharedRotation {
        self.rotation.clone()
    }

    /// Makes [`Replicas::follow`] read the source now.
    pub fn reload(&self) {
        self.reload.notify_one();
    }

    /// State of the source.
    pub fn status(&self) -> ReplicasStatus {
        ReplicasStatus { source: self.source.to_string(), fault: self.state.borrow().1.clone() }
    }

    /// Keeps the secrets up to date with the source until the process ends.
    pub async fn follow(&self) {
        let interval = match &self.source {
            Source::File(_) => FILE_INTERVAL,
            Source::Etcd(_) => ETCD_INTERVAL,
        };
        loop {
            let is_asked = timeout(interval, self.reload.notified()).await.is_ok();
            let stamp = stamp(&self.source);
            // After a failed read the file is read again even if its stamp is unchanged: the cause
            // of the failure, such as the permissions, may have changed without a change of the
            // stamp.
            let has_failed = self.state.borrow().1.is_some();
            let is_due = is_asked || has_failed || stamp != *self.stamp.borrow();
            if matches!(self.source, Source::Etcd(_)) || is_due {
                *self.stamp.borrow_mut() = stamp;
                self.take(read(&self.source).await);
            }
        }
    }

    /// Puts new content in force. Logs the reason once if the content cannot be used.
    fn take(&self, read: Result<String>) {
        let (present, before) = self.state.borrow().clone();
        let taken = read.and_then(|text| {
            if self.rotation.replace(&root_secrets::parse(&text)?) {
                info!("the secrets of the replicas have changed in {}", self.source);
            }
            Ok(text)
        });
        let (text, fault) = match taken {
            Ok(text) => (text, None),
            Err(error) => (present.clone(), Some(format!("{}: {error:#}", self.source))),
        };
        match (&before, &fault) {
            (None, Some(fault)) => warn!("the current secrets stay in force: {fault}"),
            (Some(_), None) => info!("{} can be read again", self.source),
            _ => {}
        }
        let is_new = text != present;
        *self.state.borrow_mut() = (text, fault);
        if is_new {
            self.save_copy();
        }
    }

    /// Saves the content of etcd.
    fn save_copy(&self) {
        if let Source::Etcd(_) = self.source {
            let saved = replace_secret_file(&self.copy, self.state.borrow().0.as_bytes());
            if let Err(error) = saved {
                warn!("cannot write {}, the copy of the secrets: {error}", self.copy.display());
            }
        }
    }
}

async fn read(source: &Source) -> Result<String> {
    match source {
        Source::File(path) => {
            let path = key::accessible(path);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        }
        Source::Etcd(etcd) => etcd.read().await,
    }
}

fn stamp(source: &Source) -> Option<(SystemTime, u64)> {
    let Source::File(path) = source else { return None };
    let meta = fs::metadata(key::accessible(path)).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Path of the copy of etcd's content for the server `name`.
pub fn copy_path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.replicas.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(byte: u8) -> String {
        root_secrets::new_file("1h", [byte; 32], SystemTime::UNIX_EPOCH).unwrap()
    }

    #[tokio::test]
    async fn a_changed_file_is_read_and_invalid_content_is_ignored() {
        let dir = std::env::temp_dir().join(format!("viaduct-replicas-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("replicas.toml");
        let source: Source = file.to_str().unwrap().parse().unwrap();
        let opened = Replicas::open(source.clone(), dir.join("copy")).await;
        assert!(format!("{:#}", opened.unwrap_err()).contains("cannot read"));
        fs::write(&file, content(1)).unwrap();
        let replicas = Replicas::open(source, dir.join("copy")).await.unwrap();
        let text = || replicas.state.borrow().0.clone();
        let turn = || timeout(Duration::from_millis(50), replicas.follow());
        fs::write(&file, "period = 1").unwrap();
        replicas.reload();
        assert!(turn().await.is_err());
        assert_eq!(text(), content(1));
        let fault = replicas.status().fault.unwrap();
        assert!(fault.contains("line 1: "), "{fault}");
        fs::write(&file, content(2)).unwrap();
        replicas.reload();
        assert!(turn().await.is_err());
        assert_eq!((text(), replicas.status().fault), (content(2), None));
        assert!(!dir.join("copy").exists(), "a file needs no copy");
        // A failed read is repeated, even though the file's stamp does not change.
        let later = SystemTime::now() + Duration::from_secs(9);
        let touch = || fs::File::options().append(true).open(&file).unwrap().set_modified(later);
        fs::write(&file, content(3) + "?").unwrap();
        touch().unwrap();
        replicas.reload();
        assert!(turn().await.is_err());
        assert!(replicas.status().fault.is_some());
        let length = fs::metadata(&file).unwrap().len();
        fs::write(&file, content(3) + "\n").unwrap();
        touch().unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), length);
        assert!(timeout(2 * FILE_INTERVAL, replicas.follow()).await.is_err());
        assert_eq!((text(), replicas.status().fault), (content(3) + "\n", None));
        fs::remove_dir_all(&dir).unwrap();
    }
}
