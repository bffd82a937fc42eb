//! Helpers shared by several test files.
#![allow(dead_code)] // no test file uses all of them

pub(crate) mod etcd;
pub(crate) mod upgrade;
pub(crate) mod watchdog;

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Uid;
use viaduct_proto::rng::Rng;
use viaduct_sys::capture::ring::Ring;

/// Returns the same random bytes each time.
pub(crate) fn random(bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Rng::from_seed(7).fill(&mut data);
    data
}

/// Builds a static Go program from `source`. Returns false if that is not possible. The
/// compiler's cache is in the target directory, because there may be no home directory.
pub(crate) fn build_go(program: &Path, source: &Path) -> bool {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).args([program, source]).env("CGO_ENABLED", "0");
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    go.status().is_ok_and(|status| status.success())
}

/// Returns a port of TCP and UDP that is not in use, a different one with each call. It is below
/// the range of ephemeral ports, so that no connection and no bind to port 0 takes it before it is
/// used. The first port depends on the process ID, so that test programs that run at the same time
/// rarely choose the same port.
pub(crate) fn free_port() -> u16 {
    const RANGE: std::ops::Range<u16> = 10_000..32_000;
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id().wrapping_mul(2_654_435_761) >> 16;
    loop {
        let call = u32::from(CALLS.fetch_add(1, Ordering::Relaxed));
        let port = RANGE.start + ((first + call) % RANGE.len() as u32) as u16;
        let at = (Ipv6Addr::UNSPECIFIED, port);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            return port;
        }
    }
}

/// Reads `stream` to its end.
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    data
}

/// nftables rules with which a host silently drops all packets, as if it had vanished.
pub(crate) const VANISH: &str = "add table inet lost; \
    add chain inet lost i { type filter hook input priority 0; policy drop; }; \
    add chain inet lost o { type filter hook output priority 0; policy drop; }";

/// Sends `bytes` and an end of stream from `client` to `server` and back, and checks that all
/// bytes arrive.
pub(crate) fn there_and_back(mut client: TcpStream, mut server: TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let got = rest(&mut server);
            server.write_all(&got).unwrap();
        });
        client.write_all(bytes).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let back = rest(&mut client);
        assert!(back == bytes, "{} of {} bytes came back", back.len(), bytes.len());
    });
}

/// Waits until the condition holds, for at most `limit`. Returns false if it does not hold by then.
pub(crate) fn within(limit: Duration, happened: impl Fn() -> bool) -> bool {
    within_some(limit, || happened().then_some(())).is_some()
}

/// Waits until the condition holds; panics after 20 s.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let happened = within_some(Duration::from_secs(20), || is().then_some(()));
    assert!(happened.is_some(), "{what}: not within 20 s");
}

/// Polls `ask` until it returns a value, for at most `limit`.
pub(crate) fn within_some<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(found) = ask() {
            return Some(found);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Fills all buffers on the path of `stream`, whose other end reads nothing: writes until no byte
/// is accepted for 300 ms. Returns the number of bytes written.
pub(crate) fn fill(stream: &mut TcpStream) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut all, mut moved) = (0, Instant::now());
    while moved.elapsed() < Duration::from_millis(300) {
        match stream.write(&[1; 65536]) {
            Ok(taken) => (all, moved) = (all + taken, Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    all
}

/// Runs `what` in a thread of another user.
pub(crate) fn as_user(user: u32, what: impl FnOnce() + Send + 'static) {
    let act = move || {
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what();
    };
    thread::spawn(act).join().unwrap();
}

/// Waits until a tap shows a TCP packet over IPv4 whose flags satisfy `is`; panics after 5 s.
/// Returns the time at which the packet was read.
pub(crate) fn when_seen(tap: &mut Ring, is: impl Fn(u8) -> bool) -> Instant {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        while let Some(frame) = tap.next() {
            if frame.len() >= 40 && frame[0] >> 4 == 4 && frame[9] == 6 && is(frame[33]) {
                return Instant::now();
            }
        }
        assert!(Instant::now() < deadline, "no such packet was seen");
        thread::sleep(Duration::from_micros(500));
    }
}

/// Names of the programs that hold the other end of `stream`, a loopback connection over IPv4.
pub(crate) fn holders_of_other_end(stream: &TcpStream) -> Vec<String> {
    let written = |port: u16| format!("0100007F:{port:04X}");
    let ends = [stream.peer_addr().unwrap(), stream.local_addr().unwrap()];
    let ends = ends.map(|end| written(end.port()));
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let inode = table.lines().find_map(|line| {
        // Compare both ends: closed connections stay in the table for a minute.
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1..3) == Some(&[ends[0].as_str(), ends[1].as_str()])).then(|| fields[9])
    });
    let socket = format!("socket:[{}]", inode.expect("the connection is in the table"));
    let holds = |process: &Path| {
        let Ok(open) = fs::read_dir(process.join("fd")) else { return false };
        open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(&socket)))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let program = |path: PathBuf| fs::read_link(path.join("exe")).ok();
    let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    processes.filter(|path| holds(path)).filter_map(program).filter_map(name).collect()
}

/// An unprivileged user if this test runs as root, otherwise the test's own user. The user's files
/// are in a separate directory, because the user may not have access to the build directory.
pub(crate) struct UnprivilegedUser {
    directory: PathBuf,
}

const USER_ID: u32 = 65_534;

impl UnprivilegedUser {
    /// Creates the directory, with copies of viaduct and its preload library.
    pub(crate) fn new(name: &str) -> UnprivilegedUser {
        let directory = std::env::temp_dir().join(format!("viaduct-{name}-{}", std::process::id()));
        // Removes files of an earlier run.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let user = UnprivilegedUser { directory };
        let program = Path::new(env!("CARGO_BIN_EXE_viaduct"));
        let library = program.with_file_name("libviaduct_preload.so");
        assert!(library.exists(), "run first: cargo build -p viaduct-preload, in this profile");
        for file in [program, &library] {
            user.has(file);
        }
        user.give(&user.directory);
        user
    }

    /// Returns a path in the user's directory.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Path of the copy of viaduct.
    pub(crate) fn viaduct(&self) -> PathBuf {
        self.at("viaduct")
    }

    /// Copies a program so that the user may run it. `cp` makes the copy: if this process wrote the
    /// file, a child that another thread starts meanwhile could inherit the descriptor, and a file
    /// that is open for writing cannot be run.
    pub(crate) fn has(&self, file: &Path) -> PathBuf {
        let copy = self.at(file.file_name().unwrap().to_str().unwrap());
        assert!(Command::new("cp").arg(file).arg(&copy).status().unwrap().success());
        copy
    }

    /// Creates a key that the user may read.
    pub(crate) fn key(&self) -> PathBuf {
        let key = self.at("site.key");
        let made = Command::new(self.viaduct()).args(["key", "new", "--out"]).arg(&key).output();
        assert!(made.unwrap().status.success());
        self.give(&key);
        key
    }

    /// Changes the owner of a file to the user.
    pub(crate) fn give(&self, file: &Path) {
        if is_root() {
            chown(file, Some(USER_ID), Some(USER_ID)).unwrap();
        }
    }

    /// Builds a command that runs as the user.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={USER_ID}"), &format!("--regid={USER_ID}")]);
        command.arg("--clear-groups").arg(program).current_dir(&self.directory);
        command
    }
}

impl Drop for UnprivilegedUser {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
