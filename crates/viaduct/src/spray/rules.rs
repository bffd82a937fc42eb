//! Rules of a spray in the kernel, and their counters.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use tracing::{error, info, warn};
use viaduct_sys::journal::{Changes, JournalError};
use viaduct_sys::nft::spray::{Sent, Spray};

/// The rules.
#[derive(Debug)]
pub struct Rules {
    journal: Changes,
    /// Installed distribution, with the names of its replicas.
    installed: Option<(Spray, Vec<String>)>,
    /// Packets and bytes that earlier tables counted, by the replica's name.
    before: HashMap<String, Sent>,
    /// Number of times that the distribution has changed.
    pub changes: u64,
    /// Number of times that another program had deleted the rules.
    pub repairs: u64,
    /// Reason why the rules could not be installed, if so.
    pub fault: Option<String>,
}

impl Rules {
    /// Takes over the journal, which removes the rules of a process that was killed. Errors:
    /// another process has the journal.
    pub fn open(journal: &Path) -> Result<Rules> {
        let journal = Changes::open(journal)?;
        journal.warnings().iter().for_each(|line| warn!("{line}"));
        if journal.took_over() {
            info!("the rules of an earlier process were removed");
        }
        let (installed, before, fault) = (None, HashMap::new(), None);
        Ok(Rules { journal, installed, before, changes: 0, repairs: 0, fault })
    }

    /// Installs a distribution over the replicas of these names. Errors: the kernel refuses it, for
    /// instance because an interface is missing. The earlier distribution then stays in force.
    pub fn install(&mut self, spray: Spray, names: Vec<String>) -> Result<(), JournalError> {
        if let Some((installed, _)) = &self.installed
            && *installed != (Spray { slots: installed.slots.clone(), ..spray.clone() })
        {
            // The table, with its counters, is replaced.
            self.before = self.sent();
        }
        self.journal.spray(spray.clone())?;
        self.installed = Some((spray, names));
        Ok(())
    }

    /// Installs a distribution if it differs from the installed one. Failures are logged, and are
    /// part of the status.
    pub fn update(&mut self, spray: Spray, names: Vec<String>) {
        if self.installed.as_ref().is_some_and(|(installed, _)| *installed == spray) {
            return;
        }
        match self.install(spray, names) {
            Ok(()) => self.changes += 1,
            Err(error) => self.set_fault(error),
        }
    }

    /// Installs rules again that another program has deleted.
    pub fn repair(&mut self) {
        match self.journal.repair() {
            Ok(false) => self.fault = None,
            Ok(true) => {
                warn!("the rules had been deleted, and are installed again");
                self.repairs += 1;
                self.fault = None;
            }
            Err(error) => self.set_fault(error),
        }
    }

    /// Removes the rules. Errors: as [`Changes::restore`].
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

    fn set_fault(&mut self, error: JournalError) {
        let fault = format!("the rules cannot be installed: {:#}", anyhow::Error::new(error));
        if self.fault.as_ref() != Some(&fault) {
            error!("{fault}");
        }
        self.fault = Some(fault);
    }
}
