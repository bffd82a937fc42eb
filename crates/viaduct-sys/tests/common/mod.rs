//! Two namespaces joined by a veth pair, removed when the test ends:
//!
//! ```text
//!    left                          right
//!    10.9.0.1/24  va ======== vb   10.9.0.2/24
//!    fd09::1/64                    fd09::2/64
//! ```
#![allow(unsafe_code, dead_code, reason = "each test program uses a part of it")]

use std::process::Command;
use std::sync::mpsc;
use std::thread;

/// Returns whether the test may create namespaces. Prints a notice if not.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes no arguments, and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: creating network namespaces needs root");
    }
    root
}

/// Moves the calling thread into a new network namespace with `lo` up.
pub(crate) fn enter_new_namespace() {
    // SAFETY: changes the calling thread's namespace only.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare(CLONE_NEWNET)");
    sh("ip link set lo up");
}

/// Runs a shell line in the calling thread's namespace, and returns its output. Panics with all
/// output if the line fails.
pub(crate) fn sh(line: &str) -> String {
    let out = Command::new("sh").args(["-ec", line]).output().expect("sh runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{line}\n{text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// Runs `body` in a new thread with a new namespace. The test's thread stays in its own.
pub(crate) fn in_namespace<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(|| {
        enter_new_namespace();
        body()
    });
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A thread in a new namespace, which runs the jobs that are sent to it.
pub(crate) struct Host {
    jobs: Option<mpsc::Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<thread::JoinHandle<()>>,
    tid: i32,
}

impl Host {
    /// Creates a namespace with a thread in it.
    pub(crate) fn new() -> Host {
        let (jobs, work) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            enter_new_namespace();
            // SAFETY: takes no arguments, and cannot fail.
            tell.send(unsafe { libc::gettid() }).expect("the creator waits for the thread ID");
            work.into_iter().for_each(|job| job());
        });
        let tid = told.recv().expect("the thread has entered its namespace");
        Host { jobs: Some(jobs), thread: Some(thread), tid }
    }

    /// Returns the thread's ID, which names the namespace in `ip link set ... netns`.
    pub(crate) fn netns(&self) -> String {
        self.tid.to_string()
    }

    /// Runs `body` in the namespace and returns its result.
    pub(crate) fn run<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || drop(tell.send(body())));
        self.jobs
            .as_ref()
            .expect("the host exists until it is dropped")
            .send(job)
            .expect("the host's thread is alive");
        told.recv().expect("the job did not panic")
    }

    /// Runs a shell line in the namespace.
    pub(crate) fn sh(&self, line: &str) -> String {
        let line = line.to_owned();
        self.run(move || sh(&line))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Creates the two namespaces in the drawing above.
pub(crate) fn pair() -> (Host, Host) {
    let (left, right) = (Host::new(), Host::new());
    left.sh(&format!("ip link add va type veth peer name vb netns {}", right.netns()));
    for (host, name, end) in [(&left, "va", 1), (&right, "vb", 2)] {
        host.sh(&format!(
            "ip addr add 10.9.0.{end}/24 dev {name}; ip addr add fd09::{end}/64 dev {name} nodad;
             ip link set {name} up"
        ));
    }
    (left, right)
}

/// Creates a host behind `left`, which forwards the host's packets, with routes in both directions:
///
/// ```text
///   host                    left                right
///   10.8.0.2/24  h0 ==== g0 10.8.0.1/24  va ==== vb
///   fd08::2/64              fd08::1/64
/// ```
pub(crate) fn host_behind(left: &Host, right: &Host) -> Host {
    let host = Host::new();
    host.sh(&format!("ip link add h0 type veth peer name g0 netns {}", left.netns()));
    for (at, name, end) in [(&host, "h0", 2), (left, "g0", 1)] {
        at.sh(&format!(
            "ip addr add 10.8.0.{end}/24 dev {name}; ip addr add fd08::{end}/64 dev {name} nodad;
             ip link set {name} up"
        ));
    }
    left.sh(
        "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
    );
    host.sh("ip route add default via 10.8.0.1; ip route add default via fd08::1");
    right.sh("ip route add 10.8.0.0/24 via 10.9.0.1; ip route add fd08::/64 via fd09::1");
    host
}
