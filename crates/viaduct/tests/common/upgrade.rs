//! Upgrades that fail, and programs that fail to take over.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use viaduct_lab::binary::copy_program;
use viaduct_lab::upgrade::upgrade;

/// Message of an upgrade that fails.
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
