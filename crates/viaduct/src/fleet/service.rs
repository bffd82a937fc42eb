//! Event loop of the fleet process: registers this host in etcd, reads the other members from etcd,
//! and replaces the file when they change.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use ipnet::IpNet;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};
use viaduct_sys::journal::replace_file;
use viaduct_sys::socket::seqpacket;

use super::FleetArgs;
use super::config_file::{compose, members, prefixes};
use super::roster::{MemberId, Roster};
use crate::etcd::Entry;
use crate::gateway::config::{Config, check_member};
use crate::key;
use crate::notify::{Phase, notify};
use crate::run_dir::running;
use crate::signals::{SignalStreams, Signals, either};
use crate::status_socket;

/// Interval of reads from etcd, and of renewals of the lease.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time after which etcd no longer lists a host that does not renew its lease.
const LEASE: Duration = Duration::from_secs(30);

/// State of the process.
struct Fleet<'a> {
    args: &'a FleetArgs,
    roster: Roster,
    /// Lease of this host's entry, and the entry.
    registered: Option<(String, Entry)>,
    /// Text of the file `--out`.
    written: String,
    /// True if the gateway was told to reload after the last write of the file.
    is_told: bool,
    /// Reason why the gateway could not be told to reload, as last logged.
    reload_fault: Option<String>,
    /// Reason of the last failure with etcd, the base or the file, as last logged.
    fault: Option<String>,
    /// Invalid entries in etcd's last answer, and their faults.
    invalid: Vec<String>,
    /// Logged reasons why entries or members are not used.
    reported: Vec<String>,
}

/// Runs until a signal arrives.
pub fn run(args: &FleetArgs) -> Result<()> {
    let (runtime, signals) = Signals::register()?.into_parts();
    let mut fleet = Fleet::new(args, fs::read_to_string(&args.out).unwrap_or_default());
    // An error in the base is reported at the start, not only in the log.
    fleet.entry()?;
    runtime.block_on(fleet.serve(signals));
    Ok(())
}

