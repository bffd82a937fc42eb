//! Handlers that are agreed on with the far end of each flow: what is said of it on the command line,
//! and who is turned away.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tracing::{info, warn};
use viaduct_proto::agree::{Refusal, Required, Terms, greeting};
use viaduct_proto::flow::{HandlerSpec, Registry};
use viaduct_sys::bpf::Ports;
use viaduct_sys::tcp;

use super::Plan;
use super::report::{Fate, Report};
use super::via::Via;
use crate::proxy::agreeing::Agreeing;
use crate::proxy::through::Factories;

/// What may be said of it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AgreeArgs {
    /// Agree on the handlers with each far end, without a further round trip; one that runs no Viaduct
    /// is spoken to plainly. So are clients of a program that listens
    #[arg(long, conflicts_with = "require")]
    prefer: bool,
    /// Agree on the handlers with each far end, and go on with none of these missing (all that need both
    /// ends, if none is named): whoever has less is refused
    #[arg(long, value_name = "HANDLER,...", num_args = 0..=1, require_equals = true,
          default_missing_value = "", value_delimiter = ',')]
    require: Option<Vec<String>>,
    /// With --require, agree by the first bytes of each connection, for ends that may not write into
    /// SYNs: both must have the same handlers then. Without privilege it is always so
    #[arg(long, requires = "require")]
    greet: bool,
}

impl AgreeArgs {
    /// What they mean for the chain of these handlers; `None` if nothing is agreed on.
    ///
    /// # Errors
    /// What keeps the chain from being agreed on.
    pub fn load(
        &self,
        specs: &[HandlerSpec],
        chain: &Factories,
        registry: &Registry,
    ) -> Result<Option<Agreed>> {
        let (option, required) = match (&self.require, self.prefer) {
            (None, false) => return Ok(None),
            (None, true) => ("--prefer", Required::None),
            (Some(names), _) => match names.iter().all(String::is_empty) {
                true => ("--require", Required::All),
                false => ("--require", Required::These(names.clone())),
            },
        };
        let both_ends = registry.both_ends(specs);
        let names: Vec<_> =
            chain.iter().zip(&both_ends).map(|(of, both)| (of.name(), *both)).collect();
        let terms = Terms::new(&names, &required).map_err(|error| anyhow!("{option}: {error}"))?;
        let (greets, insists) = (self.greet, self.require.is_some());
        Ok(Some(Agreed { terms, both_ends, greets, insists, begun: OnceLock::new() }))
    }
}

/// How it has begun.
#[derive(Debug)]
pub enum Begun {
    /// By options of SYNs.
    Offering(Arc<Agreeing>),
    /// By first bytes, with this chain.
    Greeting(Factories),
}

/// What is agreed on, and with whom once that has begun.
#[derive(Debug)]
pub struct Agreed {
    terms: Terms,
    both_ends: Vec<bool>,
    /// By first bytes.
    greets: bool,
    insists: bool,
    begun: OnceLock<(Arc<Agreeing>, Ports)>,
}

impl Agreed {
    /// Begins for `chain`: connections and listeners of programs that are seen by `via` and opened from
    /// now on agree; above a master by first bytes alone, for the SYNs are that one's.
    ///
    /// # Errors
    /// It takes a right that is missing.
    pub fn begin(&self, via: Via, chain: &Factories, above: bool) -> Result<Begun> {
        let greeting = || Begun::Greeting(greeting(&self.terms, chain, &self.both_ends));
        match via {
            _ if self.greets || above && self.insists => Ok(greeting()),
            _ if above => Err(anyhow!(
                "--prefer offers in SYNs, which above a master (--master) are that one's; --require can do \
                 without"
            )),
            Via::Seccomp | Via::Preload if self.insists => Ok(greeting()),
            Via::Seccomp | Via::Preload => Err(anyhow!(
                "--prefer offers in SYNs, so that plain peers are not harmed, which takes root and --via \
                 cgroup; --require with the whole chain can do without"
            )),
            Via::Auto if self.insists => self.offer(chain).or_else(|why| {
                info!("not by options of SYNs ({why:#}), but by first bytes");
                Ok(greeting())
            }),
            Via::Auto | Via::Cgroup => self.offer(chain),
        }
    }

