//! Web server with one file or a library of documents in one host, and curl in another.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use viaduct_proto::rng::Rng;
use viaduct_sys::process::Process;

use super::{Documents, admin_command, answer, run, serve};
use crate::topology::{Host, Scratch, TopologyError};

/// Running nginx, or Python's server if nginx is missing, that serves files of random bytes.
#[derive(Debug)]
pub struct WebServer {
    host: Host,
    scratch: Scratch,
    software: &'static str,
    _process: Process,
}

/// Completed download whose content equals the served file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Download {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Time from the start of the connection to the last byte.
    pub time: Duration,
    /// Time from the start of the connection to the first byte.
    pub first_byte: Duration,
}

impl Download {
    /// Returns the file's bits per second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.time.as_secs_f64()
    }
}

const PORT: u16 = 8080;

impl WebServer {
    /// Starts the server in `host` with a file of `bytes` random bytes derived from `seed`.
    pub fn start(host: &Host, bytes: usize, seed: u64) -> Result<WebServer, TopologyError> {
        let mut content = vec![0; bytes];
        Rng::from_seed(seed).fill(&mut content);
        Self::with_files(host, |directory| fs::write(directory.join("file"), &content))
    }

    /// Starts the server in `host` with `documents`, each at a path that is its size in KB: `/13`.
    pub fn with_documents(host: &Host, documents: &Documents) -> Result<WebServer, TopologyError> {
        Self::with_files(host, |directory| documents.write(directory))
    }

    fn with_files(
        host: &Host,
        write: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<WebServer, TopologyError> {
        let wrong = |e| host.io("write the files to serve".into(), e);
        let scratch = Scratch::new().map_err(wrong)?;
        write(scratch.path()).map_err(wrong)?;
        let (software, process) = start_any(host, &scratch)?;
        Ok(WebServer { host: host.clone(), scratch, software, _process: process })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.v4().into(), PORT)
    }

    /// Returns `nginx` or `python3`.
    pub fn software(&self) -> &str {
        self.software
    }

    /// Downloads the file with curl in `from`. Fails if curl fails or exceeds `limit`, or the
    /// content differs.
    pub fn download(&self, from: &Host, limit: Duration) -> Result<Download, TopologyError> {
        let got = self.scratch.path().join(format!("got-{}", from.name()));
        let mut curl = from.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--output"]);
        curl.arg(&got).args(["--write-out", "%{time_total} %{time_starttransfer}"]);
        curl.arg(format!("http://{}:{PORT}/file", self.host.v4()));
        let said = run(from, curl, limit)?;
        if !said.success {
            return Err(answer(from, format!("curl failed: {}", said.stderr.trim())));
        }
        let read = |path| fs::read(path).map_err(|e| from.io("read a file of curl's".into(), e));
        let (served, arrived) = (read(self.scratch.path().join("file"))?, read(got)?);
        if served != arrived {
            let lengths = format!("{} bytes of {}", arrived.len(), served.len());
            return Err(answer(
                from,
                format!("curl received a file that differs from the served one: {lengths}"),
            ));
        }
        let times: Option<Vec<f64>> = said.stdout.split(' ').map(|t| t.parse().ok()).collect();
        match times.as_deref() {
            Some([total, first]) => Ok(Download {
                bytes: served.len() as u64,
                time: Duration::from_secs_f64(*total),
                first_byte: Duration::from_secs_f64(*first),
            }),
            _ => Err(answer(from, format!("curl printed {:?}, not two times", said.stdout))),
        }
    }
}

fn start_any(host: &Host, scratch: &Scratch) -> Result<(&'static str, Process), TopologyError> {
    match start_nginx(host, scratch) {
        Err(TopologyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let mut python = host.command("python3");
            python.args(["-m", "http.server", "--directory"]).arg(scratch.path());
            python.arg(PORT.to_string());
            Ok(("python3", serve(host, python, PORT)?))
        }
        started => Ok(("nginx", started?)),
    }
}

fn start_nginx(host: &Host, scratch: &Scratch) -> Result<Process, TopologyError> {
    let dir = scratch.path().display();
    // A single foreground process that writes only into the scratch directory. It runs as root,
    // which may be the only user in a user namespace.
    let config = format!(
        "daemon off; master_process off; user root root; pid {dir}/pid; error_log stderr;
         events {{}}
         http {{
           access_log off; sendfile on;
           client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
           fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi;
           scgi_temp_path {dir}/scgi;
           server {{ listen {PORT}; listen [::]:{PORT}; root {dir}; }}
         }}"
    );
    let config = scratch
        .write("nginx.conf", config)
        .map_err(|e| host.io("write nginx's configuration".into(), e))?;
    let mut nginx = admin_command(host, "nginx");
    nginx.args(["-e", "stderr", "-p"]).arg(scratch.path()).arg("-c").arg(config);
    serve(host, nginx, PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    #[test]
    fn a_download_equals_the_served_file_and_the_files_are_removed() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let server = WebServer::start(world.b1(), 1_000_000, 1).unwrap();
        let download = server.download(world.a1(), Duration::from_secs(10)).unwrap();
        assert_eq!(download.bytes, 1_000_000);
        assert!(download.first_byte <= download.time);
        let dir = server.scratch.path().to_owned();
        drop(server);
        assert!(!dir.exists());
    }

    #[test]
    fn a_download_over_a_dead_link_ends_in_time() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let server = WebServer::start(world.b1(), 1000, 1).unwrap();
        world.gateway_b().ip(&["link set wan0 down".into()]).unwrap();
        let text = server.download(world.a1(), Duration::from_millis(300)).unwrap_err().to_string();
        assert_eq!(text, "in a1: curl not done after 0.3 s");
    }
}
