//! Endpoints that are host names: looked up again and again, off the control side's loop.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::config::Config;

/// Time between two look-ups of a name.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);
/// The same while there is no answer.
const RETRY_EVERY: Duration = Duration::from_secs(3);

/// A host and a port.
type Name = (String, u16);

/// Look-ups of the names of a config.
#[derive(Debug)]
pub struct Endpoints {
    sender: UnboundedSender<(Name, SocketAddr)>,
    answers: UnboundedReceiver<(Name, SocketAddr)>,
    known: HashMap<Name, SocketAddr>,
    tasks: HashMap<Name, JoinHandle<()>>,
}

impl Default for Endpoints {
    fn default() -> Self {
        let (sender, answers) = unbounded_channel();
        Endpoints { sender, answers, known: HashMap::new(), tasks: HashMap::new() }
    }
}

impl Endpoints {
    /// Looks the names of `config` up from now on, and no others; in a runtime.
    pub fn watch(&mut self, config: &Config) {
        let names: Vec<&Name> =
            config.peers.iter().filter_map(|peer| peer.endpoint_name.as_ref()).collect();
        self.tasks.retain(|name, task| {
            let stays = names.contains(&name);
            if !stays {
                task.abort();
            }
            stays
        });
        self.known.retain(|name, _| names.contains(&name));
        let listen = config.listen;
        for name in names {
            let (sender, of) = (self.sender.clone(), name.clone());
            self.tasks
                .entry(name.clone())
                .or_insert_with(|| tokio::spawn(resolve(of, listen, sender)));
        }
    }

    /// Gives the peers of `config` the addresses that their names are known to have.
    pub fn fill(&self, config: &mut Config) {
        for peer in &mut config.peers {
            if let Some(at) = peer.endpoint_name.as_ref().and_then(|name| self.known.get(name)) {
                peer.endpoint = Some(*at);
            }
        }
    }

    /// Waits until a name has another address.
    pub async fn changed(&mut self) {
        while let Some((name, at)) = self.answers.recv().await {
            if self.tasks.contains_key(&name) && self.known.insert(name.clone(), at) != Some(at) {
                info!(host = name.0, %at, "the endpoint has this address");
                return;
            }
        }
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

async fn resolve(name: Name, listen: SocketAddr, sender: UnboundedSender<(Name, SocketAddr)>) {
    let mut is_failing = false;
    loop {
        let found = match lookup_host((name.0.as_str(), name.1)).await {
            Ok(all) => choose(all, listen)
                .ok_or("it has no address of the family of [site] listen".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let wait = match found {
            Ok(at) => {
                is_failing = false;
                if sender.send((name.clone(), at)).is_err() {
                    return;
                }
                RESOLVE_EVERY
            }
            Err(reason) => {
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(host = name.0, "the endpoint is not resolved: {reason}");
                }
                RETRY_EVERY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// The first address that a socket at `listen` can send to.
fn choose(all: impl Iterator<Item = SocketAddr>, listen: SocketAddr) -> Option<SocketAddr> {
    let both = listen.is_ipv6() && listen.ip().is_unspecified();
    all.into_iter().find(|at| both || at.is_ipv4() == listen.is_ipv4())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_of_the_family_that_can_be_sent_to() {
        let (four, six): (SocketAddr, SocketAddr) =
            ("192.0.2.1:1".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap());
        let chosen = |listen: &str| choose([six, four].into_iter(), listen.parse().unwrap());
        assert_eq!(chosen("192.0.2.9:7400"), Some(four));
        assert_eq!(chosen("[2001:db8::9]:7400"), Some(six));
        assert_eq!(chosen("[::]:7400"), Some(six));
        assert_eq!(choose([six].into_iter(), "192.0.2.9:7400".parse().unwrap()), None);
    }

    #[tokio::test]
    async fn a_name_is_resolved_and_forgotten_with_its_peer() {
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
