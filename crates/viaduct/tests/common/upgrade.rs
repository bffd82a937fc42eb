//! Upgrades that fail, and programs that fail to take over.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use viaduct_lab::binary::copy_program;
use viaduct_lab::upgrade::upgrade;

/// Runs an upgrade, which is expected to fail. Returns its error message.
pub(crate) fn failure(run_dir: &Path, arguments: &[&str]) -> String {
    upgrade(run_dir, arguments).unwrap_err().to_string()
}

/// Writes a program for an upgrade. It runs the Python code `steps`, in which `s` is the connection
/// to the old process.
pub(crate) fn program(run_dir: &Path, name: &str, steps: &str) -> PathBuf {
    let path = run_dir.join(name);
    let text = format!(
        "#!/usr/bin/python3\n\
         import os, signal, socket, sys\n\
         fd = [word for word in sys.argv if word.startswith('--takeover=')][0].split('=')[1]\n\
         s = socket.socket(fileno=int(fd))\n\
         def hello(oldest, newest):\n\
         \x20   s.send(b'{{\"hello\":{{\"version\":\"9.9\",\"oldest\":%d,\"newest\":%d}}}}' \
         % (oldest, newest))\n\
         {steps}\n"
    );
    let written = run_dir.join(format!("{name}.new"));
    fs::write(&written, text).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&written, &path).unwrap();
    path
}

/// Program for an upgrade: `viaduct`, with a relay between the two processes that acts when a
/// certain message arrives (`relay.py`).
pub(crate) struct Relay {
    /// Path of the program.
    pub(crate) path: PathBuf,
}

impl Relay {
    /// Writes the program. Before the relay passes on a message that begins with `message`, it
    /// evaluates the Python expression `action`.
    pub(crate) fn new(run_dir: &Path, name: &str, message: &str, action: &str) -> Relay {
        let steps = format!(
            "viaduct, awaited = '{}', b'{message}'\naction = lambda: ({action})\n{}",
            env!("CARGO_BIN_EXE_viaduct"),
            include_str!("relay.py")
        );
        Relay { path: program(run_dir, name, &steps) }
    }

    /// ID of the new process, which must have been started.
    pub(crate) fn pid(&self) -> u32 {
        fs::read_to_string(self.file("pid")).unwrap().parse().unwrap()
    }

    /// Returns whether the new process, which was started, has ended with all of its threads,
    /// reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        let process = format!("/proc/{}", self.pid());
        let threads = fs::read_dir(format!("{process}/task")).map_or(0, Iterator::count);
        let stat = fs::read_to_string(format!("{process}/stat"));
        threads <= 1 && stat.map_or(true, |stat| stat.contains(") Z ") || stat.contains(") X "))
    }

    /// Returns whether the relay is in the action `hold()`.
    pub(crate) fn holds(&self) -> bool {
        self.file("held").exists()
    }

    /// Ends the action `hold()`.
    pub(crate) fn release(&self) {
        fs::remove_file(self.file("held")).unwrap();
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.path.with_extension(kind)
    }
}
