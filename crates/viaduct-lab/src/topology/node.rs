//! Machine of a world: a namespace with a name.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::ops::Deref;
use std::process::{Command, Stdio};
use std::thread;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use viaduct_sys::netns::Netns;
use viaduct_sys::process::Process;

use super::{Journal, TopologyError};

/// Machine: a network namespace, its name, and the journal of its commands.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    netns: Netns,
    journal: Journal,
}

impl Node {
    /// Creates a machine with only a loopback interface, which is up.
    pub fn new(name: impl Into<String>, journal: &Journal) -> Result<Node, TopologyError> {
        let node = Node { name: name.into(), netns: Netns::new()?, journal: journal.clone() };
        // Duplicate address detection would make addresses unusable for a second, and router
        // solicitations would cross the measured links.
        node.set_sysctls(&[
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv6/conf/default/router_solicitations", "0"),
        ])?;
        node.ip(&["link set lo up".into()])?;
        Ok(node)
    }

    /// Returns the name, as in `a1` or `gwb`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Creates a command in this machine. [`Netns::command`] documents which thread may spawn it;
    /// [`Node::spawn`] is the usual way.
    pub fn command(&self, program: &str) -> Command {
        self.netns.command(program)
    }

    /// Starts `command`, built by [`Node::command`], and records it in the journal.
    pub fn spawn(&self, command: Command) -> Result<Process, TopologyError> {
        let line = line_of(&command);
        self.journal.note(&self.name, &line);
        Process::spawn(command).map_err(|e| self.io(format!("start `{line}`"), e))
    }

    /// Runs a short program to its end. Returns the program's standard output. Fails if it cannot
    /// be started, or exits with a status other than 0; the error contains its output.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, TopologyError> {
        let mut command = self.command(program);
        command.args(args).stdin(Stdio::null());
        let line = line_of(&command);
        self.journal.note(&self.name, &line);
        let output = command.output().map_err(|e| self.io(format!("start `{line}`"), e))?;
        self.finished(line, &output)
    }

    /// Runs `ip` commands (without the word `ip`) as one batch; stops at the first failure.
    pub fn ip(&self, lines: &[String]) -> Result<(), TopologyError> {
        for line in lines {
            self.journal.note(&self.name, &format!("ip {line}"));
        }
        let mut command = self.command("ip");
        command.args(["-batch", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = |e| self.io("run `ip` (package iproute2)".into(), e);
        let mut child = command.spawn().map_err(start)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If `ip` stopped reading, its exit status gives the reason.
            let _ = stdin.write_all(lines.join("\n").as_bytes());
        }
        let output = child.wait_with_output().map_err(start)?;
        self.finished(format!("ip {}", lines.join("; ")), &output).map(drop)
    }

    /// Writes sysctls of the namespace, as in `("net/ipv4/ip_forward", "1")`.
    pub fn set_sysctls(&self, settings: &[(&str, &str)]) -> Result<(), TopologyError> {
        for (key, value) in settings {
            self.journal.note(&self.name, &format!("sysctl -w {key}='{value}'"));
        }
        Ok(self.netns.set_sysctls(settings)?)
    }

    /// Switches segmentation, coalescing and checksum offloads of an interface on or off. With
    /// `false`, the packets that a tap sees are those that cross the wire.
    pub fn set_offloads(&self, interface: &str, on: bool) -> Result<(), TopologyError> {
        let to = if on { "on" } else { "off" };
        let features = ["tso", to, "gso", to, "gro", to, "tx", to];
        self.run("ethtool", &[&["-K", interface][..], &features[..]].concat()).map(drop)
    }

    /// Distributes the kernel's receive processing for `interface` over all cores by flow (RPS),
    /// instead of leaving it on the receiving core. Fails in a user namespace.
    pub fn spread_receive(&self, interface: &str) -> Result<(), TopologyError> {
        let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        // A sysfs that is already mounted shows the devices of the namespace in which it was
        // mounted, so the script mounts a new one.
        let script = format!("mount -t sysfs sysfs /sys && echo {} > {file}", core_mask());
        self.run("unshare", &["--mount", "sh", "-c", &script]).map(drop)
    }

    /// Opens a UDP socket at a fixed port, even if an earlier socket at that port is still open in
    /// a child that another thread is starting.
    ///
    /// # Errors
    /// If the socket cannot be created or bound.
    pub fn udp_socket(&self, port: u16) -> Result<UdpSocket, TopologyError> {
        let open = || -> io::Result<UdpSocket> {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
            Ok(UdpSocket::from(socket))
        };
        self.netns.enter(open)?.map_err(|e| self.io(format!("open UDP port {port}"), e))
    }

    /// Wraps an I/O error with this machine's name.
    pub(crate) fn io(&self, what: String, source: io::Error) -> TopologyError {
        TopologyError::Io { node: self.name.clone(), what, source }
    }

    fn finished(
        &self,
        command: String,
        output: &std::process::Output,
    ) -> Result<String, TopologyError> {
        let text = |bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let said = format!("{} {}", text(&output.stderr), text(&output.stdout));
        let output = format!("{} ({})", said.trim(), output.status);
        Err(TopologyError::Command { node: self.name.clone(), command, output })
    }
}

