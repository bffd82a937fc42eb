//! Default directory of a service's sockets and journal.
//!
//! `VIADUCT_RUN_DIR` if that is set; otherwise:
//!
//! | user | directory |
//! |---|---|
//! | of a systemd service | `$RUNTIME_DIRECTORY`, which `RuntimeDirectory=` sets |
//! | root | `/run/viaduct`; if that belongs to another user (a package's), `/run/viaduct-root` |
//! | others | `$XDG_RUNTIME_DIR/viaduct`; without that variable, `viaduct-UID` in `/tmp` |
//!
//! A package's hop agent has a directory of its own, `/run/viaduct-hops`, because it has a user of
//! its own.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Deserialize;

use crate::value_parser::table::defaults;

/// Option of a service's directory.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields, rename_all = "kebab-case")]
pub struct RunDir {
    /// Directory of sockets and journals [default: $RUNTIME_DIRECTORY; otherwise for root
    /// /run/viaduct or, if that is another user's, /run/viaduct-root; for other users
    /// $XDG_RUNTIME_DIR/viaduct or /tmp/viaduct-UID]
    #[arg(long, value_name = "DIR", env = "VIADUCT_RUN_DIR", value_parser = directory())]
    run_dir: Option<PathBuf>,
}

/// Parser of the option. Unlike clap's parser of paths, it accepts an empty value: an empty
/// `VIADUCT_RUN_DIR` counts as unset.
fn directory() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl RunDir {
    /// Directory of the option, or the default directory, which this call may create.
    pub fn path(&self) -> PathBuf {
        let given = self.run_dir.clone().filter(|dir| !dir.as_os_str().is_empty());
        given.unwrap_or_else(default_run_dir)
    }

    /// Directories in which services are searched for: that of [`RunDir::path`], and the
    /// directories that [`implied`] adds to it.
    pub fn searched(&self) -> Vec<PathBuf> {
        let own = self.path();
        let others = implied(&own);
        std::iter::once(own).chain(others.iter().map(PathBuf::from)).collect()
    }
}

/// Path of a running service's file: `path`; but if `path` is in root's directory ([`ROOT`]) and
/// does not exist, the same name in the system's directory ([`SYSTEM`]).
pub fn running(path: PathBuf) -> PathBuf {
    match path.strip_prefix(ROOT) {
        Ok(name) if !path.exists() => Path::new(SYSTEM).join(name),
        _ => path,
    }
}

/// Path of a service's status socket: `path` if it exists; otherwise the same name in the first of
/// the [implied] directories that has such a file.
pub fn shown(path: PathBuf) -> PathBuf {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return path };
    let others = implied(directory).iter().map(|other| Path::new(other).join(name));
    let mut all = std::iter::once(path.clone()).chain(others);
    all.find(|one| one.exists()).unwrap_or(path)
}

/// Directories to search in addition to `directory`: [`SYSTEM`] and [`HOPS`] for [`ROOT`], and
/// [`HOPS`] for [`SYSTEM`]. Root's own services are in [`ROOT`].
fn implied(directory: &Path) -> &'static [&'static str] {
    match directory.to_str() {
        Some(ROOT) => &[SYSTEM, HOPS],
        Some(SYSTEM) => &[HOPS],
        _ => &[],
    }
}

impl From<&Path> for RunDir {
    fn from(path: &Path) -> RunDir {
        RunDir { run_dir: Some(path.to_owned()) }
    }
}

/// Directory of the services that the system starts.
pub const SYSTEM: &str = "/run/viaduct";
/// Directory of the services that root starts by hand, if [`SYSTEM`] belongs to another user. This
/// is the case if a package is installed, whose services have a user of their own. That user could
/// replace root's files in [`SYSTEM`].
pub const ROOT: &str = "/run/viaduct-root";
/// Directory of a package's hop agent, whose user is not that of the system's services.
pub const HOPS: &str = "/run/viaduct-hops";
/// Parent of private directories. It is sticky: users cannot delete files of other users in it.
const TMP: &str = "/tmp";

