//! How a row is run: directly, and under chains.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
const ROW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/matrix/row.sh");
/// Within which a client ends, in seconds; what hangs is shown as such.
const LIMIT: &str = "40";
/// Within which a server listens, and within which it ends.
const PATIENCE: Duration = Duration::from_secs(15);

/// A row, in a directory of its own.
struct Row {
    name: &'static str,
    dir: PathBuf,
}

/// A server that listens at `port`, until it is dropped.
struct Server {
    process: Child,
    port: u16,
    /// Where its clients may listen.
    spare: u16,
    log: PathBuf,
}

/// Runs a row in all ways; panics with all that differs.
pub(crate) fn compare(name: &'static str) {
    let row = Row::new(name);
    let needs = row.part("needs").output().unwrap();
    let words = String::from_utf8(needs.stdout).unwrap();
    let missing: Vec<&str> = words.split_whitespace().filter(|need| !is_there(need)).collect();
    if !missing.is_empty() {
        eprintln!("SKIPPED: {name}: without {}; scripts/need test", missing.join(", "));
        return;
    }
    let setup = row.part("setup").output().unwrap();
    assert!(setup.status.success(), "{setup:?}");

    let direct = {
        let server = row.serve("direct", &[]);
        row.client("direct", &[], &server)
    };
    assert!(!direct.stdout.is_empty() && direct.status.code().is_some(), "direct: {direct:?}");
    let key = row.key();
    let chains: [(&str, Vec<&str>); 2] =
        [("latency", vec!["+latency:delay=1ms"]), ("crypt", vec!["+compress", &key])];
    let mut wrong = Vec::new();
    for (chain, handlers) in &chains {
        let server = row.serve(chain, &[&["--via", "cgroup"], &handlers[..]].concat());
        for via in vias() {
            let way = format!("{chain}-{via}");
            let began = Instant::now();
            let words = [&handlers[..], &["--via", via, "--report"]].concat();
            let client = row.client(&way, &words, &server);
            eprintln!("{name} {way}: {:.1} s", began.elapsed().as_secs_f32());
            if let Some(what) = differs(&direct, &client) {
                wrong.push(format!("{name}, {way}: {what}\nserver: {}", server.said()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    fs::remove_dir_all(&row.dir).unwrap();
}

/// The interposers for clients; a developer who looks into one names it in `MATRIX_VIA`.
fn vias() -> impl Iterator<Item = &'static str> {
    let only = std::env::var("MATRIX_VIA").ok();
    ["cgroup", "seccomp", "preload"]
        .into_iter()
        .filter(move |via| only.as_deref().is_none_or(|only| only == *via))
}

/// What `wrapped` did otherwise than `direct`.
fn differs(direct: &Output, wrapped: &Output) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&wrapped.stderr);
    let what = if wrapped.status.signal().is_some() {
        "does not end".to_owned()
    } else if direct.status != wrapped.status {
        format!("ends with {}, not {}", wrapped.status, direct.status)
    } else if direct.stdout != wrapped.stdout {
        "says something else".to_owned()
    } else if !said.contains(" passed the handlers by ") {
        "no flow passed the handlers".to_owned()
    } else if went_direct(&said) {
        "a flow went direct".to_owned()
    } else {
        return None;
    };
    let [direct, wrapped] = [direct, wrapped].map(|of| text(&of.stdout));
    Some(format!("{what}\n--- direct\n{direct}--- wrapped\n{wrapped}--- its words\n{said}"))
}

/// Whether a report names a flow that went direct.
fn went_direct(report: &str) -> bool {
    let direct = report.lines().skip_while(|line| !line.contains("went direct")).skip(1);
    direct.take_while(|line| line.starts_with("viaduct:  ")).any(|line| line.contains(" tcp "))
}

impl Row {
    fn new(name: &'static str) -> Row {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("matrix").join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Row { name, dir }
    }

    /// A part of it, directly.
    fn part(&self, part: &str) -> Command {
        self.command(part, &["sh"])
    }

    /// A part of it, by what begins with `words`.
    fn command(&self, part: &str, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args([ROW, self.name, part]);
        command.env("DIR", &self.dir).current_dir(&self.dir).stdin(Stdio::null());
        command
    }

    /// A key for both ends, as the handler's words.
    fn key(&self) -> String {
        let path = self.dir.join("site.key").display().to_string();
        let made = Command::new(VIADUCT).args(["key", "new", "--out", &path]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        format!("+crypt:key={path}")
    }

    /// The server, wrapped if there are `words` for that.
    fn serve(&self, way: &str, words: &[&str]) -> Server {
        let [port, spare] = ports();
        let log = self.dir.join(format!("server-{way}.log"));
        let out = fs::File::create(&log).unwrap();
        let process = self
            .command("server", &wrapped(words))
            .env("PORT", port.to_string())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .process_group(0)
            .spawn()
            .unwrap();
        Server { process, port, spare, log }
    }

    /// The client, wrapped if there are `words` for that: all of it.
    fn client(&self, way: &str, words: &[&str], server: &Server) -> Output {
        server.wait();
        let here = self.dir.join(way);
        fs::create_dir_all(&here).unwrap();
        let words = [&["timeout", "--signal=KILL", LIMIT], &wrapped(words)[..]].concat();
        self.command("client", &words)
            .env("PORT", server.port.to_string())
            .env("SPARE", server.spare.to_string())
            .env("HERE", here)
            .output()
            .unwrap()
    }
}

/// Two ports of the kernel's choice.
fn ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// What a command begins with.
fn wrapped<'a>(words: &[&'a str]) -> Vec<&'a str> {
    if words.is_empty() {
        return vec!["sh"];
    }
    [&[VIADUCT, "run"], words, &["--", "sh"]].concat()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/lib/git-core"];
    path.split(':').chain(more).any(|at| Path::new(at).join(program).exists())
        || program == "postgres" && Path::new("/usr/lib/postgresql").exists()
}

impl Server {
    /// Until it listens. The kernel is asked: a connection would be one of its clients.
    fn wait(&self) {
        let at = format!("0100007F:{:04X} ", self.port);
        let listens = |line: &str| line.contains(&at) && line.split(' ').any(|word| word == "0A");
        let sockets = || ["tcp", "tcp6"].map(|of| fs::read_to_string(format!("/proc/net/{of}")));
        let deadline = Instant::now() + PATIENCE;
        while !sockets().into_iter().flatten().any(|text| text.lines().any(listens)) {
            assert!(Instant::now() < deadline, "the server does not listen: {}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// To all of its process group, which is its own.
    fn signal(&self, name: &str) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args([&format!("-{name}"), "--", &group]).output();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("TERM");
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        self.signal("KILL");
        let _ = self.process.wait();
    }
}