impl Fleet<'_> {
    fn new(args: &FleetArgs, written: String) -> Fleet<'_> {
        Fleet {
            args,
            roster: Roster::new(members(&written)),
            registered: None,
            written,
            // An earlier process may have ended after it wrote the file, and before it told the
            // gateway to reload.
            is_told: false,
            reload_fault: None,
            fault: None,
            invalid: Vec::new(),
            reported: Vec::new(),
        }
    }

    async fn serve(&mut self, mut signals: SignalStreams) {
        let mut turn = tokio::time::interval(INTERVAL);
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        notify(Phase::Ready);
        info!(member = self.args.member, "following {}", self.args.etcd);
        loop {
            tokio::select! {
                _ = turn.tick() => self.turn().await,
                _ = signals.hangup.recv() => self.turn().await,
                () = either(&mut signals.terminate, &mut signals.interrupt) => break,
            }
        }
        // The entry stays until its lease expires, so that a restart changes nothing.
        info!("stopping");
        notify(Phase::Stopping);
    }

    async fn turn(&mut self) {
        notify(Phase::Alive);
        let done = match self.follow().await {
            Ok(()) => self.apply(),
            Err(error) => {
                self.roster.pause();
                Err(error.context("the last file stands"))
            }
        };
        let fault = done.err().map(|error| format!("{error:#}"));
        match (&self.fault, &fault) {
            (before, Some(fault)) if before.as_ref() != Some(fault) => warn!("{fault}"),
            (Some(_), None) => info!("{} is followed again", self.args.etcd),
            _ => {}
        }
        self.fault = fault;
    }

    /// Registers this host, and reads all members.
    async fn follow(&mut self) -> Result<()> {
        let (etcd, entry) = (&self.args.etcd, self.entry()?);
        let kept = match &self.registered {
            Some((lease, before)) => *before == entry && etcd.renew(lease).await?,
            None => false,
        };
        if !kept {
            let lease = etcd.grant(LEASE).await?;
            etcd.put(&entry, &lease).await?;
            self.registered = Some((lease, entry));
        }
        let entries = etcd.list().await?;
        let own = self.registered.as_ref().map(|(_, own)| own);
        match own.map(|own| (own, entries.iter().find(|of| of.name == own.name))) {
            // The entry was deleted, although its lease is valid.
            Some((_, None)) => self.registered = None,
            Some((own, Some(listed))) if listed.value != own.value => {
                bail!("another host is registered as {}", own.name);
            }
            _ => {}
        }
        let listed = self.members(&entries);
        self.roster.update(Instant::now(), listed);
        Ok(())
    }

    /// Members in these entries of etcd. The last valid entry of a member stays in use.
    fn members(&mut self, entries: &[Entry]) -> BTreeMap<MemberId, toml::Table> {
        self.invalid.clear();
        let mut listed = BTreeMap::new();
        for entry in entries {
            let (id, table) = parse(entry);
            let table = table.or_else(|why| {
                self.invalid.push(format!("the entry {:?} is not used: {why}", entry.name));
                self.roster.get(&id).cloned().ok_or(())
            });
            listed.extend(table.map(|table| (id, table)));
        }
        listed
    }

    /// Logs new reasons why entries or members are not used.
    fn report(&mut self, left_out: Vec<String>) {
        let faults: Vec<_> = self.invalid.iter().cloned().chain(left_out).collect();
        for fault in faults.iter().filter(|fault| !self.reported.contains(fault)) {
            warn!("{fault}");
        }
        self.reported = faults;
    }

    /// Entry of this host.
    fn entry(&self) -> Result<Entry> {
        let FleetArgs { base, member, endpoint, weight, drain, slices, .. } = self.args;
        let file: toml::Table = read(base)?.parse().with_context(|| base.display().to_string())?;
        let site = file.get("site").and_then(toml::Value::as_table);
        let text = |key| site.and_then(|site| site.get(key)).and_then(toml::Value::as_str);
        let of = |key| text(key).with_context(|| format!("{}: no [site] {key}", base.display()));
        let dir = self.args.out.parent().unwrap_or(Path::new("."));
        let key = key::read(&dir.join(of("key")?))?.public().to_string();
        let mut table = toml::Table::new();
        table.insert("key".to_owned(), key.into());
        table.insert("endpoint".to_owned(), endpoint.to_string().into());
        table.insert("weight".to_owned(), i64::from(*weight).into());
        table.insert("drain".to_owned(), (*drain).into());
        let known = prefixes(&file);
        let is_outside = |slice: &&IpNet| !known.iter().any(|prefix| prefix.contains(*slice));
        if let Some(slice) = slices.iter().find(is_outside) {
            bail!("--slices: {slice} is not part of a prefix of a site in {}", base.display());
        }
        let slices: Vec<_> = slices.iter().map(|slice| slice.to_string().into()).collect();
        table.insert("slices".to_owned(), toml::Value::Array(slices));
        check_member(member, &table)
            .map_err(|why| anyhow!("this host cannot be registered as member {member:?}: {why}"))?;
        Ok(Entry { name: format!("{}/{member}", of("name")?), value: table.to_string() })
    }

    /// Replaces the file if its text has changed, and makes the gateway read it. If the gateway
    /// cannot be told to reload now, it is told at a later turn.
    fn apply(&mut self) -> Result<()> {
        let FleetArgs { base, out, .. } = self.args;
        let composed = compose(&read(base)?, &self.roster).context(base.display().to_string())?;
        self.report(composed.left_out);
        let text = composed.text;
        if text == self.written && self.is_told {
            return Ok(());
        }
        let config = Config::parse(out, &text, None).context("no file is written")?;
        if text != self.written {
            replace_file(out, text.as_bytes()).with_context(|| out.display().to_string())?;
            let members = config.rack.as_ref().map_or(0, |rack| rack.members.len());
            info!(members, peers = config.peers.len(), "the members have changed");
            (self.written, self.is_told, self.reload_fault) = (text, false, None);
        }
        let reload_fault =
            reload(&running(config.socket())).err().map(|error| format!("{error:#}"));
        match &reload_fault {
            None => info!("the gateway reloads"),
            Some(why) if self.reload_fault.as_ref() != Some(why) => {
                info!("cannot make the gateway reload: {why}");
            }
            Some(_) => {}
        }
        (self.is_told, self.reload_fault) = (reload_fault.is_none(), reload_fault);
        Ok(())
    }
}