    fn offer(&self, chain: &Factories) -> Result<Begun> {
        let ports = Ports::new().map_err(|why| {
            anyhow!("--prefer and --require say what they offer in SYNs, by BPF: {why}")
        })?;
        let (terms, both_ends) = (self.terms.clone(), self.both_ends.clone());
        let agreeing = Arc::new(Agreeing::new(terms, chain.clone(), both_ends, &ports)?);
        let (agreeing, _) = self.begun.get_or_init(|| (agreeing, ports));
        Ok(Begun::Offering(agreeing.clone()))
    }

    /// With whom by options of SYNs, and where programs that listen are noted; `None` if not so.
    pub fn begun(&self) -> Option<&(Arc<Agreeing>, Ports)> {
        self.begun.get()
    }
}

/// The interposer to take, if some way of agreeing takes one.
pub fn via(via: Via, plan: &Plan) -> Via {
    let offers = plan.agree.as_ref().is_some_and(|agree| agree.begun().is_some());
    if offers { Via::Cgroup } else { via }
}

/// Lets in whoever agrees on handlers.
#[derive(Debug)]
pub struct Door {
    agreeing: Arc<Agreeing>,
    report: Option<Report>,
    strangers: Strangers,
}

impl Door {
    /// Who is turned away is counted in `report`.
    pub fn new(agreeing: Arc<Agreeing>, report: Option<Report>) -> Door {
        Door { agreeing, report, strangers: Strangers::default() }
    }

    /// The handlers for a client; `None`: it is refused, by a reset.
    pub fn let_in(&mut self, stream: &TcpStream, client: SocketAddr) -> Option<Factories> {
        let syn = tcp::saved_syn(stream).unwrap_or_default();
        match self.agreeing.accept(&syn) {
            Ok(handlers) => Some(handlers),
            Err(why) => {
                self.strangers.tell(client, &why, Instant::now());
                if let Some(report) = &self.report {
                    // One line for each client, whatever its port.
                    let whose = SocketAddr::new(client.ip(), 0);
                    report.count(Fate::Refused, "tcp from", whose);
                }
                // It is closed here.
                let _ = tcp::reset_on_close(stream);
                None
            }
        }
    }
}

/// How often the log is told of one and the same client that was turned away.
const QUIET: Duration = Duration::from_secs(60);
/// Clients that are remembered; whoever comes when there are more is told of with the next of them.
const CLIENTS: usize = 256;

/// Clients that were turned away, as the log hears of them: once in a while, with how many there were.
#[derive(Debug, Default)]
struct Strangers {
    clients: HashMap<IpAddr, (Instant, u64)>,
}

impl Strangers {
    /// One more is turned away.
    fn tell(&mut self, client: SocketAddr, why: &Refusal, now: Instant) {
        if let Some(times) = self.count(client.ip(), now) {
            let before = if times > 0 { format!(" ({times} more since)") } else { String::new() };
            warn!("refused: a connection from {client}: {why}{before}");
        }
    }

    /// How many there have been since the log was told; `None` if it is not to be told yet.
    fn count(&mut self, client: IpAddr, now: Instant) -> Option<u64> {
        if self.clients.len() >= CLIENTS {
            self.clients.retain(|_, (told, _)| now.duration_since(*told) < QUIET);
        }
        let full = self.clients.len() >= CLIENTS;
        match self.clients.get_mut(&client) {
            Some((told, times)) if now.duration_since(*told) < QUIET => {
                *times += 1;
                None
            }
            Some((told, times)) => {
                *told = now;
                Some(std::mem::take(times))
            }
            None if full => None,
            None => {
                self.clients.insert(client, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_a_client_once_in_a_while() {
        let mut strangers = Strangers::default();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let now = Instant::now();
        assert_eq!(strangers.count(one, now), Some(0));
        assert_eq!(strangers.count(one, now), None);
        assert_eq!(strangers.count(one, now), None);
        assert_eq!(strangers.count(other, now), Some(0));
        assert_eq!(strangers.count(one, now + QUIET), Some(2));
        for n in 0..2 * CLIENTS as u32 {
            strangers.count(IpAddr::from(n.to_be_bytes()), now + QUIET);
        }
        assert!(strangers.clients.len() <= CLIENTS);
    }
}
