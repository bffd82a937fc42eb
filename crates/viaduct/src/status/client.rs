//! Access to the status of running services.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, panic, thread};

use serde::{Deserialize, Serialize};
use viaduct_proto::overlay::Table;

use super::agent_page::AgentPage;
use super::colours::Colours;
use super::gateway_page::GatewayPage;
use super::overlay_page::OverlayPage;
use super::proxy_page::ProxyPage;
use super::serve_page::ServePage;
use super::spray_page::SprayPage;
use crate::engine::snapshot::ProxyStatus;
use crate::gateway::status::Status;
use crate::hop_agent::status::AgentStatus;
use crate::serve::status::ServeStatus;
use crate::spray::status::SprayStatus;
use crate::status_socket;

/// Time within which the complete answer must arrive, longer than any service takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of an answer: more than the status of 4096 peers needs.
pub(crate) const MAX_ANSWER: usize = 64 << 20;
/// Maximum number of services that are read at the same time.
const MAX_READERS: usize = 32;

/// Status of a running service. A JSON object is parsed as the first variant whose required fields
/// it has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServiceStatus {
    /// Status of a proxy.
    Proxy(Box<ProxyStatus>),
    /// Status of a file server.
    Serve(Box<ServeStatus>),
    /// Status of an overlay node.
    Overlay(Box<Table>),
    /// Status of a spray.
    Spray(Box<SprayStatus>),
    /// Status of a hop agent.
    Agent(Box<AgentStatus>),
    /// Status of a gateway.
    Gateway(Box<Status>),
}

impl ServiceStatus {
    /// Formats the status as text, with rates if an earlier status of the same service is given.
    pub fn page(&self, before: Option<&ServiceStatus>, colours: Colours) -> String {
        match self {
            ServiceStatus::Proxy(now) => {
                let before = before.and_then(|before| match before {
                    ServiceStatus::Proxy(then) => Some(&**then),
                    _ => None,
                });
                ProxyPage::new(now, before, colours).to_string()
            }
            ServiceStatus::Serve(status) => ServePage { status, colours }.to_string(),
            ServiceStatus::Overlay(table) => OverlayPage { table, colours }.to_string(),
            ServiceStatus::Spray(status) => SprayPage { status, colours }.to_string(),
            ServiceStatus::Agent(status) => AgentPage { status, colours }.to_string(),
            ServiceStatus::Gateway(now) => {
                let before = before.and_then(ServiceStatus::gateway);
                GatewayPage::new(now, before, colours).to_string()
            }
        }
    }

    /// Returns whether a part of the service does not answer, so that counters may be old.
    pub fn hangs(&self) -> bool {
        matches!(self, ServiceStatus::Proxy(status) if status.hangs)
    }

    /// Status of a gateway; `None` if the service is not a gateway.
    pub fn gateway(&self) -> Option<&Status> {
        match self {
            ServiceStatus::Gateway(status) => Some(status),
            _ => None,
        }
    }
}

/// Status of each service, by name, or the reason why it cannot be read.
pub type Answers = BTreeMap<String, Result<ServiceStatus, Unread>>;

/// Reason why the status of a service cannot be read. The text fits a cell of a table.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// There is no socket.
    #[error("not running")]
    Missing,
    /// Nothing listens on the socket.
    #[error("killed: it left its socket behind")]
    Killed,
    /// The socket belongs to another user.
    #[error("only the service's user and root may read its status")]
    Denied,
    /// The service accepts no connection, does not send all of its status in time, or sends nothing
    /// or far too much.
    #[error("it does not answer")]
    Silent,
    /// Another error of the socket.
    #[error("its status cannot be read: {0}")]
    Failed(io::Error),
    /// The answer is not a status.
    #[error("it may be of another version: {0}")]
    Unknown(serde_json::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Unread {
        match error.kind() {
            ErrorKind::NotFound => Unread::Missing,
            ErrorKind::ConnectionRefused => Unread::Killed,
            ErrorKind::PermissionDenied => Unread::Denied,
            // The read timed out, or the queue of connections is full.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Unread::Silent,
            _ => Unread::Failed(error),
        }
    }
}

