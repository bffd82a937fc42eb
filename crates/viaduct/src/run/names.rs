//! Lookup of names at the far end: this process answers DNS queries of programs with fake IPs
//! ([`viaduct_proto::fake_ip`]).
//!
//! Queries of other users of the machine are not answered: an answer could reveal names that the
//! programs have looked up, and the names of other users could evict those of the programs from the
//! pool.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tracing::{debug, warn};
use viaduct_proto::fake_ip::{FakeIpPool, FakeIpPrefix};
use viaduct_proto::flow::Address;
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::socket::lookup::SocketLookup;

use super::{admission, daemons};
use crate::engine::chain_io::Factories;

/// Place where names are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LookupSite {
    /// The far end: a proxy, or the end of a tunnel
    Remote,
    /// This machine, as without Viaduct
    Local,
}

/// Options for the lookup of names.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NameArgs {
    /// Place where names are looked up [default: remote, if a handler such as +socks connects to
    /// hosts by name and no traffic may bypass it; otherwise local]
    #[arg(long, value_enum, value_name = "WHERE")]
    names: Option<LookupSite>,
    /// IPv4 prefix of the fake IPs that stand for names
    #[arg(long, value_name = "PREFIX", default_value_t)]
    names_pool: FakeIpPrefix,
}

impl NameArgs {
    /// Applies the options to a chain, and sets in `rules` whether names are looked up at the far
    /// end; `None` if names are looked up on this machine. Errors: `remote` was given, but no
    /// handler of the chain connects to hosts by name.
    pub fn load(&self, chain: &Factories, rules: &mut Rules) -> Result<Option<Arc<RemoteNames>>> {
        let able = chain.iter().any(|handler| handler.takes_names());
        let remote = match self.names {
            Some(LookupSite::Local) => false,
            Some(LookupSite::Remote) if !able => {
                bail!("--names remote: this needs a handler that connects by name, such as socks")
            }
            Some(LookupSite::Remote) => true,
            None => able && rules.strict && !leave_dns_direct(rules),
        };
        rules.names = remote;
        Ok(remote.then(|| Arc::new(RemoteNames::new(self.names_pool, rules.strict))))
    }
}

/// Returns whether a rule for port 53 lets DNS queries bypass the chain. Rules for all ports do not
/// count.
fn leave_dns_direct(rules: &Rules) -> bool {
    let asks = |line: &&viaduct_proto::wrap::Line| {
        line.fate == Fate::Leave
            && line.transport != Some(Transport::Tcp)
            && (line.ports.0..=line.ports.1).contains(&53)
            && line.ports != (0, u16::MAX)
    };
    rules.lines().iter().any(|line| asks(&line))
}

/// Pool of fake IPs, and the resolver that returns them to programs.
#[derive(Debug)]
pub struct RemoteNames {
    fake_ips: Mutex<FakeIpPool>,
    prefix: FakeIpPrefix,
    strict: bool,
    at: OnceLock<[Option<SocketAddr>; 2]>,
}

/// Returns the target of a flow to `to`: the address itself, or the name if `to` is a fake IP;
/// `None` if the pool no longer has that name.
pub fn target(names: Option<&RemoteNames>, to: SocketAddr) -> Option<Address> {
    let Some(names) = names else { return Some(Address::Ip(to)) };
    names.fake_ips.lock().unwrap_or_else(PoisonError::into_inner).destination(to)
}

/// Returns the target of a flow to `to` as text: for a fake IP, its name.
pub fn text(names: Option<&RemoteNames>, to: SocketAddr) -> String {
    let forgotten = || format!("a name that was forgotten ({to})");
    target(names, to).map_or_else(forgotten, |target| target.to_string())
}

/// Cache of users that have sent queries, and of whether their queries are answered. The check may
/// have to examine all processes, which would take too long for each query.
#[derive(Debug, Default)]
struct KnownUsers(HashMap<u32, (Instant, bool)>);

/// Lifetime of an entry of [`KnownUsers`].
const KNOWN_FOR: Duration = Duration::from_millis(200);
/// Maximum number of users that are remembered.
const MAX_USERS: usize = 1_024;

impl KnownUsers {
    fn admits(&mut self, user: u32) -> bool {
        let now = Instant::now();
        if self.0.len() >= MAX_USERS {
            self.0.clear();
        }
        match self.0.get(&user).filter(|(at, _)| now.duration_since(*at) < KNOWN_FOR) {
            Some((_, is_admitted)) => *is_admitted,
            None => {
                let is_admitted = admission::admits_user(user);
                self.0.insert(user, (now, is_admitted));
                is_admitted
            }
        }
    }
}

/// Size of the buffer for a query; actual queries are far shorter.
const LONGEST: usize = 4096;

