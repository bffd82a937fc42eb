//! `viaduct dash` as HTTP clients and a browser see it, with real services.
#![allow(clippy::unwrap_used)] // a test may panic

mod browser;
mod cdp;
#[path = "../common/mod.rs"]
mod common;
mod heap;
mod requests;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use viaduct_sys::process::Process;

use common::{free_port, until};

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");

/// Creates an empty directory for a test. Its path is short enough for sockets.
fn scratch(test: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("viaduct-dash-{test}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Running dashboard.
struct Dash {
    at: SocketAddr,
    #[allow(dead_code, reason = "ends the process when it is dropped")]
    process: Process,
}

impl Dash {
    /// Starts the dashboard of the services in `run_dir` at a free port of `ip`.
    fn start(run_dir: &Path, ip: &str, options: &[&str]) -> Dash {
        Dash::start_by(&[VIADUCT], run_dir, ip, options)
    }

    /// Starts the dashboard by the command line that begins with `words`.
    fn start_by(words: &[&str], run_dir: &Path, ip: &str, options: &[&str]) -> Dash {
        let at: SocketAddr = format!("{ip}:{}", free_port()).parse().unwrap();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["dash", "--listen", &at.to_string(), "--run-dir"])
            .arg(run_dir);
        command.args(options);
        let dash = Dash { at, process: Process::spawn(command).unwrap() };
        until("the dashboard listens", || dash.connect_now().is_some());
        dash
    }

    fn connect_now(&self) -> Option<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.at.port())).ok()
    }

    fn connect(&self) -> TcpStream {
        let stream = self.connect_now().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream
    }

    /// Sends a request, and returns the response.
    fn answer(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.answer(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// Opens the stream of events, and reads up to the end of its first list of services, or up to
    /// a refusal.
    fn watch(&self) -> (TcpStream, String) {
        let mut stream = self.connect();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        // An empty line ends an event; the CRLF after it ends the HTTP chunk.
        let is_whole = |text: &str| text.contains("event: list") && text.ends_with("\n\n\r\n");
        while !is_whole(&text) && !text.contains(" 503 ") {
            text += &more(&mut stream);
        }
        (stream, text)
    }
}

/// Next bytes of a stream, as text.
fn more(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 64 << 10];
    let length = stream.read(&mut bytes).unwrap();
    assert!(length > 0, "the dashboard has closed the stream");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// Starts a file server of `dir`, with its status socket in `run_dir`. Returns the process and its
/// port.
fn serve(dir: &Path, run_dir: &Path) -> (Process, u16) {
    let port = free_port();
    let mut command = Command::new(VIADUCT);
    command.arg("serve").arg(dir).arg("--run-dir").arg(run_dir);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    let server = Process::spawn(command).unwrap();
    let socket = run_dir.join(format!("serve-{port}.sock"));
    until("the server is up", || UnixStream::connect(&socket).is_ok());
    (server, port)
}
