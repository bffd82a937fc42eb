//! `viaduct status` and `viaduct top` of real services, and the files of `dist/` that use their
//! metrics.
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../common/mod.rs"]
mod common;
mod monitoring;
mod pty;
mod top;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use viaduct_sys::process::Process;

use common::{UnprivilegedUser, free_port, until};

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");

/// Run directory with the services of a test, removed on drop.
struct Machine(PathBuf);

impl Machine {
    fn new() -> Machine {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("viaduct-status-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("site")).unwrap();
        Machine(path)
    }

    /// Builds a `viaduct` command with these words and this run directory.
    fn viaduct(&self, words: &[&str]) -> Command {
        let mut command = Command::new(VIADUCT);
        command.args(words).env("VIADUCT_RUN_DIR", &self.0).env_remove("NO_COLOR");
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.viaduct(words).output().unwrap()
    }

    /// Starts a service, and waits for its status socket.
    fn start(&self, name: &str, words: &[&str]) -> Process {
        let mut command = self.viaduct(words);
        command.stderr(fs::File::create(self.0.join(format!("{name}.log"))).unwrap());
        let process = Process::spawn(command).unwrap();
        let socket = self.0.join(format!("{name}.sock"));
        until(name, || UnixStream::connect(&socket).is_ok());
        process
    }

    /// Starts a master of this name.
    fn master(&self, name: &str) -> Process {
        self.start(name, &["master", "--name", name, "+count"])
    }

    /// Starts a server on a free port. Returns its name, too.
    fn server(&self) -> (String, Process) {
        let port = free_port();
        let (name, listen) = (format!("serve-{port}"), format!("127.0.0.1:{port}"));
        let site = self.0.join("site").display().to_string();
        let words = ["serve", &site, "--listen", &listen, "--trickles", "off"];
        (name.clone(), self.start(&name, &words))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Line of the table `page` about the service `name`.
fn line<'a>(page: &'a str, name: &str) -> &'a str {
    let found = page.lines().find(|line| line.split_whitespace().next() == Some(name));
    found.unwrap_or_else(|| panic!("no line of {name} in:\n{page}"))
}

#[test]
fn all_services_are_in_one_table_and_one_object() {
    let machine = Machine::new();
    let none = machine.output(&["status"]);
    assert!(
        !none.status.success() && text(&none.stderr).contains("no service runs in "),
        "{none:?}"
    );

    let _master = machine.master("alone");
    let only = machine.output(&["status"]);
    let page = text(&only.stdout);
    assert!(only.status.success() && line(&page, "alone").contains("  master  "), "{page}");
    assert!(page.contains("\nmaster alone  up "), "the page of the only service follows: {page}");

    let (name, mut server) = machine.server();
    let page = text(&machine.output(&["status"]).stdout);
    assert!(line(&page, &name).contains("  server  ") && line(&page, &name).ends_with("  up"));
    assert_eq!(page.lines().count(), 3, "{page}");
    let objects: Value =
        serde_json::from_slice(&machine.output(&["status", "--json"]).stdout).unwrap();
    assert_eq!(objects["alone"]["proxy"], "alone");
    assert_eq!(objects[&name]["name"], name.as_str());
    let one = machine.output(&["status", "--json", "--name", &name]);
    let one: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(one["name"], name.as_str());

    server.kill().unwrap();
    server.wait().unwrap();
    let page = text(&machine.output(&["status"]).stdout);
    assert!(line(&page, &name).ends_with("killed: it left its socket behind"), "{page}");
    let objects: Value =
        serde_json::from_slice(&machine.output(&["status", "--json"]).stdout).unwrap();
    assert_eq!(objects[&name]["error"], "killed: it left its socket behind");
    let wrong = machine.output(&["status", "--name", "rome"]);
    let said = text(&wrong.stderr);
    assert!(said.contains("rome: not running; services that run: alone, serve-"), "{said}");
}

#[test]
fn a_service_of_another_user_has_a_line_with_the_reason() {
    let machine = Machine::new();
    let _master = machine.master("private");
    let user = UnprivilegedUser::new("status");
    if !is_root() {
        return;
    }
    let mut command = user.command(user.viaduct());
    let output = command.args(["status", "--run-dir"]).arg(&machine.0).output().unwrap();
    let (page, said) = (text(&output.stdout), text(&output.stderr));
    let reason = "only the service's user and root may read its status";
    assert!(line(&page, "private").ends_with(reason), "{page}");
    assert!(!output.status.success() && said.contains("no status could be read"), "{said}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Path of a file of `dist/`.
fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name)
}