/// Returns the member that the entry `SITE/MEMBER` describes, and its table or the fault of the
/// entry.
fn parse(entry: &Entry) -> (MemberId, Result<toml::Table, String>) {
    let (site, name) = entry.name.split_once('/').unwrap_or((&entry.name, ""));
    let table = entry.value.parse::<toml::Table>();
    let table = table.map_err(|error| error.message().replace('\n', " "));
    let table = table.and_then(|table| check_member(name, &table).map(|()| table));
    ((site.to_owned(), name.to_owned()), table)
}

/// Makes the gateway with this status socket reload its config.
fn reload(socket: &Path) -> Result<()> {
    let gateway = gateway(socket).with_context(|| socket.display().to_string())?;
    Ok(pidfd_send_signal(gateway, Signal::HUP)?)
}

/// Returns a pidfd of the process that listens at `socket`. Another user may own the directory, so
/// nothing that the process sends is trusted. Errors: no process of the directory's owner listens
/// there.
fn gateway(socket: &Path) -> Result<OwnedFd> {
    let directory = socket.parent().context("the socket has no directory")?;
    let owner = fs::metadata(directory)?.uid();
    let (user, process) = seqpacket::listener(status_socket::connect(socket)?.as_fd())?;
    ensure!(user == owner, "a process of user {user} listens, but the directory is of {owner}");
    Ok(process)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::chown;
    use std::os::unix::net::UnixListener;

    use viaduct_proto::keys::SecretKey;

    use super::*;

    #[test]
    fn an_invalid_entry_changes_nothing() {
        let key = SecretKey::from_bytes([1; 32]).public();
        let valid = format!("key = \"{key}\"\nendpoint = \"192.0.2.1:7400\"\nweight = 2");
        let parsed = |name: &str, value: &str| {
            parse(&Entry { name: name.to_owned(), value: value.to_owned() })
        };
        let (id, table) = parsed("oslo/o1", &valid);
        assert!(id == ("oslo".to_owned(), "o1".to_owned()) && table.is_ok(), "{table:?}");
        for name in ["oslo", "oslo/o 1", "oslo/x/y"] {
            assert!(parsed(name, &valid).1.is_err(), "{name}");
        }
        let with = |line: &str| format!("{valid}\n{line}");
        for value in [
            String::new(),
            "key = \"k\"".to_owned(),
            with("slices = [\"10.2.0.1/18\"]"),
            with("later = true"),
            valid.replace("192.0.2.1", "224.0.0.1"),
            valid.replace("weight = 2", "weight = 101"),
        ] {
            assert!(parsed("oslo/o1", &value).1.is_err(), "{value}");
        }
    }

    #[test]
    fn only_a_process_of_the_directorys_owner_is_signalled() {
        let dir = std::env::temp_dir().join(format!("viaduct-reloaded-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("oslo.sock");
        assert!(gateway(&path).is_err());
        let _listener = UnixListener::bind(&path).unwrap();
        let found = gateway(&path).unwrap();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", found.as_raw_fd())).unwrap();
        assert!(info.contains(&format!("Pid:\t{}\n", std::process::id())), "{info}");
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(65_534), None).unwrap();
            assert!(gateway(&path).unwrap_err().to_string().contains("of user 0"));
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