/// Reads the status at the socket `path`.
///
/// # Errors
/// No service answers, or its answer is not of this version.
pub fn read(path: &Path) -> Result<ServiceStatus, Unread> {
    let text = status_socket::read(path, MAX_ANSWER, ANSWER_TIMEOUT)?;
    status_socket::parse(&text).map_err(Unread::Unknown)
}

/// Reads the status of each service in these directories.
///
/// # Errors
/// A directory cannot be read.
pub fn read_all(dirs: &[PathBuf]) -> io::Result<Answers> {
    let mut answers = Answers::new();
    for some in sockets(dirs)?.chunks(MAX_READERS) {
        thread::scope(|scope| {
            let readers: Vec<_> =
                some.iter().map(|(name, path)| (name, scope.spawn(move || read(path)))).collect();
            for (name, reader) in readers {
                let answer = reader.join().unwrap_or_else(|cause| panic::resume_unwind(cause));
                answers.insert(name.clone(), answer);
            }
        });
    }
    Ok(answers)
}

/// Path of the status socket of the service `name`.
pub fn socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}

/// Status sockets in these directories, with the names of their services. If several sockets have
/// the same name, the result has the one in the first directory. A directory that does not exist
/// counts as empty.
///
/// # Errors
/// A directory cannot be read.
pub fn sockets(dirs: &[PathBuf]) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for dir in dirs {
        all.extend(sockets_in(dir)?);
    }
    // The sort is stable, so the first directory takes precedence.
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.dedup_by(|(a, _), (b, _)| a == b);
    Ok(all)
}

fn sockets_in(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let named = |path: PathBuf| {
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        let name = path.file_stem()?.to_str()?.to_owned();
        // No service has such a name, and a terminal would interpret it.
        let is_plain = !name.contains(char::is_control);
        (is_socket && is_plain).then_some((name, path))
    };
    Ok(entries.filter_map(|entry| named(entry.ok()?.path())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn every_service_of_a_directory_has_its_status_or_a_reason() {
        let dir =
            std::env::temp_dir().join(format!("viaduct-status-client-{}", std::process::id()));
        let none = dir.join("none");
        let both = [none, dir.clone()];
        assert!(read_all(&both).unwrap().is_empty(), "there is no directory yet");
        fs::create_dir_all(&dir).unwrap();
        drop(UnixListener::bind(socket(&dir, "dead")).unwrap());
        drop(UnixListener::bind(socket(&dir, "\u{1b}[2J")).unwrap());
        fs::write(dir.join("a.changes.json"), "{}").unwrap();
        let live = UnixListener::bind(socket(&dir, "a")).unwrap();
        let other = UnixListener::bind(socket(&dir, "other")).unwrap();
        let answering = thread::spawn(move || {
            let status = Status { site: "a\u{1b}[2J".to_owned(), ..Status::default() };
            let text = serde_json::to_vec(&status).unwrap();
            live.accept().unwrap().0.write_all(&text).unwrap();
            other.accept().unwrap().0.write_all(b"{\"site\":1}").unwrap();
        });
        let answers = read_all(&both).unwrap();
        answering.join().unwrap();
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["a", "dead", "other"]);
        let Ok(ServiceStatus::Gateway(seen)) = &answers["a"] else { panic!("no gateway") };
        assert_eq!(seen.site, "a?[2J");
        assert!(matches!(answers["dead"], Err(Unread::Killed)));
        assert!(matches!(answers["other"], Err(Unread::Unknown(_))));
        assert!(matches!(read(&socket(&dir, "none")), Err(Unread::Missing)));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_service_that_hangs_is_not_waited_for() {
        let dir = std::env::temp_dir().join(format!("viaduct-status-hangs-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = socket(&dir, "hung");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _queued = UnixStream::connect(&path).unwrap();
        assert!(matches!(read(&path), Err(Unread::Silent)), "its queue is full");
        fs::remove_dir_all(&dir).unwrap();
    }
}
