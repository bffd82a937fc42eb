//! `viaduct key`: key pairs, and the secrets for `viaduct serve --key` and `--replicas`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use clap::Subcommand;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use tracing::warn;
use viaduct_proto::keys::SecretKey;
use viaduct_sys::journal::replace_secret_file;
use viaduct_sys::random::random;

use crate::stdout::print_line;
use crate::{root_secrets, value_parser};

/// Name of the credential in which the systemd units pass the files of `/etc/viaduct` to a service.
const CREDENTIAL: &str = "keys";

/// Subcommands of `viaduct key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key pair: the secret key is written to a file that only you can read, the public
    /// key is printed for the peers' configs
    New {
        /// File to create; an existing file is not overwritten
        #[arg(long, value_name = "FILE", default_value = "site.key")]
        out: PathBuf,
    },
    /// Create a secret for `viaduct serve --key`, in a file that only you can read; replicas share
    /// it
    Serve {
        /// File to create; an existing file is not overwritten. -: write to standard output, to add
        /// a secret to a file
        #[arg(long, value_name = "FILE", default_value = "serve.key")]
        out: PathBuf,
        /// Number of the secret, 0 to 255, different from those in use
        #[arg(long, value_name = "N", default_value_t = 1)]
        number: u8,
    },
    /// Create a file of root secrets for `viaduct serve --replicas`, from which replicas derive a
    /// secret for each period
    Replicas {
        /// File to create; an existing file is not overwritten
        #[arg(long, value_name = "FILE", default_value = "replicas.toml")]
        out: PathBuf,
        /// Length of a period, 10s to 366d
        #[arg(long, value_name = "TIME", default_value = root_secrets::PERIOD)]
        period: String,
        /// Add a root, which replaces the latest one, to this file instead of creating a new file
        #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "period"])]
        add: Option<PathBuf>,
        /// Time until the added root is used; by then all replicas must have the file
        #[arg(long, value_name = "TIME", default_value = "10m", value_parser = value_parser::time,
              requires = "add")]
        after: Duration,
    },
    /// Print the public key that belongs to the secret key in a file
    Show {
        /// The file
        #[arg(value_name = "FILE", default_value = "site.key")]
        file: PathBuf,
    },
}

/// Runs a subcommand.
pub fn run(command: &KeyCommand) -> Result<()> {
    let key = match command {
        KeyCommand::New { out } => make(out)?,
        KeyCommand::Show { file } => read(file)?,
        KeyCommand::Serve { out, number } => return make_secret(out, *number),
        KeyCommand::Replicas { add: Some(file), after, .. } => return add_root(file, *after),
        KeyCommand::Replicas { out, period, .. } => return make_roots(out, period),
    };
    print_line!("{}", key.public())
}

/// Returns a warning if users other than the owner can access `file`, the value of `option`.
pub fn readable_by_others(option: &str, file: &Path) -> Option<String> {
    let mode = std::fs::metadata(file).map_or(0, |meta| meta.permissions().mode() & 0o777);
    let file = file.display();
    (mode & 0o077 != 0)
        .then(|| format!("{option}: {file} has mode {mode:o}: others can read it; 600 is right"))
}

/// Logs the warning of [`readable_by_others`], if there is one.
pub fn warn_if_readable(option: &str, file: &Path) {
    readable_by_others(option, file).iter().for_each(|line| warn!("{line}"));
}

fn make(out: &Path) -> Result<SecretKey> {
    let key = SecretKey::from_bytes(random()?);
    write(out, &key)?;
    Ok(key)
}

/// Writes a secret key to a new file, which only its owner can read.
///
/// # Errors
/// The file already exists, or cannot be written.
pub fn write(out: &Path, key: &SecretKey) -> Result<()> {
    let mut file = create(out).map_err(|error| refused(out, error))?;
    fill(&mut file, out, &format!("{}\n", key.to_text()))
}

/// Writes the new file `out`; removes it if that fails.
fn fill(file: &mut File, out: &Path, text: &str) -> Result<()> {
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let written = written.inspect_err(|_| drop(std::fs::remove_file(out)));
    written.with_context(|| format!("cannot write {}", out.display()))
}

