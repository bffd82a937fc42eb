//! Row of the matrix: its direct run, its runs under chains, and the comparison of the results.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

use super::server::Server;
use crate::experiments::prelude::*;

/// Time limit of a client in seconds; a hanging client is reported as such.
const LIMIT: &str = "60";
/// Directories of servers outside the PATH.
const MORE: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/lib/git-core"];

/// Row in a directory of its own.
pub(super) struct Row {
    name: String,
    files: Scratch,
    dir: Scratch,
}

/// Result of a client.
pub(super) struct Found {
    output: Output,
    server: String,
    /// Duration of the run.
    pub(super) seconds: f64,
}

impl Row {
    /// Creates the row named `name` from these files.
    pub(super) fn new(name: &str, files: &[(&str, &str)]) -> Result<Row> {
        let (scripts, dir) = (Scratch::new()?, Scratch::new()?);
        fs::create_dir(scripts.path().join("rows"))?;
        for (file, text) in files {
            scripts.write(&format!("rows/{file}"), text)?;
        }
        scripts.write("row.sh", include_str!("row.sh"))?;
        Ok(Row { name: name.to_owned(), files: scripts, dir })
    }

    /// Returns the required programs that are not installed.
    pub(super) fn missing(&self) -> Result<Vec<String>> {
        let needs = self.part("needs").output()?;
        let words = String::from_utf8(needs.stdout)?;
        let missing = words.split_whitespace().filter(|need| !is_there(need));
        Ok(missing.map(str::to_owned).collect())
    }

    /// Runs the row's setup, once before all runs.
    pub(super) fn set_up(&self) -> Result<()> {
        let setup = self.part("setup").output()?;
        ensure!(setup.status.success(), "{}: its setup failed: {setup:?}", self.name);
        Ok(())
    }

    /// Runs server and client without handlers.
    pub(super) fn directly(&self) -> Result<Found> {
        let found = self.run("direct", &["sh"])?;
        let Output { stdout, status, .. } = &found.output;
        let ended = !stdout.is_empty() && status.code().is_some();
        ensure!(ended, "{}: the direct run failed: {:?}", self.name, found.output);
        Ok(found)
    }

    /// Runs both under these handlers, with this interposer.
    pub(super) fn wrapped(&self, way: &str, handlers: &str, via: &str) -> Result<Found> {
        let viaduct = binary()?;
        let viaduct = viaduct.to_str().context("the path of viaduct is not UTF-8")?;
        let words = [viaduct, "run", "--via", via, "--report"];
        let words: Vec<_> = words.into_iter().chain(handlers.split(' ')).collect();
        self.run(way, &[&words[..], &["--", "sh"]].concat())
    }

    /// Returns handlers that compress and encrypt with a key of the row.
    pub(super) fn key(&self) -> Result<String> {
        let path = self.dir.path().join("site.key").display().to_string();
        let made = Command::new(binary()?).args(["key", "new", "--out", &path]).output()?;
        ensure!(made.status.success(), "cannot create a key: {made:?}");
        Ok(format!("+compress +crypt:key={path}"))
    }

    /// Describes how `wrapped` differs from `direct`; `None` if it does not.
    pub(super) fn differs(&self, direct: &Found, wrapped: &Found) -> Option<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (before, now) = (&direct.output, &wrapped.output);
        let said = text(&now.stderr);
        let what = if now.status.signal().is_some() {
            "does not end".to_owned()
        } else if before.status != now.status {
            format!("ends with {}, not {}", now.status, before.status)
        } else if before.stdout != now.stdout {
            "prints something else".to_owned()
        } else if !said.contains(" passed the handlers ") && !said.contains(" were offloaded ") {
            "no flow passed the handlers".to_owned()
        } else if went_direct(&said) {
            "a flow went direct".to_owned()
        } else {
            return None;
        };
        let [before, now] = [before, now].map(|of| text(&of.stdout));
        let server = &wrapped.server;
        Some(format!(
            "{what}\n--- direct\n{before}--- wrapped\n{now}--- standard error\n{said}--- \
                server\n{server}"
        ))
    }

    /// Runs server and client, prefixed with these words.
    fn run(&self, way: &str, words: &[&str]) -> Result<Found> {
        let server = Server::start(self.dir.path(), way, self.command("server", words))?;
        server.wait()?;
        let here = self.dir.path().join(way);
        fs::create_dir_all(&here)?;
        let words = [&["timeout", "--signal=KILL", LIMIT], words].concat();
        let began = Instant::now();
        let output = self
            .command("client", &words)
            .env("PORT", server.port.to_string())
            .env("SPARE", server.spare.to_string())
            .env("HERE", here)
            .output()?;
        Ok(Found { output, server: server.said(), seconds: began.elapsed().as_secs_f64() })
    }

    /// Returns the command of a part of the row, without handlers.
    fn part(&self, part: &str) -> Command {
        self.command(part, &["sh"])
    }

    fn command(&self, part: &str, words: &[&str]) -> Command {
        let (script, dir) = (self.files.path().join("row.sh"), self.dir.path());
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(script).args([&self.name, part]);
        command.env("DIR", dir).current_dir(dir).stdin(Stdio::null());
        command
    }
}

fn went_direct(report: &str) -> bool {
    let direct = report.lines().skip_while(|line| !line.contains("went direct")).skip(1);
    direct.take_while(|line| line.starts_with("viaduct:  ")).any(|line| line.contains(" tcp "))
}

fn is_there(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(MORE).any(|at| Path::new(at).join(program).exists())
        || program == "postgres" && Path::new("/usr/lib/postgresql").exists()
}
