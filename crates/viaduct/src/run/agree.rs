//! Handlers that are agreed on with the far end of each flow: what is said of it on the command line,
//! and who is turned away.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, anyhow};
use tracing::info;
use viaduct_proto::agree::{Required, Terms, greeting};
use viaduct_proto::flow::{HandlerSpec, Registry};
use viaduct_sys::bpf::Ports;
use viaduct_sys::tcp;

use super::Plan;
use super::report::{Fate, Report};
use super::via::Via;
use crate::proxy::agreeing::Agreeing;
use crate::proxy::through::Factories;
use crate::sparing::Sparing;

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
                "--prefer offers in SYNs, which above a master (--master) are that one's; \
                    --require can do \
                 without"
            )),
            Via::Seccomp | Via::Preload if self.insists => Ok(greeting()),
            Via::Seccomp | Via::Preload => Err(anyhow!(
                "--prefer offers in SYNs, so that plain peers are not harmed, which takes root \
                    and --via \
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
    /// Clients that were turned away.
    strangers: Sparing<IpAddr>,
}

impl Door {
    /// Who is turned away is counted in `report`.
    pub fn new(agreeing: Arc<Agreeing>, report: Option<Report>) -> Door {
        Door { agreeing, report, strangers: Sparing::new(1) }
    }

    /// The handlers for a client; `None`: it is refused, by a reset.
    pub fn let_in(&mut self, stream: &TcpStream, client: SocketAddr) -> Option<Factories> {
        let syn = tcp::saved_syn(stream).unwrap_or_default();
        match self.agreeing.accept(&syn) {
            Ok(handlers) => Some(handlers),
            Err(why) => {
                let line = format_args!("refused: a connection from {client}: {why}");
                self.strangers.warn(client.ip(), line);
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
