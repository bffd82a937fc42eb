//! Negotiation of handlers with the far end of each flow: command-line options, and the rejection
//! of clients that lack a required handler.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, anyhow};
use tracing::info;
use viaduct_proto::flow::{HandlerSpec, Registry};
use viaduct_proto::negotiate::{Required, Terms, offer_in_band};
use viaduct_sys::bpf::Ports;
use viaduct_sys::socket::tcp;

use super::Plan;
use super::report::{FlowOutcome, Report};
use super::via::Via;
use crate::engine::chain_io::Factories;
use crate::engine::negotiation::Negotiation;
use crate::rate_limited::RateLimitedLog;

/// Options for the negotiation of handlers.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NegotiateArgs {
    /// Negotiate the handlers with each far end, and with each client of a listening program,
    /// without an additional round trip; connections to ends without Viaduct are plain
    #[arg(long, conflicts_with = "require")]
    prefer: bool,
    /// Negotiate the handlers with each far end, and refuse flows whose far end lacks one of the
    /// named handlers; without names, flows whose far end lacks a handler that both ends need
    #[arg(long, value_name = "HANDLER,...", num_args = 0..=1, require_equals = true,
          default_missing_value = "", value_delimiter = ',')]
    require: Option<Vec<String>>,
    /// With --require, negotiate in the first bytes of each connection instead of SYN options,
    /// which require privilege; both ends must then have the same handlers [default without
    /// privilege]
    #[arg(long, requires = "require")]
    greet: bool,
}

impl NegotiateArgs {
    /// Applies the options to the chain of these handlers; `None` if nothing is negotiated. Errors:
    /// the chain cannot be negotiated.
    pub fn load(
        &self,
        specs: &[HandlerSpec],
        chain: &Factories,
        registry: &Registry,
    ) -> Result<Option<RunNegotiation>> {
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
        let (by_first_bytes, is_required) = (self.greet, self.require.is_some());
        Ok(Some(RunNegotiation {
            terms,
            both_ends,
            by_first_bytes,
            is_required,
            syn_options: OnceLock::new(),
        }))
    }
}

/// Method of negotiation in use.
#[derive(Debug)]
pub enum NegotiationMode {
    /// In TCP options of SYNs.
    SynOptions(Arc<Negotiation>),
    /// In the first bytes of a connection, with this chain.
    FirstBytes(Factories),
}

/// Terms of the negotiation, and its state once the negotiation has begun.
#[derive(Debug)]
pub struct RunNegotiation {
    terms: Terms,
    both_ends: Vec<bool>,
    /// Set to negotiate in the first bytes of a connection (`--greet`).
    by_first_bytes: bool,
    is_required: bool,
    syn_options: OnceLock<(Arc<Negotiation>, Ports)>,
}

impl RunNegotiation {
    /// Starts the negotiation of `chain`, for connections and listeners that programs under the
    /// interposer `via` open after this call. A parent master sends the SYNs itself, so a nested
    /// run can negotiate only in the first bytes of connections. Errors: a privilege is missing, or
    /// the options are not possible with `via` or in a nested run.
    pub fn start(&self, via: Via, chain: &Factories, is_nested: bool) -> Result<NegotiationMode> {
        let greeting =
            || NegotiationMode::FirstBytes(offer_in_band(&self.terms, chain, &self.both_ends));
        match via {
            _ if self.by_first_bytes || is_nested && self.is_required => Ok(greeting()),
            _ if is_nested => Err(anyhow!(
                "--prefer cannot be used with --master: it offers handlers in SYNs, which the \
                 master sends; --require works without SYN options"
            )),
            Via::Seccomp | Via::Preload if self.is_required => Ok(greeting()),
            Via::Seccomp | Via::Preload => Err(anyhow!(
                "--prefer offers handlers in SYNs, which needs root and --via cgroup; --require \
                 with the whole chain works without them"
            )),
            Via::Auto if self.is_required => self.use_syn_options(chain).or_else(|why| {
                info!("handlers are negotiated in first bytes, not in SYNs: {why:#}");
                Ok(greeting())
            }),
            Via::Auto | Via::Cgroup => self.use_syn_options(chain),
        }
    }

    fn use_syn_options(&self, chain: &Factories) -> Result<NegotiationMode> {
        let ports = Ports::new().map_err(|why| {
            anyhow!("--prefer and --require cannot offer handlers in SYNs by BPF: {why}")
        })?;
        let (terms, both_ends) = (self.terms.clone(), self.both_ends.clone());
        let negotiation = Arc::new(Negotiation::new(terms, chain.clone(), both_ends, &ports)?);
        let (negotiation, _) = self.syn_options.get_or_init(|| (negotiation, ports));
        Ok(NegotiationMode::SynOptions(negotiation.clone()))
    }

    /// Negotiation in SYN options, if in use, and the ports at which programs listen.
    pub fn syn_options(&self) -> Option<&(Arc<Negotiation>, Ports)> {
        self.syn_options.get()
    }
}

/// Returns the interposer to use: negotiation in SYNs requires [`Via::Cgroup`].
pub fn choose_via(via: Via, plan: &Plan) -> Via {
    let offers =
        plan.negotiation.as_ref().is_some_and(|negotiation| negotiation.syn_options().is_some());
    if offers { Via::Cgroup } else { via }
}

/// Filter that accepts or rejects clients of programs by the result of the negotiation of handlers.
#[derive(Debug)]
pub struct ClientFilter {
    negotiation: Arc<Negotiation>,
    report: Option<Report>,
    /// Rate-limited log of rejected clients.
    rejections: RateLimitedLog<IpAddr>,
}

impl ClientFilter {
    /// Returns a filter that counts rejected clients in `report`.
    pub fn new(negotiation: Arc<Negotiation>, report: Option<Report>) -> ClientFilter {
        ClientFilter { negotiation, report, rejections: RateLimitedLog::new(1) }
    }

    /// Returns the handlers for a client; `None` if the client is rejected, and will be reset.
    pub fn accept(&mut self, stream: &TcpStream, client: SocketAddr) -> Option<Factories> {
        let syn = tcp::saved_syn(stream).unwrap_or_default();
        match self.negotiation.accept(&syn) {
            Ok(handlers) => Some(handlers),
            Err(why) => {
                let line = format_args!("refused: a connection from {client}: {why}");
                self.rejections.warn(client.ip(), line);
                if let Some(report) = &self.report {
                    // The report has one line for each client address, so the port is left out.
                    let whose = SocketAddr::new(client.ip(), 0);
                    report.count(FlowOutcome::Refused, "tcp from", whose);
                }
                // The caller closes the connection.
                let _ = tcp::reset_on_close(stream);
                None
            }
        }
    }
}
