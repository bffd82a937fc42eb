//! Detector of live namespaces: the kernel destroys a veth together with the namespace of its
//! other end.
#![allow(clippy::unwrap_used)] // a test may panic

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use viaduct_sys::netns::Netns;

/// Namespace with wires into other namespaces. When one of these is destroyed, its wire disappears.
pub(crate) struct Canary {
    netns: Netns,
    wires: usize,
}

impl Canary {
    pub(crate) fn new() -> Canary {
        Canary { netns: Netns::new().unwrap(), wires: 0 }
    }

    /// Adds a wire into the namespace at `path`.
    pub(crate) fn watch(&mut self, path: impl AsRef<Path>) {
        let (name, path) = (format!("c{}", self.wires), path.as_ref().to_str().unwrap());
        let mut ip = self.netns.command("ip");
        ip.args(["link", "add", &name, "type", "veth", "peer", "name", "canary", "netns", path]);
        assert!(ip.status().unwrap().success(), "{path}");
        self.wires += 1;
    }

    /// Counts the watched namespaces that still exist.
    pub(crate) fn alive(&self) -> usize {
        let shown = self.netns.command("ip").args(["-o", "link", "show", "type", "veth"]).output();
        String::from_utf8(shown.unwrap().stdout).unwrap().lines().count()
    }

    /// Waits until all watched namespaces are gone. The kernel destroys a namespace shortly after
    /// its last user has ended.
    pub(crate) fn assert_all_gone(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.alive() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(self.alive(), 0, "of {} namespaces still alive", self.wires);
    }
}

/// Lists the interfaces of the namespace that the test runs in.
pub(crate) fn interfaces_here() -> String {
    let shown = Command::new("ip").args(["-o", "link"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}