impl RemoteNames {
    fn new(prefix: FakeIpPrefix, strict: bool) -> RemoteNames {
        RemoteNames {
            fake_ips: Mutex::new(FakeIpPool::new(prefix)),
            prefix,
            strict,
            at: OnceLock::new(),
        }
    }

    /// Starts to answer queries. Errors: there is no loopback interface.
    pub fn begin(self: &Arc<RemoteNames>) -> Result<()> {
        let (v4, v6) = sockets().context("cannot answer DNS queries")?;
        let at = [v4.local_addr().ok(), v6.as_ref().and_then(|v6| v6.local_addr().ok())];
        for socket in [Some(v4), v6].into_iter().flatten() {
            let (remote, lookup) = (self.clone(), SocketLookup::open()?);
            let answer = move || remote.answer(&socket, &lookup);
            thread::Builder::new().name("names".to_owned()).spawn(answer)?;
        }
        let _ = self.at.set(at);
        Ok(())
    }

    /// Returns the answer to a DNS query; `None` if `query` is not a DNS query.
    pub fn answer_to(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.fake_ips.lock().unwrap_or_else(PoisonError::into_inner).answer(query)
    }

    /// Addresses at which queries are answered: over IPv4, and over IPv6.
    pub fn at(&self) -> [Option<SocketAddr>; 2] {
        self.at.get().copied().unwrap_or_default()
    }

    /// Returns whether the address is a fake IP.
    pub fn is_fake_ip(&self, to: SocketAddr) -> bool {
        self.prefix.contains(to.ip())
    }

    /// Answers the run's queries until the process ends.
    fn answer(&self, socket: &UdpSocket, lookup: &SocketLookup) {
        let mut packet = [0; LONGEST];
        let mut users = KnownUsers::default();
        loop {
            let answered = socket.recv_from(&mut packet).and_then(|(length, from)| {
                let user = lookup.owner(socket.local_addr()?, from)?;
                if !user.is_some_and(|user| users.admits(user)) {
                    debug!("a DNS query of another user is not answered");
                    return Ok(0);
                }
                let answer = self.answer_to(&packet[..length]);
                answer.map_or(Ok(0), |answer| socket.send_to(&answer, from))
            });
            if let Err(error) = answered {
                debug!("cannot answer a DNS query: {error}");
            }
        }
    }

    /// Checks that no daemon looks names up for programs: queries to the daemon's UNIX socket would
    /// bypass this run. The check is not needed with seccomp, which refuses connects to that
    /// socket. Errors: there is such a daemon, and the chain may not be bypassed.
    pub fn check_daemons(&self) -> Result<()> {
        let Some(path) = daemons::resolver_in_use() else { return Ok(()) };
        let what = format!(
            "programs look names up with the daemon at {path}, which bypasses this run: stop it, \
             or use --via seccomp or --names local"
        );
        if self.strict {
            bail!("{what}");
        }
        warn!("{what}");
        Ok(())
    }
}

/// Binds sockets of both families to the same port. Returns only the IPv4 socket if the machine has
/// no IPv6, or if none of 16 ports is free in both families.
fn sockets() -> io::Result<(UdpSocket, Option<UdpSocket>)> {
    for _ in 0..16 {
        let v4 = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        match UdpSocket::bind((Ipv6Addr::LOCALHOST, v4.local_addr()?.port())) {
            Ok(v6) => return Ok((v4, Some(v6))),
            // The port is in use for IPv6: try another port.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            // This machine has no IPv6.
            Err(_) => return Ok((v4, None)),
        }
    }
    Ok((UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, None))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Queries an address twice, over sockets created with a user ID, and keeps that user ID if the
    /// third argument is `true`. Prints the length of each answer, or 0 if there is none within a
    /// second.
    const ASK: &str = "
import os, socket, sys
port, user, stays = sys.argv[1:]
os.seteuid(int(user))
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
if stays == 'false': os.seteuid(0)
for number, asks in enumerate(sockets):
    asks.settimeout(1)
    asks.connect(('127.0.0.1', int(port)))
    head = bytes([0, number, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    asks.send(head + b'\\x04mars\\x07example\\0\\0\\x01\\0\\x01')
    try:
        print(len(asks.recv(512)), flush=True)
    except TimeoutError:
        print(0, flush=True)
";

    fn ask(port: u16, user: u32, stays: bool) -> String {
        let mut command = Command::new("python3");
        command.args(["-c", ASK, &port.to_string(), &user.to_string(), &stays.to_string()]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn only_users_of_the_run_get_answers() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let names = Arc::new(RemoteNames::new(FakeIpPrefix::default(), true));
        names.begin().unwrap();
        let port = names.at()[0].unwrap().port();
        let answer = "46\n46\n";
        assert_eq!(ask(port, 0, true), answer, "root");
        assert_eq!(ask(port, 65_533, true), answer, "a process of the run has this user ID");
        assert_eq!(ask(port, 65_532, false), "0\n0\n", "another user");
    }
}
