//! Headless Chromium, driven by the DevTools protocol over its pipe: JSON messages, each ended by
//! a zero byte.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use viaduct_sys::process::Process;

/// Time limit for an answer of the browser.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Browser with one page.
pub(super) struct Browser {
    #[allow(dead_code, reason = "ends the process when it is dropped")]
    process: Process,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last: u64,
    /// Addresses of all requests of the page.
    pub(super) requests: Vec<String>,
}

impl Browser {
    /// Starts a browser with its profile in `profile`, and an empty page.
    pub(super) fn start(profile: &Path) -> Browser {
        // The browser reads commands from descriptor 3, and writes to descriptor 4.
        let mut command = Command::new("sh");
        let script = "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec chromium \"$@\"";
        command.args(["-c", script, "sh", "--headless=new", "--no-sandbox", "--disable-gpu"]);
        command.args(["--remote-debugging-pipe", "--no-first-run", "--disable-dev-shm-usage"]);
        command.args(["--disable-background-networking", "--disable-component-update"]);
        command.arg(format!("--user-data-dir={}", profile.display())).arg("about:blank");
        // The browser leaves a directory of temporary files if it is killed.
        fs::create_dir_all(profile).unwrap();
        command.env("TMPDIR", profile);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let commands = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let read = serde_json::from_slice(&message);
                if read.is_ok_and(|message: Value| sender.send(message).is_err()) {
                    break;
                }
            }
        });
        let requests = Vec::new();
        let mut browser = Browser { process, commands, messages, session: None, last: 0, requests };
        let page = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Network", "Page", "Runtime"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub(super) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let mut message = self.messages.recv_timeout(ANSWER_TIMEOUT).unwrap();
            if message["method"] == "Network.requestWillBeSent" {
                let url = message["params"]["request"]["url"].as_str().unwrap();
                self.requests.push(url.to_owned());
            }
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
        }
    }

    /// Value of a JavaScript expression in the page.
    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }
}
