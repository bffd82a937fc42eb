//! Endpoints that are host names: resolved periodically, outside of the control side's event
//! loop.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::config::{Config, LISTEN, Peer, check_endpoint};

/// Interval between two look-ups of a name.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);
/// Interval after a look-up that has found no usable address.
const RETRY_EVERY: Duration = Duration::from_secs(3);

/// Host and port.
type Name = (String, u16);
/// Result of a look-up: at least one usable address, or the reason why there is none.
type Answer = (Name, Result<Vec<SocketAddr>, String>);

/// Look-ups of the names in a config.
#[derive(Debug)]
pub struct Endpoints {
    sender: UnboundedSender<Answer>,
    answers: UnboundedReceiver<Answer>,
    known: HashMap<Name, SocketAddr>,
    /// Reason why the last look-up of a name has found no usable address.
    failures: HashMap<Name, String>,
    tasks: HashMap<Name, JoinHandle<()>>,
}

impl Default for Endpoints {
    fn default() -> Self {
        let (sender, answers) = unbounded_channel();
        let (known, failures, tasks) = Default::default();
        Endpoints { sender, answers, known, failures, tasks }
    }
}

impl Endpoints {
    /// Starts to resolve the names of `config`, and stops resolving others. Must be called in a
    /// runtime.
    pub fn watch(&mut self, config: &Config) {
        let names: HashSet<&Name> =
            config.peers.iter().filter_map(|peer| peer.endpoint_name.as_ref()).collect();
        self.tasks.retain(|name, task| {
            let stays = names.contains(name);
            if !stays {
                task.abort();
            }
            stays
        });
        self.known.retain(|name, _| names.contains(name));
        self.failures.retain(|name, _| names.contains(name));
        let listen = config.listen;
        for name in names {
            let (sender, of) = (self.sender.clone(), name.clone());
            self.tasks
                .entry(name.clone())
                .or_insert_with(|| tokio::spawn(resolve(of, listen, sender)));
        }
    }

    /// Sets each endpoint of `config` that is a name to the address of that name, if that address
    /// is known.
    pub fn fill(&self, config: &mut Config) {
        for peer in &mut config.peers {
            if let Some(at) = peer.endpoint_name.as_ref().and_then(|name| self.known.get(name)) {
                peer.endpoint = Some(*at);
            }
        }
    }

    /// Waits until the address of a name changes. Also handles all other look-ups that have ended
    /// by then.
    pub async fn changed(&mut self) {
        let mut has_changed = false;
        while !has_changed && let Some(answer) = self.answers.recv().await {
            has_changed = self.handle_answer(answer);
        }
        while let Ok(answer) = self.answers.try_recv() {
            self.handle_answer(answer);
        }
    }

    /// Handles the result of a look-up. Returns whether the address of its name has changed.
    fn handle_answer(&mut self, (name, found): Answer) -> bool {
        let is_watched = self.tasks.contains_key(&name);
        let changed = if is_watched { self.take(&name, found) } else { None };
        if let Some(at) = changed {
            info!(host = name.0, %at, "resolved the endpoint");
        }
        changed.is_some()
    }

    /// New address of `name`, if it has changed. An address that is still among the results is
    /// kept: name servers list addresses in varying order.
    fn take(&mut self, name: &Name, found: Result<Vec<SocketAddr>, String>) -> Option<SocketAddr> {
        match found {
            Ok(all) => {
                self.failures.remove(name);
                let known = self.known.get(name);
                let first = *all.first()?;
                if known.is_some_and(|known| all.contains(known)) {
                    return None;
                }
                self.known.insert(name.clone(), first);
                Some(first)
            }
            Err(reason) => {
                if self.failures.insert(name.clone(), reason.clone()).is_none() {
                    warn!(host = name.0, "cannot resolve the endpoint: {reason}");
                }
                None
            }
        }
    }

    /// Reason why the address of a peer whose endpoint is a name is unknown; `None` if it is known.
    pub fn unresolved(&self, peer: &Peer) -> Option<String> {
        let name = peer.endpoint_name.as_ref().filter(|name| !self.known.contains_key(name))?;
        let reason = self.failures.get(name).map_or("no answer yet", String::as_str);
        Some(format!("{} is not resolved: {reason}", name.0))
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

async fn resolve(name: Name, listen: SocketAddr, sender: UnboundedSender<Answer>) {
    loop {
        let found = match lookup_host((name.0.as_str(), name.1)).await {
            Ok(all) => usable(all, listen),
            Err(error) => Err(error.to_string()),
        };
        let wait = if found.is_ok() { RESOLVE_EVERY } else { RETRY_EVERY };
        if sender.send((name.clone(), found)).is_err() {
            return;
        }
        tokio::time::sleep(wait).await;
    }
}

/// Addresses that a socket at `listen` can send to, at least one.
fn usable(
    all: impl Iterator<Item = SocketAddr>,
    listen: SocketAddr,
) -> Result<Vec<SocketAddr>, String> {
    let mut unfit = "it has no address".to_owned();
    let fits = |at: &SocketAddr| match check_endpoint(Some(*at), listen, LISTEN) {
        Ok(()) => true,
        Err(why) => {
            unfit = format!("it {why}");
            false
        }
    };
    let all: Vec<SocketAddr> = all.filter(fits).collect();
    if all.is_empty() { Err(unfit) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_are_those_that_can_be_sent_to() {
        let (four, six): (SocketAddr, SocketAddr) =
            ("192.0.2.1:1".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap());
        let usable_at =
            |all: &[SocketAddr], listen: &str| usable(all.iter().copied(), listen.parse().unwrap());
        assert_eq!(usable_at(&[six, four], "192.0.2.9:7400"), Ok(vec![four]));
        assert_eq!(usable_at(&[six, four], "[2001:db8::9]:7400"), Ok(vec![six]));
        assert_eq!(usable_at(&[six, four], "[::]:7400"), Ok(vec![six, four]));
        assert!(usable_at(&[six], "192.0.2.9:7400").unwrap_err().contains("is IPv6"));
        assert!(usable_at(&[four], "192.0.2.1:1").is_err(), "this site's own");
        assert!(usable_at(&["224.0.0.1:1".parse().unwrap()], "192.0.2.9:1").is_err());
    }

    #[test]
    fn an_address_is_kept_while_the_name_resolves_to_it_in_any_order() {
        let mut endpoints = Endpoints::default();
        let name = ("oslo.example".to_owned(), 7400);
        let [a, b]: [SocketAddr; 2] = [([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 1).into()];
        assert_eq!(endpoints.take(&name, Ok(vec![a, b])), Some(a));
        assert_eq!(endpoints.take(&name, Ok(vec![b, a])), None);
        assert_eq!(endpoints.take(&name, Err("no server".to_owned())), None);
        assert_eq!(endpoints.take(&name, Ok(vec![b])), Some(b));
        assert_eq!(endpoints.known.get(&name), Some(&b));
    }

    #[tokio::test]
    async fn a_name_is_resolved_in_a_task() {
        let mut endpoints = Endpoints::default();
        let name = ("localhost".to_owned(), 7400);
        let listen = "192.0.2.1:7400".parse().unwrap();
        let task = tokio::spawn(resolve(name.clone(), listen, endpoints.sender.clone()));
        endpoints.tasks.insert(name.clone(), task);
        let changed = tokio::time::timeout(Duration::from_secs(20), endpoints.changed());
        changed.await.expect("localhost has an address");
        assert_eq!(endpoints.known.get(&name), Some(&([127, 0, 0, 1], 7400).into()));
    }
}
