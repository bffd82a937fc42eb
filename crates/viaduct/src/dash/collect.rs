//! Reads the status of all services concurrently.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::run_dir::listed;
use crate::status::client::{self, MAX_ANSWER, ServiceStatus, Unread};

/// Maximum number of services.
pub(super) const MAX_SERVICES: usize = 64;
/// Time within which a service must answer. While a service does not answer, samples are taken at
/// this interval.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(800);

/// Name of a service, and its status or the reason why there is none.
pub(super) type Answer = (String, Result<ServiceStatus, String>);

/// Answers of the services in a directory, sorted by name.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Answer of each service.
    pub services: Vec<Answer>,
    /// Problem with the directory, or with the number of services.
    pub trouble: Option<String>,
}

/// Reads the status of the services whose sockets are in these directories.
pub(super) async fn answers(directories: &[PathBuf]) -> Answers {
    let mut sockets = match client::sockets(directories) {
        Ok(sockets) => sockets,
        Err(error) => {
            return Answers { services: Vec::new(), trouble: Some(error.to_string()) };
        }
    };
    let surplus = sockets.len().saturating_sub(MAX_SERVICES);
    let trouble = match (sockets.len(), surplus) {
        (0, _) => Some(format!("no service runs in {}", listed(directories))),
        (_, 0) => None,
        (_, more) => Some(format!("{more} more services; {MAX_SERVICES} are shown at most")),
    };
    sockets.truncate(MAX_SERVICES);
    let mut readers: JoinSet<Answer> = sockets.into_iter().map(answer).collect();
    let mut services = Vec::new();
    while let Some(answer) = readers.join_next().await {
        services.extend(answer.ok());
    }
    services.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    Answers { services, trouble }
}

async fn answer((name, socket): (String, PathBuf)) -> Answer {
    let status = timeout(ANSWER_TIMEOUT, read(&socket)).await.unwrap_or(Err(Unread::Silent));
    (name, status.map_err(|reason| reason.to_string()))
}

async fn read(socket: &Path) -> Result<ServiceStatus, Unread> {
    let mut stream = UnixStream::connect(socket).await?;
    // Half-closing tells an overlay node that no request follows.
    stream.shutdown().await?;
    let mut text = Vec::new();
    stream.take(MAX_ANSWER as u64 + 1).read_to_end(&mut text).await?;
    if text.is_empty() || text.len() > MAX_ANSWER {
        return Err(Unread::Silent);
    }
    serde_json::from_slice(&text).map_err(Unread::Unknown)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_service_that_ends_before_it_answers_is_not_of_another_version() {
        let dir = std::env::temp_dir().join(format!("viaduct-dash-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let ended = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
        assert!(matches!(read(&path).await, Err(Unread::Silent)));
        ended.await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
