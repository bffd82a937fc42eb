//! `viaduct serve` over TCP, as a browser sees it.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{self, until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use viaduct_sys::netns::Netns;
use viaduct_sys::process::Process;

/// A directory that is served in a network namespace of its own, which this thread has joined.
struct Site {
    dir: PathBuf,
    /// Scratch directory: the run directory, and logs.
    scratch: PathBuf,
    server: Process,
}

impl Site {
    fn new() -> Option<Site> {
        Site::with("plain", &[])
    }

    /// Starts a server with additional options, in which `DIR` stands for the scratch directory.
    fn with(name: &str, options: &[&str]) -> Option<Site> {
        let netns = match Netns::new() {
            Ok(netns) => netns,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        netns.join().unwrap();
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let dir = std::env::temp_dir().join(format!("viaduct-site-{name}-{}", std::process::id()));
        let (scratch, dir) = (dir.join("scratch"), dir.join("site"));
        fs::create_dir_all(&scratch).unwrap();
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("big.bin"), common::random(3_000_000)).unwrap();
        fs::write(dir.join("sub/page.html"), "<p>page</p>").unwrap();
        let mut command = netns.command("setpriv");
        // Without these capabilities, root is subject to file permissions like other users.
        command.args(["--bounding-set", "-dac_override,-dac_read_search"]);
        command
            .arg(env!("CARGO_BIN_EXE_viaduct"))
            .arg("serve")
            .arg(&dir)
            .args(["--listen", "127.0.0.1:80"])
            .stderr(fs::File::create(scratch.join("log")).unwrap());
        command.arg("--run-dir").arg(&scratch);
        let scratch_text = scratch.to_str().unwrap();
        command.args(options.iter().map(|option| option.replace("DIR", scratch_text)));
        let server = Process::spawn(command).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // The server opens its status socket last.
        while UnixStream::connect(scratch.join("serve-80.sock")).is_err() {
            assert!(Instant::now() < deadline, "the server does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Site { dir, scratch, server })
    }

    /// Returns the server's log.
    fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("log")).unwrap()
    }

