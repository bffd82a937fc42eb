//! Reload of the definitions, and hops that wait for their listeners: the process of a removed hop
//! may still use their address or their name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow, bail};
use tracing::{error, info, warn};

use super::agent::{Service, syns};
use super::definition::{self, Definition};
use super::status::AgentHop;
use crate::notify::{Phase, notify};

/// Hop whose listeners are to be opened.
pub(super) struct WaitingHop {
    definition: Definition,
    /// Reason why the last attempt has failed; `None` before the first attempt.
    fault: Option<String>,
}

impl WaitingHop {
    /// Status for the operator.
    pub(super) fn status(&self) -> AgentHop {
        AgentHop {
            name: self.definition.name.clone(),
            listen: self.definition.listen.clone(),
            fault: self.fault.clone(),
            ..AgentHop::default()
        }
    }
}

impl Service {
    /// Reads the definitions again, and logs the result.
    pub(super) fn reload_and_log(&mut self) {
        notify(Phase::Reloading);
        match self.reload() {
            Ok(()) => info!(hops = self.agent.hops.len(), "the hops were reloaded"),
            Err(error) => error!("not reloaded: {error:#}"),
        }
        notify(Phase::Ready);
    }

    /// Reads the definitions again. If any is invalid, nothing changes. If the addresses of a hop
    /// have changed, the other hops are changed nevertheless.
    fn reload(&mut self) -> Result<()> {
        let new = definition::load(&self.agent.args, &self.agent.registry)?;
        let mut new: BTreeMap<String, Definition> =
            new.into_iter().map(|of| (of.name.clone(), of)).collect();
        let keys: Vec<usize> = self.agent.hops.iter().map(|(key, _)| key).collect();
        let mut faults = Vec::new();
        for key in keys {
            let Some(hop) = self.agent.hops.get_mut(key) else { continue };
            // A removed hop whose process still has flows is not restored.
            if hop.listeners.is_empty() {
                continue;
            }
            self.unwatch(key);
            let hop = &mut self.agent.hops[key];
            match new.remove(&hop.definition.name) {
                Some(definition) => {
                    let definition = Definition { meaning: String::new(), ..definition };
                    faults.extend(hop.reload(definition).err());
                    self.watch(key);
                }
                None => {
                    hop.drain();
                    if !hop.is_running() {
                        self.agent.hops.remove(key);
                    }
                }
            }
        }
        let waiting = |definition| WaitingHop { definition, fault: None };
        self.waiting = new.into_values().map(waiting).collect();
        self.open_waiting();
        self.reopen_tap()?;
        match faults.first() {
            Some(first) => bail!("{first:#} (and {} more)", faults.len() - 1),
            None => Ok(()),
        }
    }

    /// Tries again to open the listeners of waiting hops.
    pub(super) fn retry(&mut self) -> Result<()> {
        if self.open_waiting() { self.reopen_tap() } else { Ok(()) }
    }

    /// Opens the listeners of waiting hops, as far as possible. Returns whether any was opened.
    fn open_waiting(&mut self) -> bool {
        let removed = self.agent.hops.iter().filter(|(_, hop)| hop.listeners.is_empty());
        let removed: BTreeSet<_> = removed.map(|(_, hop)| hop.definition.name.clone()).collect();
        let before = self.agent.hops.len();
        for WaitingHop { definition, fault } in std::mem::take(&mut self.waiting) {
            // The two processes would use the same directory.
            let added = match removed.contains(&definition.name) {
                true => Err(anyhow!("the process of the removed hop of this name has not ended")),
                false => self.agent.add(definition.clone()),
            };
            let name = &definition.name;
            match added {
                Ok(key) => {
                    if fault.is_some() {
                        info!(hop = name, "the listeners are open now");
                    }
                    self.watch(key);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    if fault.is_none() {
                        warn!(hop = name, "no listener yet: {why}");
                    }
                    self.waiting.push(WaitingHop { definition, fault: Some(why) });
                }
            }
        }
        self.agent.hops.len() > before
    }

    fn reopen_tap(&mut self) -> Result<()> {
        self.syns = syns(&self.agent.hops)?;
        self.watch_tap()
    }
}
