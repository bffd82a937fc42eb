//! Common relays between a client and a server: HAProxy, nginx and Varnish. Each is configured
//! as its manual recommends for this purpose, with one thread where possible.

use std::net::SocketAddr;
use std::path::Path;

use viaduct_sys::process::Process;

use super::{on_core, serve};
use crate::topology::{Node, Scratch, TopologyError};

/// Relay program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Software {
    /// HAProxy in TCP mode with splicing.
    Haproxy,
    /// HAProxy with pipes of 1 MB, which is not its default.
    HaproxyLargePipes,
    /// nginx's stream module, which copies in user space.
    Nginx,
    /// Varnish, an HTTP cache, configured to pipe all requests.
    Varnish,
}

/// Running relay; stopped when dropped.
#[derive(Debug)]
pub struct Relay {
    process: Process,
    _scratch: Scratch,
}

impl Relay {
    /// Starts the relay in `node` on `core`; it listens at `listen` and forwards to `to`. Fails
    /// if the program is missing (`scripts/need test` installs it) or does not listen in time.
    pub fn start(
        software: Software,
        node: &Node,
        core: usize,
        listen: SocketAddr,
        to: SocketAddr,
    ) -> Result<Relay, TopologyError> {
        let wrong = |e| node.io(format!("write the configuration of {}", software.name()), e);
        let scratch = Scratch::new().map_err(wrong)?;
        let text = software.configuration(scratch.path(), listen, to);
        let file = scratch.write("conf", text).map_err(wrong)?;
        let mut command = on_core(node, core, software.program());
        match software {
            Software::Haproxy | Software::HaproxyLargePipes => {
                command.arg("-db").arg("-f").arg(file)
            }
            Software::Nginx => command.args(["-e", "stderr", "-c"]).arg(file),
            Software::Varnish => {
                command.args(["-F", "-j", "none", "-s", "malloc,64m", "-p", "thread_pools=1"]);
                command.arg("-a").arg(listen.to_string()).arg("-f").arg(file);
                command.arg("-n").arg(scratch.path().join("varnish"))
            }
        };
        let process = serve(node, command, listen.port())?;
        Ok(Relay { process, _scratch: scratch })
    }

    /// Returns the process ID; its children may do the work.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Software {
    /// Returns the display name.
    pub fn name(self) -> &'static str {
        match self {
            Software::Haproxy => "HAProxy",
            Software::HaproxyLargePipes => "HAProxy, 1 MB pipes",
            Software::Nginx => "nginx stream",
            Software::Varnish => "Varnish",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Software::Haproxy | Software::HaproxyLargePipes => "haproxy",
            Software::Nginx => "nginx",
            Software::Varnish => "varnishd",
        }
    }

    fn configuration(self, dir: &Path, listen: SocketAddr, to: SocketAddr) -> String {
        let (dir, ip, port) = (dir.display(), to.ip(), to.port());
        match self {
            Software::Haproxy => haproxy("", listen, to),
            Software::HaproxyLargePipes => haproxy("tune.pipesize 1048576", listen, to),
            Software::Nginx => format!(
                "daemon off; master_process off; user root root; pid {dir}/pid; error_log stderr;
                 load_module /usr/lib/nginx/modules/ngx_stream_module.so;
                 events {{ worker_connections 19000; }}
                 stream {{ server {{ listen {listen} backlog=4096; proxy_pass {to}; }} }}"
            ),
            Software::Varnish => format!(
                "vcl 4.1;
                 backend lab {{ .host = \"{ip}\"; .port = \"{port}\"; }}
                 sub vcl_recv {{ return (pipe); }}\n"
            ),
        }
    }
}

/// Returns HAProxy's configuration with `line` in `global`.
fn haproxy(line: &str, listen: SocketAddr, to: SocketAddr) -> String {
    format!(
        "global
           nbthread 1
           maxconn 9500
           maxpipes 60
           {line}
         defaults
           mode tcp
           option splice-auto
           option splice-request
           option splice-response
           timeout connect 10s
           timeout client 1h
           timeout server 1h
         listen lab
           bind {listen} backlog 4096
           server lab {to}\n"
    )
}