/// Writes a new secret in the format of `viaduct serve --key`: a line with the number and 64
/// hexadecimal digits.
fn make_secret(out: &Path, number: u8) -> Result<()> {
    let digits: String = random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("{number} {digits}");
    if out == Path::new("-") {
        return print_line!("{line}");
    }
    let mut file = create(out).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow!(
            "{0} already exists; not overwritten: `viaduct key serve --number N --out - >> {0}` \
             adds a secret, `--out FILE` creates another file",
            out.display()
        ),
        _ => refused(out, error),
    })?;
    fill(&mut file, out, &format!("{line}\n"))
}

/// Creates a file of root secrets.
fn make_roots(out: &Path, period: &str) -> Result<()> {
    let text = root_secrets::new_file(period, random()?, SystemTime::now())?;
    let mut file = create(out).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow!(
            "{0} already exists; not overwritten: `viaduct key replicas --add {0}` adds a root",
            out.display()
        ),
        _ => refused(out, error),
    })?;
    fill(&mut file, out, &text)
}

/// Adds a root secret to a file. Replicas seal with it once the time `after` has passed.
fn add_root(file: &Path, after: Duration) -> Result<()> {
    let read = std::fs::read_to_string(file);
    let text = read.with_context(|| format!("cannot read {}", file.display()))?;
    let from = SystemTime::now() + after;
    let text = root_secrets::add_root(&text, random()?, from)
        .with_context(|| file.display().to_string())?;
    replace_secret_file(file, text.as_bytes())?;
    let from = humantime::format_rfc3339_seconds(from);
    print_line!("the new root is used from {from}: distribute {} before then", file.display())
}

/// Creates a file that only its owner can read.
fn create(out: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(out)
}

fn refused(out: &Path, error: io::Error) -> anyhow::Error {
    let file = out.display();
    match error.kind() {
        io::ErrorKind::AlreadyExists => anyhow!(
            "{file} already exists; not overwritten: `viaduct key show {file}` prints its public \
             key, `viaduct key new --out FILE` creates another key pair"
        ),
        _ => anyhow::Error::new(error).context(format!("cannot create {file}")),
    }
}

/// Path from which the secret file `file` is read: `file` itself, or, if this user may not read it,
/// the copy that the service manager gives to the service (`LoadCredential=keys:/etc/viaduct` of
/// systemd).
pub fn accessible(file: &Path) -> PathBuf {
    let copy = || {
        let directory = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?);
        let copy = directory.join(format!("{CREDENTIAL}_{}", file.file_name()?.to_str()?));
        copy.is_file().then_some(copy)
    };
    let is_denied = access(file, Access::READ_OK) == Err(Errno::ACCESS);
    copy().filter(|_| is_denied).unwrap_or_else(|| file.to_owned())
}

/// Reads a secret key from a file. Errors: the file cannot be read, or does not contain a key.
pub fn read(file: &Path) -> Result<SecretKey> {
    let text = std::fs::read_to_string(accessible(file));
    let text = text.with_context(|| file.display().to_string())?;
    text.parse().with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_trickles::Secrets;

    #[test]
    fn a_file_that_cannot_be_written_is_not_left() {
        let at = std::env::temp_dir().join(format!("viaduct-key-full-{}", std::process::id()));
        std::fs::write(&at, "").unwrap();
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = fill(&mut full, &at, "secret").unwrap_err().to_string();
        assert!(error.starts_with("cannot write") && !at.exists(), "{error}");
    }

    #[test]
    fn a_new_secret_is_readable_by_a_server_and_no_other_user() {
        let at = std::env::temp_dir().join(format!("viaduct-key-{}", std::process::id()));
        std::fs::create_dir_all(&at).unwrap();
        let file = at.join("serve.key");
        make_secret(&file, 7).unwrap();
        assert_eq!(Secrets::new(Some(&file)).unwrap().numbers(), [7]);
        assert_eq!(readable_by_others("key", &file), None);
        let text = std::fs::read_to_string(&file).unwrap();
        let again = make_secret(&file, 8).unwrap_err().to_string();
        assert!(again.contains("already exists") && again.contains("--number N"), "{again}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "not overwritten");
        std::fs::remove_dir_all(&at).unwrap();
    }
}