/// Default directory of this user's services.
///
/// A directory below `/tmp` is created by this call, because any other user could otherwise create
/// it first. If another user has already created it, the system's directory is returned, in which
/// this user cannot create a socket, and so gets an error.
pub fn default_run_dir() -> PathBuf {
    let user = rustix::process::geteuid();
    if let Some(given) = env::var_os("VIADUCT_RUN_DIR").filter(|dir| !dir.is_empty()) {
        return std::path::absolute(&given).unwrap_or_else(|_| given.into());
    }
    if let Some(given) = env::var_os("RUNTIME_DIRECTORY")
        && let Some(first) = env::split_paths(&given).find(|dir| dir.is_absolute())
    {
        return first;
    }
    if user.is_root() {
        return of_root(Path::new(SYSTEM)).into();
    }
    if let Some(own) = env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute()) {
        return Path::new(&own).join("viaduct");
    }
    let private = Path::new(TMP).join(format!("viaduct-{}", user.as_raw()));
    match own(&private, user.as_raw()) {
        Ok(()) => private,
        Err(_) => SYSTEM.into(),
    }
}

/// Joins directories to a list, for a message.
pub fn listed(directories: &[PathBuf]) -> String {
    let names: Vec<_> = directories.iter().map(|of| of.display().to_string()).collect();
    names.join(" and ")
}

/// Directory of root's services, given the system's directory.
fn of_root(system: &Path) -> &Path {
    match fs::symlink_metadata(system) {
        Ok(found) if found.uid() != 0 => Path::new(ROOT),
        _ => system,
    }
}

/// Creates `directory` if it does not exist. Errors: `directory` belongs to a user other than
/// `user`, other users have permissions on it, or it is a file or a link.
fn own(directory: &Path, user: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // `symlink_metadata` does not follow a link.
    let found = fs::symlink_metadata(directory)?;
    let is_private = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    if is_private { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use clap::Parser as _;

    use super::*;

    #[test]
    fn an_empty_directory_means_the_default() {
        #[derive(clap::Parser)]
        struct Options {
            #[command(flatten)]
            run_dir: RunDir,
        }
        let path = |given: &str| {
            let options = Options::try_parse_from(["viaduct", "--run-dir", given]);
            options.unwrap().run_dir.path()
        };
        assert_eq!(path(""), default_run_dir());
        assert_eq!(path("/run/other"), Path::new("/run/other"));
    }

    #[test]
    fn root_uses_no_directory_of_another_user() {
        let place = env::temp_dir().join(format!("viaduct-of-root-{}", std::process::id()));
        assert_eq!(of_root(&place), place);
        fs::create_dir_all(&place).unwrap();
        assert_eq!(of_root(&place), place);
        std::os::unix::fs::chown(&place, Some(1_900_000_002), None).unwrap();
        assert_eq!(of_root(&place), Path::new(ROOT));
        assert_eq!(running(Path::new(ROOT).join("none.sock")), Path::new(SYSTEM).join("none.sock"));
        assert_eq!(running(place.join("none.sock")), place.join("none.sock"));
        assert_eq!(shown(place.join("none.sock")), place.join("none.sock"));
        assert_eq!(implied(Path::new(ROOT)), [SYSTEM, HOPS]);
        assert_eq!(implied(Path::new(SYSTEM)), [HOPS]);
        assert!(implied(&place).is_empty());
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_enter_or_have_created_is_not_used() {
        let place = env::temp_dir().join(format!("viaduct-run-dir-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let private = place.join("private");
        own(&private, user).unwrap();
        own(&private, user).unwrap();
        assert_eq!(fs::metadata(&private).unwrap().mode() & 0o777, 0o700);
        assert!(own(&private, user + 1).is_err());
        symlink(&private, place.join("link")).unwrap();
        assert!(own(&place.join("link"), user).is_err());
        fs::write(place.join("file"), "").unwrap();
        assert!(own(&place.join("file"), user).is_err());
        fs::set_permissions(&private, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(own(&private, user).is_err());
        fs::remove_dir_all(&place).unwrap();
    }
}