    /// Returns the server's status, from its socket.
    fn status(&self) -> serde_json::Value {
        let mut socket = UnixStream::connect(self.scratch.join("serve-80.sock")).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Returns a TCP counter of the status.
    fn tcp(&self, name: &str) -> u64 {
        self.status()["tcp"][name].as_u64().unwrap()
    }

    /// Connects and sends `request`; reads nothing.
    fn say(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect("127.0.0.1:80").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Returns the resident memory of the server, in bytes.
    fn memory(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    /// Sends `request`. Returns all bytes until the end of the stream.
    fn ask(&self, request: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect("127.0.0.1:80").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        common::rest(&mut stream)
    }

    /// Returns the head and body of the response to a GET of `path`.
    fn get(&self, path: &str, headers: &str) -> (String, Vec<u8>) {
        let got = self
            .ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n"));
        let end = got.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        (String::from_utf8(got[..end].to_vec()).unwrap(), got[end + 4..].to_vec())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = fs::remove_dir_all(self.scratch.parent().unwrap());
    }
}

#[test]
fn files_ranges_listings_and_errors() {
    let Some(site) = Site::new() else { return };
    let big = common::random(3_000_000);
    let (head, body) = site.get("/big.bin", "");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body == big, "{head}");
    let tag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap();
    let (head, body) = site.get("/big.bin", "Range: bytes=1000000-2499999\r\n");
    assert!(head.starts_with("HTTP/1.1 206") && body == big[1_000_000..2_500_000], "{head}");
    let (head, body) = site.get("/big.bin", &format!("If-None-Match: {tag}\r\n"));
    assert!(head.starts_with("HTTP/1.1 304") && body.is_empty(), "{head}");
    let (_, page) = site.get("/sub/", "");
    assert!(String::from_utf8(page).unwrap().contains("page.html"));
    assert!(site.get("/sub?a=/.", "").0.contains("Location: /sub/?a=/.\r\n"));
    let (head, body) = site.get("/sub/page.html?next=/.", "");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body == b"<p>page</p>", "{head}");
    assert!(site.get("/none", "").0.starts_with("HTTP/1.1 404"));
    for (wrong, code) in [
        ("DELETE / HTTP/1.1\r\nHost: h\r\n\r\n", "405"),
        ("BREW / HTTP/1.1\r\nHost: h\r\n\r\n", "501"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "400"),
    ] {
        let refused = String::from_utf8(site.ask(wrong)).unwrap();
        assert!(refused.starts_with(&format!("HTTP/1.1 {code}")), "{wrong}{refused}");
    }
    // Several requests on one connection, sent in one write.
    let twice = "HEAD /big.bin HTTP/1.1\r\nHost: h\r\n\r\n\r\n\
                 GET /sub/page.html HTTP/1.2\r\nHost: h\r\nConnection: close\r\n\r\n";
    let answers = String::from_utf8(site.ask(twice)).unwrap();
    assert!(answers.ends_with("<p>page</p>") && answers.matches("HTTP/1.1 200").count() == 2);
}

#[test]
fn requests_are_logged_and_the_log_is_reopened() {
    let Some(site) = Site::with("log", &["--access-log", "DIR/access.log"]) else { return };
    let log = site.scratch.join("access.log");
    site.get("/sub/page.html?x=\"", "");
    site.get("/none", "");
    site.ask("DELETE /sub/page.html HTTP/1.1\r\nHost: h\r\n\r\n");
    let text = wait_for_lines(&log, 3);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with("127.0.0.1 - - [")), "{text}");
    assert!(lines[0].contains("] \"GET /sub/page.html?x=\\\" HTTP/1.1\" 200 "), "{text}");
    assert!(lines[1].contains("] \"GET /none HTTP/1.1\" 404 "), "{text}");
    assert!(lines[2].contains("] \"DELETE /sub/page.html HTTP/1.1\" 405 "), "{text}");
    for signal in ["USR1", "HUP"] {
        fs::rename(&log, site.scratch.join("old.log")).unwrap();
        let pid = site.server.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        wait_for_lines(&log, 0);
        site.get("/sub/", "");
        assert!(wait_for_lines(&log, 1).contains("GET /sub/ HTTP/1.1\" 200 "));
    }
}

/// Waits until a log exists and has at least this many complete lines. Returns its text.
fn wait_for_lines(log: &Path, lines: usize) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(log);
        match text {
            Ok(text) if text.matches('\n').count() >= lines => return text,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

const GET_MANY: &str = "GET /many/ HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn listings_of_a_large_directory_take_bounded_memory() {
    let Some(site) = Site::with("many", &["--max-per-source", "300", "--trickles", "off"]) else {
        return;
    };
    fs::create_dir(site.dir.join("many")).unwrap();
    for n in 0..11_000 {
        fs::write(site.dir.join(format!("many/a-file-of-some-name-{n:06}.txt")), "").unwrap();
    }
    let (_, page) = site.get("/many/", "");
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("more names than are listed: 10000 are shown"));
    assert_eq!(page.matches("<li>").count(), 10_001, "the names, and the parent directory");
    let before = site.memory();
    // Clients that request a listing and read nothing must not make the server hold a page for
    // each.
    let mut stalled = Vec::new();
    for n in 0..250 {
        let mut stream = site.say("");
        // With this buffer, the kernel queues less than a page for the client.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
        stream.write_all(GET_MANY.as_bytes()).unwrap();
        stalled.push(stream);
        if n % 50 == 0 {
            let added = site.dir.join(format!("many/added-{n}"));
            fs::write(added, "").unwrap();
            std::thread::sleep(Duration::from_millis(520));
        }
    }
    until("all are being answered", || site.tcp("requests") >= 251);
    let grown = site.memory().saturating_sub(before);
    assert!(grown < 60 << 20, "{} MB more", grown >> 20);
    assert!(site.tcp("page_bytes") < 33 << 20);
    assert!(site.get("/sub/page.html", "").0.starts_with("HTTP/1.1 200"));
    // The number of connections per client address is limited.
    while site.tcp("open") < 300 {
        stalled.push(site.say(""));
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut refused = TcpStream::connect("127.0.0.1:80").unwrap();
    assert_eq!(common::rest(&mut refused), b"");
    assert!(site.tcp("crowded") >= 1);
    drop(stalled);
    until("places are given back", || site.tcp("open") == 0);
    assert!(site.get("/sub/page.html", "").0.starts_with("HTTP/1.1 200"));
}

