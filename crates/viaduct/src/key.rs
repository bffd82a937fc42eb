//! `viaduct key`: a site's key pair.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Subcommand;
use ring::rand::{SecureRandom, SystemRandom};
use tracing::warn;
use viaduct_proto::keys::SecretKey;

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key pair: the secret key goes to a file that only you can read, the public key is
    /// printed for the peers' configs
    New {
        /// The file to write; an existing one is left alone
        #[arg(long, value_name = "FILE", default_value = "site.key")]
        out: PathBuf,
    },
    /// Print the public key of a secret key's file
    Show {
        /// The file
        #[arg(value_name = "FILE", default_value = "site.key")]
        file: PathBuf,
    },
}

/// Runs it.
pub fn run(command: &KeyCommand) -> Result<()> {
    let key = match command {
        KeyCommand::New { out } => make(out)?,
        KeyCommand::Show { file } => read(file)?,
    };
    println!("{}", key.public());
    Ok(())
}

/// What to say of `option`'s file, if others can read its secret.
pub fn readers(option: &str, file: &Path) -> Option<String> {
    let mode = std::fs::metadata(file).map_or(0, |meta| meta.permissions().mode() & 0o777);
    let file = file.display();
    (mode & 0o077 != 0)
        .then(|| format!("{option}: {file} has mode {mode:o}: others can read it; 600 is right"))
}

/// Says so.
pub fn warn_of_readers(option: &str, file: &Path) {
    readers(option, file).iter().for_each(|line| warn!("{line}"));
}

fn make(out: &Path) -> Result<SecretKey> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok().context("the kernel gave no random bytes")?;
    let key = SecretKey::from_bytes(bytes);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(out)
        .map_err(|error| refused(out, error))?;
    writeln!(file, "{}", key.to_text())?;
    file.sync_all()?;
    Ok(key)
}

fn refused(out: &Path, error: io::Error) -> anyhow::Error {
    let file = out.display();
    match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow!(
            "{file} exists already, and is left alone: `viaduct key show {file}` prints its public \
             key, `viaduct key new --out FILE` makes another"
        ),
        _ => anyhow::Error::new(error).context(format!("{file}: cannot be made")),
    }
}

/// Reads a secret key's file.
///
/// # Errors
/// It cannot be read, or holds no key.
pub fn read(file: &Path) -> Result<SecretKey> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    text.parse().with_context(|| file.display().to_string())
}
