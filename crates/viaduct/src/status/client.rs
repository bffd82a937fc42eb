//! Access to the status of a running service.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use viaduct_proto::overlay::Table;

use super::ServiceSelector;
use super::colours::Colours;
use super::gateway_page::GatewayPage;
use super::overlay_page::OverlayPage;
use super::proxy_page::ProxyPage;
use super::serve_page::ServePage;
use crate::engine::snapshot::ProxyStatus;
use crate::gateway::snapshot::Status;
use crate::serve::status::ServeStatus;

/// Read timeout, longer than any gateway takes to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of an answer: more than 4096 peers need.
const MAX_ANSWER: u64 = 64 << 20;

/// Status of a running service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ServiceStatus {
    /// Status of a proxy.
    Proxy(Box<ProxyStatus>),
    /// Status of a file server.
    Serve(Box<ServeStatus>),
    /// Status of an overlay node.
    Overlay(Box<Table>),
    /// Status of a gateway.
    Gateway(Box<Status>),
}

impl ServiceStatus {
    /// Formats the status as text; with rates, if an earlier status of the same service is
    /// given.
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
            ServiceStatus::Gateway(now) => {
                let before = before.and_then(ServiceStatus::gateway);
                GatewayPage::new(now, before, colours).to_string()
            }
        }
    }

    fn gateway(&self) -> Option<&Status> {
        match self {
            ServiceStatus::Gateway(status) => Some(status),
            _ => None,
        }
    }

    /// Formats one line per peer for a gateway, and everything for other services. Returns the
    /// text and the number of lines of its header.
    pub fn brief(&self, before: Option<&ServiceStatus>, colours: Colours) -> (String, usize) {
        let Some(now) = self.gateway() else { return (self.page(before, colours), 1) };
        GatewayPage::new(now, before.and_then(ServiceStatus::gateway), colours).brief()
    }
}

/// Path of a status socket.
#[derive(Debug)]
pub struct StatusClient(PathBuf);

impl StatusClient {
    /// Finds the selected service.
    ///
    /// # Errors
    /// No service runs, or several run and none was named.
    pub fn find(selector: &ServiceSelector) -> Result<StatusClient> {
        if let Some(path) = &selector.socket {
            return Ok(StatusClient(path.clone()));
        }
        if let Some(name) = &selector.name {
            return Ok(StatusClient(selector.run_dir.path().join(format!("{name}.sock"))));
        }
        let dir = &selector.run_dir.path();
        let mut sockets = sockets(dir)?;
        if sockets.len() > 1 {
            // The socket of a killed service remains, but does not accept connections.
            sockets.retain(|path| UnixStream::connect(path).is_ok());
        }
        match sockets.as_slice() {
            [one] => Ok(StatusClient(one.clone())),
            [] => bail!(
                "no service answers in {}: none runs, or it has another directory (--run-dir)",
                dir.display()
            ),
            many => {
                let names: Vec<_> =
                    many.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
                bail!("several services run here; choose one by --name: {}", names.join(", "))
            }
        }
    }

    /// Reads the status.
    ///
    /// # Errors
    /// No service answers, or its answer is not of this version.
    pub fn read(&self) -> Result<ServiceStatus> {
        let path = self.0.display();
        let stream = UnixStream::connect(&self.0).map_err(|e| match e.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("no service answers: there is no {path}"),
            ErrorKind::ConnectionRefused => {
                anyhow::anyhow!("no service answers at {path}: the service that made it was killed")
            }
            ErrorKind::PermissionDenied => {
                anyhow::anyhow!("{path}: only the service's user (root) may read it")
            }
            _ => anyhow::anyhow!("no service answers at {path}: {e}"),
        })?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        // Half-closing tells an overlay node that no request follows.
        stream.shutdown(Shutdown::Write)?;
        let mut text = String::new();
        let read = stream.take(MAX_ANSWER).read_to_string(&mut text);
        read.with_context(|| format!("the service at {path} does not answer"))?;
        serde_json::from_str(&text)
            .with_context(|| format!("the service at {path} may be of another version"))
    }
}

/// Status sockets in `dir`, sorted by name.
fn sockets(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "sock"))
        .collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;

    fn selector(run_dir: &Path, name: Option<&str>) -> ServiceSelector {
        ServiceSelector { socket: None, name: name.map(str::to_owned), run_dir: run_dir.into() }
    }

    fn error(selector: &ServiceSelector) -> String {
        format!("{:#}", StatusClient::find(selector).and_then(|client| client.read()).unwrap_err())
    }

    #[test]
    fn the_only_live_gateway_is_found_and_errors_give_a_remedy() {
        let dir =
            std::env::temp_dir().join(format!("viaduct-status-client-{}", std::process::id()));
        assert!(error(&selector(&dir, None)).starts_with("no service answers in"));
        fs::create_dir_all(&dir).unwrap();
        drop(UnixListener::bind(dir.join("dead.sock")).unwrap());
        assert!(error(&selector(&dir, None)).contains("was killed"));

        let live = UnixListener::bind(dir.join("a.sock")).unwrap();
        let asked = dir.clone();
        let asking =
            std::thread::spawn(move || StatusClient::find(&selector(&asked, None)).unwrap().read());
        live.accept().unwrap(); // the liveness check
        let status = Status { site: "a".to_owned(), ..Status::default() };
        live.accept().unwrap().0.write_all(&serde_json::to_vec(&status).unwrap()).unwrap();
        let ServiceStatus::Gateway(seen) = asking.join().unwrap().unwrap() else {
            panic!("no gateway")
        };
        assert_eq!(seen.site, "a");

        let _other = UnixListener::bind(dir.join("b.sock")).unwrap();
        let many = error(&selector(&dir, None));
        assert_eq!(many, "several services run here; choose one by --name: a, b");
        assert!(error(&selector(&dir, Some("c"))).contains("there is no "));
        fs::remove_dir_all(&dir).unwrap();
    }
}
