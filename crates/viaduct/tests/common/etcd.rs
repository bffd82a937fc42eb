//! A real etcd.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use viaduct_sys::process::Process;

use super::{free_port, within};

/// etcd on the loopback interface; ends when dropped.
pub(crate) struct Etcd {
    pub(crate) port: u16,
    pub(crate) dir: PathBuf,
    process: Option<Process>,
}

impl Etcd {
    pub(crate) fn start(dir: &Path) -> Etcd {
        let mut etcd = Etcd { port: free_port(), dir: dir.join("etcd"), process: None };
        etcd.restart();
        etcd
    }

    /// Starts etcd, or starts it again, with the data in `dir`.
    pub(crate) fn restart(&mut self) {
        let (client, peer) = (format!("http://127.0.0.1:{}", self.port), free_port());
        let peer = format!("http://127.0.0.1:{peer}");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&self.dir).args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
        command.args(["--unsafe-no-fsync"]).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(Process::spawn(command).unwrap());
        assert!(
            within(Duration::from_secs(20), || self.post("range", "{\"key\":\"YQ==\"}")),
            "etcd is not up"
        );
    }

    fn post(&self, what: &str, body: &str) -> bool {
        let url = format!("http://127.0.0.1:{}/v3/kv/{what}", self.port);
        let mut curl = Command::new("curl");
        curl.args(["-sf", "--noproxy", "*", "-d", body, &url]).stdout(Stdio::null());
        curl.status().unwrap().success()
    }

    /// Kills etcd.
    pub(crate) fn stop(&mut self) {
        self.process = None;
    }

    /// Body of a request about all keys that begin with `prefix`.
    fn range(prefix: &str) -> String {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        format!("{{\"key\":\"{}\",\"range_end\":\"{}\"}}", encode(prefix.as_bytes()), encode(&end))
    }

    /// Deletes all keys that begin with `prefix`.
    pub(crate) fn delete_all(&self, prefix: &str) {
        assert!(self.post("deleterange", &Etcd::range(prefix)));
    }

    /// Number of keys that begin with `prefix`.
    pub(crate) fn count(&self, prefix: &str) -> usize {
        let url = format!("http://127.0.0.1:{}/v3/kv/range", self.port);
        let mut curl = Command::new("curl");
        let out = curl.args(["-sf", "--noproxy", "*", "-d", &Etcd::range(prefix), &url]).output();
        String::from_utf8(out.unwrap().stdout).unwrap().matches("\"key\"").count()
    }

    /// Stores a value.
    pub(crate) fn put(&self, key: &str, value: &[u8]) {
        let (key, value) = (encode(key.as_bytes()), encode(value));
        assert!(self.post("put", &format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}")));
    }
}

/// Bytes in base64.
fn encode(bytes: &[u8]) -> String {
    let mut base64 = Command::new("base64");
    let mut child = base64.arg("-w0").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}
