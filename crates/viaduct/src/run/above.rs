//! Masters above each other: whoever has handlers of its own runs as a program of the master below, and
//! what it sends on is that one's to carry.
//!
//! ```text
//!   viaduct run --master N +crypt -- ssh mars     is     viaduct run --master N -- viaduct run +crypt -- ssh mars
//!   viaduct master --name U --master N +crypt     is     viaduct run --master N -- viaduct master --name U +crypt
//! ```

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::words::unfold;
use super::wrapper;

/// Runs this process's command line, without its `--master`, above `master`.
pub fn run(master: &str, run_dir: &Path) -> Result<ExitCode> {
    let own = env::current_exe().context("find out where viaduct is")?;
    wrapper::run(words(unfold(env::args_os()), own, master, run_dir))
}

fn words(said: Vec<OsString>, own: PathBuf, master: &str, run_dir: &Path) -> Vec<OsString> {
    let mut below: Vec<OsString> = vec!["viaduct".into(), "run".into()];
    below.push(format!("--master={master}").into());
    below.push("--run-dir".into());
    below.push(run_dir.into());
    below.extend(["--".into(), own.into()]);
    let mut said = said.into_iter().skip(1);
    let mut options = true;
    while let Some(word) = said.next() {
        options &= word != "--";
        if options && word == "--master" {
            said.next();
        } else if !(options && starts(&word, "--master=")) {
            below.push(word);
        }
    }
    below
}

fn starts(word: &OsStr, with: &str) -> bool {
    word.as_encoded_bytes().starts_with(with.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_handlers_is_a_program_of_the_master_below() {
        let below = |line: &str| {
            let said = line.split(' ').map(OsString::from).collect();
            let words = words(said, "/bin/viaduct".into(), "N", Path::new("/run/v"));
            words.join(OsStr::new(" ")).into_string().unwrap()
        };
        let run = "viaduct run --master=N --run-dir /run/v -- /bin/viaduct";
        for said in ["--master N --handler=crypt", "--handler=crypt --master=N"] {
            assert_eq!(
                below(&format!("viaduct run {said} -- x --master y")),
                format!("{run} run --handler=crypt -- x --master y")
            );
        }
        assert_eq!(below("viaduct master --name U --master N"), format!("{run} master --name U"));
    }
}
