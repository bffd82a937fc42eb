//! Event loop of the fleet process: registers this host in etcd, reads the other members from etcd,
//! and replaces the file when they change.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};
use viaduct_sys::journal::replace_file;
use viaduct_sys::socket::seqpacket;

use super::FleetArgs;
use super::config_file::{compose, members};
use super::roster::{MemberId, Roster};
use crate::etcd::Entry;
use crate::gateway::config::Config;
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
}

/// Runs until a signal arrives.
pub fn run(args: &FleetArgs) -> Result<()> {
    let (runtime, signals) = Signals::register()?.into_parts();
    let written = fs::read_to_string(&args.out).unwrap_or_default();
    let roster = Roster::new(members(&written));
    // An earlier process may have ended after it wrote the file, and before it told the gateway to
    // reload.
    let (is_told, reload_fault) = (false, None);
    let mut fleet =
        Fleet { args, roster, registered: None, written, is_told, reload_fault, fault: None };
    // An error in the base is reported at the start, not only in the log.
    fleet.entry()?;
    runtime.block_on(fleet.serve(signals));
    Ok(())
}

impl Fleet<'_> {
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
                anyhow::bail!("another host is registered as {}", own.name);
            }
            _ => {}
        }
        let listed: BTreeMap<_, _> = entries.iter().filter_map(parse).collect();
        self.roster.update(Instant::now(), listed);
        Ok(())
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
        let slices: Vec<_> = slices.iter().map(|slice| slice.to_string().into()).collect();
        table.insert("slices".to_owned(), toml::Value::Array(slices));
        Ok(Entry { name: format!("{}/{member}", of("name")?), value: table.to_string() })
    }

    /// Replaces the file if its text has changed, and makes the gateway read it. If the gateway
    /// cannot be told to reload now, it is told at a later turn.
    fn apply(&mut self) -> Result<()> {
        let FleetArgs { base, out, .. } = self.args;
        let text = compose(&read(base)?, &self.roster).context(base.display().to_string())?;
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

/// Returns the member that the entry `SITE/MEMBER` describes; `None` if the entry has another form.
fn parse(entry: &Entry) -> Option<(MemberId, toml::Table)> {
    let (site, name) = entry.name.split_once('/')?;
    Some(((site.to_owned(), name.to_owned()), entry.value.parse().ok()?))
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

    use super::*;

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
