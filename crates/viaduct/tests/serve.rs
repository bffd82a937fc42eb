//! `viaduct serve` over TCP: what a browser would see.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use viaduct_sys::netns::Netns;
use viaduct_sys::process::Process;

/// A directory, served at a port of its own namespace, which this thread is in.
struct Site {
    dir: PathBuf,
    /// Run directory, and logs.
    beside: PathBuf,
    server: Process,
}

impl Site {
    fn new() -> Option<Site> {
        Site::with("plain", &[])
    }

    /// One with further options of the server; `DIR` in them is a scratch directory beside the files.
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
        let (beside, dir) = (dir.join("beside"), dir.join("site"));
        fs::create_dir_all(&beside).unwrap();
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("big.bin"), common::random(3_000_000)).unwrap();
        fs::write(dir.join("sub/page.html"), "<p>page</p>").unwrap();
        let mut command = netns.command(env!("CARGO_BIN_EXE_viaduct"));
        command.arg("serve").arg(&dir).args(["--listen", "127.0.0.1:80"]).stderr(Stdio::null());
        command.arg("--run-dir").arg(&beside);
        let beside_text = beside.to_str().unwrap();
        command.args(options.iter().map(|option| option.replace("DIR", beside_text)));
        let server = Process::spawn(command).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect("127.0.0.1:80").is_err() {
            assert!(Instant::now() < deadline, "the server does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Site { dir, beside, server })
    }

    /// All that comes back for these bytes.
    fn ask(&self, request: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect("127.0.0.1:80").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        common::rest(&mut stream)
    }

    /// Head and body of the one response to it.
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
        let _ = fs::remove_dir_all(self.beside.parent().unwrap());
    }
}

#[test]
fn files_parts_pages_and_errors() {
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
    // Several on one connection, sent at once.
    let twice = "HEAD /big.bin HTTP/1.1\r\nHost: h\r\n\r\n\r\n\
                 GET /sub/page.html HTTP/1.2\r\nHost: h\r\nConnection: close\r\n\r\n";
    let answers = String::from_utf8(site.ask(twice)).unwrap();
    assert!(answers.ends_with("<p>page</p>") && answers.matches("HTTP/1.1 200").count() == 2);
}

#[test]
fn requests_are_logged_and_a_file_that_was_moved_away_is_opened_again() {
    let Some(site) = Site::with("log", &["--access-log", "DIR/access.log"]) else { return };
    let log = site.beside.join("access.log");
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
        fs::rename(&log, site.beside.join("old.log")).unwrap();
        let pid = site.server.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        wait_for_lines(&log, 0);
        site.get("/sub/", "");
        assert!(wait_for_lines(&log, 1).contains("GET /sub/ HTTP/1.1\" 200 "));
    }
}

/// The text of a log once it is there and has so many lines.
fn wait_for_lines(log: &Path, lines: usize) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = fs::read_to_string(log);
        match text {
            Ok(text) if text.lines().count() >= lines => return text,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