/// Machines of a world. Dropping the value kills all programs in the machines: a daemon that a
/// program has started would otherwise keep its namespace alive.
#[derive(Debug)]
pub(super) struct KillOnDrop(pub(super) Vec<Node>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        for node in &self.0 {
            // A failure here must not prevent the others from being killed.
            let _ = node.netns.kill_all();
        }
    }
}

/// Host: a machine that runs programs, with its addresses. In most worlds it has one interface,
/// `eth0`.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) node: Node,
    pub(super) v4: Ipv4Addr,
    pub(super) v6: Option<Ipv6Addr>,
    /// Default routes, as in `default via 10.1.1.1`.
    pub(super) routes: Vec<String>,
}

impl Host {
    /// Returns the IPv4 address.
    pub fn v4(&self) -> Ipv4Addr {
        self.v4
    }

    /// Returns the IPv6 address; `None` in worlds that have only IPv4, and where the MTU is below
    /// IPv6's minimum of 1280.
    pub fn v6(&self) -> Option<Ipv6Addr> {
        self.v6
    }

    /// Sets the default congestion control of new TCP connections of this host, as in `cubic`, for
    /// programs without such an option.
    pub fn set_congestion_control(&self, name: &str) -> Result<(), TopologyError> {
        let with = |route| format!("route change {route} congctl {name}");
        self.ip(&self.routes.iter().map(with).collect::<Vec<_>>())
    }

    /// Returns all addresses, IPv4 first.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.v4.into()).chain(self.v6.map(IpAddr::V6))
    }
}

impl Deref for Host {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.node
    }
}

fn line_of(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .map(|word| if word.contains([' ', '\'']) { format!("'{word}'") } else { word.into() })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the set of all cores in the kernel's format: hexadecimal words of 32 bits.
fn core_mask() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let words = (0..cores.div_ceil(32)).rev().map(|word| {
        let bits = (cores - 32 * word).min(32);
        format!("{:x}", u32::MAX >> (32 - bits))
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec};

    #[test]
    fn a_failed_command_reports_its_node_line_and_output() {
        let journal = Journal::new();
        let node = Node::new("a1", &journal).unwrap();
        let text = node.run("ip", &["link", "show", "nosuch"]).unwrap_err().to_string();
        assert!(text.contains("in a1: `ip link show nosuch`"), "{text}");
        assert!(text.contains("does not exist"), "{text}");
        assert!(journal.lines().contains(&"[a1] ip link show nosuch".to_owned()));
    }

    #[test]
    fn connections_both_ways_use_the_hosts_congestion_control() {
        use rustix::net::sockopt::tcp_congestion;
        use std::net::{TcpListener, TcpStream};
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let (a1, b1) = (world.a1(), world.b1());
        a1.set_congestion_control("reno").unwrap();
        b1.set_congestion_control("cubic").unwrap();
        for ip in b1.addresses() {
            let listener = b1.netns().enter(|| TcpListener::bind((ip, 7000)).unwrap()).unwrap();
            let out = a1.netns().enter(|| TcpStream::connect((ip, 7000)).unwrap()).unwrap();
            let (back, _) = listener.accept().unwrap();
            assert_eq!(tcp_congestion(&out).unwrap(), "reno");
            assert_eq!(tcp_congestion(&back).unwrap(), "cubic");
        }
        let text = a1.set_congestion_control("nosuch").unwrap_err().to_string();
        assert!(text.contains("nosuch"), "{text}");
    }

    #[test]
    fn a_batch_stops_at_the_line_that_fails() {
        let node = Node::new("a1", &Journal::new()).unwrap();
        let lines = ["link set nosuch up".into(), "addr add 10.0.0.1/8 dev lo".into()];
        let text = node.ip(&lines).unwrap_err().to_string();
        assert!(text.contains("-:1"), "{text}");
        assert!(!node.run("ip", &["addr"]).unwrap().contains("10.0.0.1"));
    }
}