/// Number of entries in the directory whose listings must not delay a small file.
const NAMES: usize = 100_000;

#[test]
fn a_small_file_is_not_delayed_by_listings_of_a_very_large_directory() {
    let Some(site) = Site::with("names-100k", &["--trickles", "off"]) else { return };
    let many = site.dir.join("many");
    fs::create_dir(&many).unwrap();
    // In a tmpfs, because the disk's speed for so many files is not under test.
    let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&many).status().unwrap();
    let _mount = mounted.success().then(|| Mount(many.clone()));
    (0..NAMES).for_each(|n| drop(fs::File::create(many.join(format!("name-{n:06}"))).unwrap()));
    let stop = Arc::new(AtomicBool::new(false));
    let list = |n: usize| {
        let (stop, many) = (stop.clone(), many.clone());
        std::thread::spawn(move || {
            let mut pages = 0;
            while !stop.load(Ordering::Relaxed) {
                // Changes the directory, so that no page can be reused.
                fs::write(many.join(format!("changes-{n}")), pages.to_string()).unwrap();
                let mut stream = TcpStream::connect("127.0.0.1:80").unwrap();
                stream.write_all(GET_MANY.replace("\r\n\r\n", CLOSE).as_bytes()).unwrap();
                pages += usize::from(common::rest(&mut stream).starts_with(b"HTTP/1.1 200"));
            }
            pages
        })
    };
    let clients: Vec<_> = (0..8).map(list).collect();
    let (begun, mut times) = (Instant::now(), Vec::new());
    let mut memory = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        let one = Instant::now();
        assert!(site.get("/sub/page.html", "").0.starts_with("HTTP/1.1 200"));
        times.push(one.elapsed());
        memory = memory.max(site.memory());
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    let pages: Vec<usize> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert!(pages.iter().all(|pages| *pages > 0), "{pages:?}");
    times.sort_unstable();
    let slow = times[times.len() * 99 / 100];
    assert!(slow < Duration::from_millis(50), "{slow:?} at p99 of {}", times.len());
    assert!(memory < 200 << 20, "{} MB", memory >> 20);
}

/// End of a request head that asks the server to close the connection after the response.
const CLOSE: &str = "\r\nConnection: close\r\n\r\n";

/// A mounted file system, unmounted on drop.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn the_memory_of_all_directory_pages_is_bounded() {
    let Some(site) = Site::with("room", &["--page-memory", "65536", "--trickles", "off"]) else {
        return;
    };
    for directory in ["one", "two"] {
        fs::create_dir(site.dir.join(directory)).unwrap();
        for n in 0..3_000 {
            let name = format!("{directory}/a-file-of-some-long-name-{n:0>200}");
            fs::write(site.dir.join(name), "").unwrap();
        }
    }
    // The responses are longer than what the kernel queues for a client that reads nothing.
    let request = "GET /one/ HTTP/1.1\r\nHost: h\r\n\r\n".repeat(20);
    let stalled = site.say(&request);
    until("the first page is being sent", || site.tcp("page_bytes") > 1 << 20);
    until("the second page is refused", || site.get("/two/", "").0.starts_with("HTTP/1.1 503"));
    assert!(site.get("/one/", "").0.starts_with("HTTP/1.1 200"), "the page of /one/ is in memory");
    assert!(site.tcp("pages_refused") >= 1);
    drop(stalled);
    until("there is room for it", || site.get("/two/", "").0.starts_with("HTTP/1.1 200"));
}

