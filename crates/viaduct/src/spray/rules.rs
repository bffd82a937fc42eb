//! Rules of a spray in the kernel, and their counters.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use tracing::{error, info, warn};
use viaduct_sys::journal::{Changes, JournalError};
use viaduct_sys::nft::spray::{Sent, Spray};

/// Rules that distribute the packets of a service.
#[derive(Debug)]
pub struct Rules {
    journal: Changes,
    /// Installed distribution, with the names of its replicas.
    installed: Option<(Spray, Vec<String>)>,
    /// Packets and bytes that earlier tables have counted, by the replica's name.
    before: HashMap<String, Sent>,
    /// Number of times that the distribution has changed.
    pub changes: u64,
    /// Number of times that another program had deleted the rules.
    pub repairs: u64,
    /// Reason why the latest requested distribution is not installed; `None` if it is installed.
    install_fault: Option<String>,
    /// Reason why deleted rules could not be reinstalled; `None` if none are missing.
    repair_fault: Option<String>,
}

impl Rules {
    /// Opens the journal, which removes the rules of a process that was killed. Errors: another
    /// process has the journal open.
    pub fn open(journal: &Path) -> Result<Rules> {
        let journal = Changes::open(journal)?;
        journal.warnings().iter().for_each(|line| warn!("{line}"));
        if journal.took_over() {
            info!("the rules of an earlier process were removed");
        }
        Ok(Rules {
            journal,
            installed: None,
            before: HashMap::new(),
            changes: 0,
            repairs: 0,
            install_fault: None,
            repair_fault: None,
        })
    }

    /// Installs a distribution over the replicas with these names. Errors: the kernel rejects the
    /// rules, for instance because an interface is missing; the earlier distribution then stays in
    /// force.
    pub fn install(&mut self, spray: Spray, names: Vec<String>) -> Result<(), JournalError> {
        self.rename(&spray, &names);
        let is_new_table = self.installed.as_ref().is_some_and(|(installed, _)| {
            *installed != Spray { slots: installed.slots.clone(), ..spray.clone() }
        });
        // A new table has new counters.
        let before = is_new_table.then(|| self.sent());
        self.journal.spray(spray.clone())?;
        if let Some(before) = before {
            self.before = before;
        }
        self.installed = Some((spray, names));
        Ok(())
    }

    /// Installs a distribution if it differs from the installed one. Failures are logged, and are
    /// part of the status.
    pub fn update(&mut self, spray: Spray, names: Vec<String>) {
        if self.installed.as_ref().is_some_and(|(installed, _)| *installed == spray) {
            self.rename(&spray, &names);
            self.install_fault = None;
            return;
        }
        match self.install(spray, names) {
            Ok(()) => {
                self.changes += 1;
                self.install_fault = None;
            }
            Err(error) => set_fault(&mut self.install_fault, error),
        }
    }

    /// Continues the counters of renamed replicas under their new names, if the replicas themselves
    /// have not changed.
    fn rename(&mut self, spray: &Spray, names: &[String]) {
        let Some((installed, old)) = &mut self.installed else { return };
        if installed.replicas != spray.replicas || *old == names {
            return;
        }
        let sent = |name| self.before.remove(name).unwrap_or_default();
        let sent: Vec<_> = old.iter().map(sent).collect();
        self.before.extend(names.iter().cloned().zip(sent));
        *old = names.to_vec();
    }

    /// Reinstalls rules that another program has deleted.
    pub fn repair(&mut self) {
        match self.journal.repair() {
            Ok(false) => self.repair_fault = None,
            Ok(true) => {
                warn!("the rules had been deleted, and have been reinstalled");
                self.repairs += 1;
                self.repair_fault = None;
            }
            Err(error) => set_fault(&mut self.repair_fault, error),
        }
    }

    /// Reason why the rules could not be installed; `None` if they are installed.
    pub fn fault(&self) -> Option<&String> {
        self.install_fault.as_ref().or(self.repair_fault.as_ref())
    }

    /// Removes the rules. Errors: those of [`Changes::restore`].
    pub fn restore(self) -> Result<()> {
        Ok(self.journal.restore()?)
    }

    /// Packets sent to each replica, by name.
    pub fn sent(&self) -> HashMap<String, Sent> {
        let mut all = self.before.clone();
        let Some((spray, names)) = &self.installed else { return all };
        // If the table was deleted, its counts are lost.
        for (name, now) in names.iter().zip(spray.sent().unwrap_or_default()) {
            let sent = all.entry(name.clone()).or_default();
            sent.packets += now.packets;
            sent.bytes += now.bytes;
        }
        all
    }

    /// Slots in force for IPv4, or for IPv6 if no IPv4 packets are distributed.
    pub fn slots(&self) -> &[usize] {
        let families = self.installed.iter().flat_map(|(spray, _)| &spray.slots);
        families.map(Vec::as_slice).find(|slots| !slots.is_empty()).unwrap_or_default()
    }
}

/// Sets `fault` to the text of `error`, and logs the text if it has changed.
fn set_fault(fault: &mut Option<String>, error: JournalError) {
    let text = format!("the rules cannot be installed: {:#}", anyhow::Error::new(error));
    if fault.as_ref() != Some(&text) {
        error!("{text}");
    }
    *fault = Some(text);
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    use viaduct_proto::trickles::packet::{Role, mark};
    use viaduct_sys::capture::filter::OptionMark;
    use viaduct_sys::netns::Netns;
    use viaduct_sys::nft::spray::Hop;
    use viaduct_sys::process::tool;

    use super::*;

    /// Returns a distribution to one replica, through the interface `device`.
    fn spray(device: &str) -> Spray {
        let hop = Hop { address: [127, 0, 0, 2].into(), device: device.to_owned(), index: 1 };
        Spray {
            instance: "spray_faults".to_owned(),
            interfaces: vec!["lo".to_owned()],
            addresses: vec![[127, 0, 0, 1].into()],
            ports: vec![9],
            mark: OptionMark { word: mark::WORD, byte: Role::Request.byte() },
            replicas: vec![vec![hop]],
            slots: [vec![0], Vec::new()],
        }
    }

    #[test]
    fn a_failed_change_is_a_fault_until_a_change_succeeds_and_does_not_affect_the_counters() {
        let name = format!("viaduct-spray-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let names = || vec!["a".to_owned()];
        let test = || {
            tool::run("ip", &["link", "set", "lo", "up"], "").unwrap();
            let mut rules = Rules::open(&path).unwrap();
            rules.install(spray("lo"), names()).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            // The packet is counted, but not forwarded, because its TTL expires.
            socket.set_ttl(1).unwrap();
            socket.send_to(&[0; 8], "127.0.0.1:9").unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while rules.sent()["a"].packets == 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            for _ in 0..3 {
                rules.repair();
                rules.update(spray("absent"), names());
                assert_eq!(rules.sent()["a"].packets, 1);
            }
            rules.repair();
            assert!(rules.fault().is_some(), "the distribution is still not installed");
            let more = Spray { ports: vec![9, 10], ..spray("lo") };
            rules.update(more.clone(), names());
            assert_eq!((rules.fault(), rules.changes, rules.repairs), (None, 1, 0));
            assert_eq!(rules.sent()["a"].packets, 1, "the new table continues the counters");
            rules.update(more, vec!["b".to_owned()]);
            assert_eq!((rules.sent().get("a"), rules.sent()["b"].packets), (None, 1));
            rules.restore().unwrap();
        };
        Netns::new().unwrap().enter(test).unwrap();
    }
}
