//! BIRD: a routing daemon.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use viaduct_sys::process::Process;

use super::READY;
use crate::stop;
use crate::topology::{Node, Scratch, TopologyError};

/// Running daemon; stopped when dropped.
#[derive(Debug)]
pub struct Bird {
    _process: Process,
    _scratch: Scratch,
}

impl Bird {
    /// Starts the daemon in `node` with this configuration. Fails if the program is missing
    /// (`scripts/need test` installs it), or refuses the configuration.
    pub fn start(node: &Node, configuration: &str) -> Result<Bird, TopologyError> {
        let wrong = |e| node.io("write the configuration of bird".into(), e);
        let scratch = Scratch::new().map_err(wrong)?;
        let file = scratch.write("bird.conf", configuration).map_err(wrong)?;
        let file = file.to_string_lossy();
        node.run("bird", &["-p", "-c", &file])?;
        let socket = scratch.path().join("bird.ctl");
        let mut command = node.command("bird");
        command.args(["-f", "-c", &file, "-s"]).arg(&socket);
        command.arg("-P").arg(scratch.path().join("bird.pid"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = node.spawn(command)?;
        let begun = Instant::now();
        while !socket.exists() {
            stop::check()?;
            if begun.elapsed() > READY {
                let (node, what) = (node.name().to_owned(), "start of bird".to_owned());
                return Err(TopologyError::TimedOut { node, what, after: READY });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Bird { _process: process, _scratch: scratch })
    }
}