#[test]
fn names_are_bytes_and_unreadable_directories_serve_their_index() {
    let Some(site) = Site::with("names", &["--trickles", "off"]) else { return };
    fs::write(site.dir.join(OsStr::from_bytes(b"caf\xe9.txt")), "latin").unwrap();
    for (name, code) in [("...x", "200"), (".hidden", "404")] {
        fs::write(site.dir.join(name), "").unwrap();
        let (head, _) = site.get(&format!("/{name}"), "");
        assert!(head.starts_with(&format!("HTTP/1.1 {code}")), "{name}: {head}");
    }
    let (head, body) = site.get("/caf%E9.txt", "");
    assert!(head.contains("200 OK") && head.contains("text/plain"), "{head}");
    assert_eq!(body, b"latin");
    let (_, page) = site.get("/", "");
    assert!(String::from_utf8(page).unwrap().contains("href=\"./caf%E9.txt\""));
    for name in ["closed", "closed-empty"] {
        fs::create_dir(site.dir.join(name)).unwrap();
    }
    fs::write(site.dir.join("closed/index.html"), "index").unwrap();
    for name in ["closed", "closed-empty"] {
        fs::set_permissions(site.dir.join(name), fs::Permissions::from_mode(0o111)).unwrap();
    }
    let (head, body) = site.get("/closed/", "");
    assert!(head.contains("200 OK") && body == b"index", "{head}");
    assert!(site.get("/closed/index.html", "").0.contains("200 OK"));
    assert!(site.get("/closed-empty/", "").0.contains("403 Forbidden"));
    fs::create_dir(site.dir.join("socket")).unwrap();
    let _socket = UnixListener::bind(site.dir.join("socket/index.html")).unwrap();
    fs::create_dir(site.dir.join("pipe")).unwrap();
    let made = Command::new("mkfifo").arg(site.dir.join("pipe/index.html")).status().unwrap();
    assert!(made.success());
    for path in ["/socket/", "/pipe/"] {
        let (head, page) = site.get(path, "");
        assert!(head.contains("200 OK") && page.starts_with(b"<!doctype html>"), "{path}: {head}");
    }
}

#[test]
fn a_server_without_descriptors_logs_it_once_and_resumes_accepting() {
    let Some(site) = Site::with("descriptors", &["--trickles", "off"]) else { return };
    let server = Pid::from_raw(site.server.id().cast_signed()).unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", site.server.id())).unwrap().count() as u64;
    let limit = Rlimit { current: Some(open + 2), maximum: Some(open + 1000) };
    prlimit(Some(server), Resource::Nofile, limit).unwrap();
    let clients: Vec<_> = (0..8).map(|_| TcpStream::connect("127.0.0.1:80").unwrap()).collect();
    let failed = "cannot accept connections now";
    until("a warning is logged", || site.log().contains(failed));
    // Waits long enough for more than one attempt.
    std::thread::sleep(Duration::from_millis(300));
    prlimit(Some(server), Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    assert!(site.get("/sub/page.html", "").0.contains("200 OK"));
    assert_eq!(site.log().matches(failed).count(), 1, "{}", site.log());
    drop(clients);
}

#[test]
fn vanished_clients_are_detected_and_a_live_one_with_a_zero_window_is_kept() {
    let Some(site) = Site::with("dead", &["--dead-after", "3s", "--trickles", "off"]) else {
        return;
    };
    let status = site.status();
    assert_eq!(status["name"], "serve-80");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert!(status["uptime"].as_f64().unwrap() > 0.0);
    fs::write(site.dir.join("huge.bin"), vec![7; 30_000_000]).unwrap();
    let mut idle = site.say("HEAD /sub/page.html HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut shut = site.say("GET /huge.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    until("both requests count", || site.tcp("open") == 2 && site.tcp("requests") == 2);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(site.tcp("open"), 2, "a live connection was closed");
    let mut first = vec![0; 20_000_000];
    shut.read_exact(&mut first).unwrap();
    let rules = "add table inet vanish; add chain inet vanish in { type filter hook input \
        priority 0; policy drop; }";
    assert!(Command::new("nft").arg(rules).status().unwrap().success());
    until("both are closed", || site.tcp("open") == 0);
    idle.set_nonblocking(true).unwrap();
    let _ = idle.read(&mut [0; 1]);
}
