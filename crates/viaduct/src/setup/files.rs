//! The two files of a site: its config, and its secret key.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use viaduct_proto::keys::{PublicKey, SecretKey};
use viaduct_sys::random::random;

use super::draft::Draft;
use crate::gateway::config::Config;
use crate::key;

/// Paths of a site's files.
#[derive(Clone, Debug)]
pub struct Files {
    /// Config.
    pub config: PathBuf,
    /// Secret key, next to the config.
    pub key: PathBuf,
}

impl Files {
    /// Derives the key's path from that of the config of the site `name`.
    pub fn new(config: PathBuf, name: &str) -> Files {
        let key = config.with_file_name(format!("{name}.key"));
        Files { config, key }
    }

    /// Returns an error if the config exists.
    pub fn refuse_existing(&self) -> Result<()> {
        let config = self.config.display();
        ensure!(
            !self.config.exists(),
            "{config} already exists; not overwritten: --force overwrites it, `-c FILE` writes \
             another file; with --peer and --peer-key alone, a missing key is filled in"
        );
        Ok(())
    }

    /// Checks the config of `draft` with the gateway's parser, then writes it, and a secret key if
    /// the site has none yet. Returns the config with its public key, and the files written.
    ///
    /// # Errors
    /// The config is refused, or a file cannot be written. In that case nothing is written.
    pub fn write(&self, draft: &Draft) -> Result<(Config, PublicKey, Vec<PathBuf>)> {
        let is_new = !self.key.exists();
        let secret = if is_new { new_key()? } else { key::read(&self.key)? };
        // In place of a key that is not known yet, the parser gets a random one.
        let peer_key = match draft.peer_key {
            Some(key) => key,
            None => new_key()?.public(),
        };
        let key_file = self.key.file_name().unwrap_or_default().to_string_lossy();
        let checked = draft.file(&key_file, &peer_key.to_string());
        let config = Config::parse(&self.config, &checked, Some(&secret))?;
        let text = match draft.peer_key {
            Some(_) => checked,
            None => draft.file(&key_file, ""),
        };
        make_directory(&self.config)?;
        if is_new {
            key::write(&self.key, &secret)?;
        }
        if let Err(error) = replace(&self.config, &text) {
            if is_new {
                // The first error is the one to report.
                let _ = fs::remove_file(&self.key);
            }
            return Err(error);
        }
        let key = is_new.then(|| self.key.clone());
        let written = key.into_iter().chain([self.config.clone()]).collect();
        Ok((config, secret.public(), written))
    }
}

fn new_key() -> Result<SecretKey> {
    Ok(SecretKey::from_bytes(random()?))
}

fn make_directory(file: &Path) -> Result<()> {
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    let Some(directory) = directory.filter(|path| !path.exists()) else { return Ok(()) };
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<_> = directory.ancestors().take_while(is_missing).collect();
    let mut made = fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
    for path in missing {
        // The gateway's user has to reach the files, whatever the umask is.
        let set = |()| fs::set_permissions(path, Permissions::from_mode(0o755));
        made = made.and_then(set);
    }
    made.with_context(|| format!("cannot create {}", directory.display()))
}

/// Writes a config under another name, and renames it, so that readers see either the old file or
/// the new one. The new file gets the mode of the old one and, if possible, its owner. If there is
/// no old file, the new one is world-readable, because a config contains no secret and the
/// gateway's user has to read it.
///
/// # Errors
/// The file cannot be written; the old one is unchanged.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        set_access(&file, path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
    })
}

/// Sets the owner and the mode of `file` to those of the file `old`, if that exists. Without the
/// right to change the owner, `file` keeps its own.
fn set_access(file: &File, old: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(old) else {
        return file.set_permissions(Permissions::from_mode(0o644));
    };
    let _ = fchown(file, None, Some(old.gid()));
    let _ = fchown(file, Some(old.uid()), None);
    file.set_permissions(Permissions::from_mode(old.mode() & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_keeps_its_mode_and_a_new_one_is_readable_by_all() {
        let dir = std::env::temp_dir().join(format!("viaduct-setup-{}", std::process::id()));
        let config = dir.join("site/rome.toml");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        make_directory(&config).unwrap();
        replace(&config, "first").unwrap();
        let first = [mode(config.parent().unwrap()), mode(&config)];
        fs::set_permissions(&config, Permissions::from_mode(0o640)).unwrap();
        replace(&config, "second").unwrap();
        assert_eq!((first, mode(&config)), ([0o755, 0o644], 0o640));
        assert_eq!(fs::read_to_string(&config).unwrap(), "second");
        fs::remove_dir_all(&dir).unwrap();
    }
}
