//! Destinations of flows, and the route that each flow takes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::{fmt, io};

use ipnet::IpNet;
use rustix::io::Errno;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::split::preface::{Protocols, Secret};
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::split::syn::Syn;
use viaduct_sys::route::local_addresses::LocalAddresses;
use viaduct_sys::socket::tcp::LongHaul;

use super::next_hops::Choice;
use super::outbound::OutboundSpec;
use super::policy::{Plan, Policies, holds};

/// Rule that gives flows their destination.
#[derive(Clone, Debug)]
pub enum Target {
    /// A fixed address for all flows.
    Fixed(SocketAddr),
    /// Original destination of each client's connection, by tproxy.
    Original {
        /// True if servers see the client's address.
        keep_client: bool,
    },
    /// Destination that each client requests.
    Requested(Terms),
    /// Destination of a wrapped program ([`super::wrapped`]); no other clients are accepted.
    Program,
}

/// Clients that may request a destination, the protocols, and the permitted destinations. An
/// open proxy would be abused for attacks on others.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Protocols that are accepted.
    pub protocols: Protocols,
    /// Name and password that clients must present.
    pub secret: Secret,
    /// Permitted client addresses.
    pub from: Vec<IpNet>,
    /// Permitted server addresses.
    pub to: Vec<IpNet>,
}

/// Route of a flow to its server.
#[derive(Clone, Debug)]
pub struct Route {
    /// Destination; a host name only where the tunnel or a handler accepts names.
    pub to: Address,
    /// Local address to connect from; `None` if the kernel chooses it.
    pub from: Option<SocketAddr>,
    /// True if `from` is the spoofed address of a client on another host; valid only towards `to`.
    pub keeps_client: bool,
    /// Client's address, or the source address that a previous hop has named.
    pub source: SocketAddr,
    /// Addresses to send to the hop, if the flow goes through one. Otherwise the addresses in the
    /// option of the client's SYN, which are meant for a later hop.
    pub signalled: Option<Addresses>,
    /// Decision of the policy.
    pub plan: Arc<Plan>,
    /// True if the client's end cannot be spliced: it is a stream of a tunnel, or a lent socket.
    pub copied: bool,
    /// Long-haul socket settings, if the connection crosses the long link.
    pub haul: Option<LongHaul>,
    /// Outbound that replaces the plan's: the hop chosen from a list, a detour, a transport that
    /// the handlers have named, or a direct connection where the outbound is known to fail.
    pub instead: Option<OutboundSpec>,
    /// Hops that have failed, whether they are in the plan's list or were chosen by measurements.
    pub tried: Vec<SocketAddr>,
    /// Local address of a direct connection, if no hop of the plan's list is left.
    pub direct_from: Option<SocketAddr>,
}

impl Target {
    /// Returns whether a running proxy can switch to `other` without a restart.
    pub fn is_alike(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Fixed(_), Target::Fixed(_))
            | (Target::Original { .. }, Target::Original { .. }) => true,
            (Target::Requested(ours), Target::Requested(theirs)) => {
                ours.protocols == theirs.protocols
            }
            _ => false,
        }
    }

    /// Final destination of a flow: the one in `signalled` if a hop has sent it, otherwise the
    /// destination of the client's connection `tuple`. A fixed target ignores both.
    pub fn destination(&self, tuple: &Tuple, signalled: Option<Addresses>) -> SocketAddr {
        match self {
            Target::Fixed(to) => *to,
            _ => signalled.map_or(tuple.to, |signalled| signalled.destination),
        }
    }

    /// Returns whether servers see clients' addresses.
    pub fn keeps_clients(&self) -> bool {
        matches!(self, Target::Original { keep_client: true, .. })
    }

    /// Returns whether sockets use other hosts' addresses (transparent proxy).
    pub fn is_transparent(&self) -> bool {
        matches!(self, Target::Original { .. })
    }

    /// Returns whether a SYN may carry the destination of its flow.
    pub fn may_be_in_syn(&self) -> bool {
        !matches!(self, Target::Requested(terms) if !terms.protocols.option)
    }

    /// Returns whether options in SYNs are used: for the destination, or for a later hop.
    pub fn uses_options(&self) -> bool {
        match self {
            Target::Fixed(_) | Target::Program => false,
            Target::Original { .. } => true,
            Target::Requested(terms) => terms.protocols.option,
        }
    }

    /// Addresses that `syn` carries, if this target uses them.
    pub fn signalled(&self, syn: &Syn) -> Option<Addresses> {
        match self {
            Target::Requested(Terms { protocols, .. }) => match syn.hop {
                Some(_) => syn.addresses().filter(|_| protocols.option),
                None => syn.header.filter(|_| protocols.proxy),
            },
            Target::Original { .. } => syn.hop.and_then(|_| syn.addresses()),
            Target::Fixed(_) | Target::Program => None,
        }
    }

    /// Route of the flow of the client's connection `tuple`. `signalled` has the addresses that a
    /// hop has sent, if any. `None` if the flow is not permitted.
    pub fn route(
        &self,
        tuple: &Tuple,
        signalled: Option<Addresses>,
        policies: &Policies,
    ) -> Option<Route> {
        match self {
            Target::Program => None,
            Target::Fixed(to) => Route::by(policies, tuple.client, (*to, Onward::Open), None),
            // A host's connection to its own address does not pass through this machine, so such a
            // SYN is the proxy's own. A connection begun for it would cause another one, endlessly.
            Target::Original { .. } if tuple.client.ip() == tuple.to.ip() => None,
            // Connections to this machine are not intercepted. But their SYNs are seen, and clients
            // may connect to the proxy's own listener: a connection begun with the client's address
            // would come back to that listener.
            Target::Original { .. } if is_here(tuple.to) => None,
            Target::Original { keep_client, .. } => {
                let from = keep_client.then_some(tuple.client);
                let route = Route::by(policies, tuple.client, (tuple.to, Onward::Open), from)?;
                // Addresses for a later hop are passed on, unless this proxy chooses a hop.
                let signalled = route.signalled.or(signalled);
                Some(Route { signalled, keeps_client: route.from.is_some(), ..route })
            }
            Target::Requested(terms) => {
                let Addresses { source, destination, onward } = signalled?;
                let may = terms.allows_client(tuple.client.ip())
                    && terms.allows_destination(destination.ip());
                if may { Route::by(policies, source, (destination, onward), None) } else { None }
            }
        }
    }
}

impl Route {
    /// Route of `client` to `to`, from the local address `from` if given. If a policy names a hop,
    /// the route goes through that hop, which is sent both addresses. If an earlier hop has chosen
    /// the rest of the route, `onward`, no hop is chosen by measurements here. `None` if a policy
    /// denies the flow, or if `to` is the unspecified address: the kernel would connect it to this
    /// machine, which would bypass rules about this machine's addresses.
    pub fn by(
        policies: &Policies,
        client: SocketAddr,
        (to, onward): (SocketAddr, Onward),
        from: Option<SocketAddr>,
    ) -> Option<Route> {
        let plan = policies.plan(client.ip(), to);
        if plan.deny || to.ip().to_canonical().is_unspecified() {
            return None;
        }
        Some(Route::planned(policies, plan, (client, to, from), (onward, Vec::new())))
    }

    /// Route of `client` to `to`, from the local address `from` if given. The route follows `plan`
    /// and `onward`, the rest of the route that an earlier hop has chosen. The hops in `tried` have
    /// failed.
    fn planned(
        policies: &Policies,
        plan: &Arc<Plan>,
        (client, to, from): (SocketAddr, SocketAddr, Option<SocketAddr>),
        (onward, tried): (Onward, Vec<SocketAddr>),
    ) -> Route {
        let direct = || (None, Some(policies.detour(to.ip()).cloned().unwrap_or_default()));
        let by = |at| (Some(at), Some(OutboundSpec::Hop(at)));
        let mut rest = Onward::Open;
        let (hop, instead) = match &plan.by {
            OutboundSpec::Direct => (None, policies.detour(to.ip()).cloned()),
            OutboundSpec::Hop(at) => (Some(*at), None),
            OutboundSpec::Hops(list) => match list.choose(&policies.health, &tried) {
                Choice::Hop(at) => by(at),
                Choice::Direct => direct(),
                // No hop is left. The connection fails, because the list itself is not an outbound.
                Choice::Refused => (None, None),
            },
            OutboundSpec::Auto(_) if !tried.is_empty() => direct(),
            OutboundSpec::Auto(spec) => match policies.auto.follow(onward, to.ip(), spec) {
                Some((at, further)) => {
                    rest = further;
                    by(at)
                }
                None => direct(),
            },
            OutboundSpec::Tunnel(_) | OutboundSpec::Trickles(_) => (None, None),
        };
        let haul = policies.far.haul(hop.unwrap_or(to).ip()).cloned();
        let straight = Route::straight(plan, client, to.into());
        let straight = Route { from, haul, instead, tried, direct_from: from, ..straight };
        match hop {
            None => straight,
            Some(hop) => {
                let signalled = Some(Addresses { onward: rest, ..Addresses::new(client, to) });
                Route { to: hop.into(), from: None, signalled, ..straight }
            }
        }
    }

    /// Route of the same flow after its hop has failed: through the next hop of the list, or
    /// directly. `None` if the flow has a single hop, or nothing is left to try.
    pub fn after_failure(&self, policies: &Policies) -> Option<Route> {
        let failed = self.outbound().hop().filter(|_| self.plan.by.has_alternatives())?;
        let ends = (self.source, self.signalled?.destination, self.direct_from);
        let tried = [&self.tried[..], &[failed]].concat();
        let next = Route::planned(policies, &self.plan, ends, (Onward::Open, tried));
        let is_left = next.outbound().list().is_none();
        let keeps_client = next.from.is_some();
        is_left.then_some(Route { copied: self.copied, keeps_client, ..next })
    }

    /// Route of a flow of `client` to `to` according to `plan`, without a hop.
    pub(super) fn straight(plan: &Arc<Plan>, client: SocketAddr, to: Address) -> Route {
        Route {
            to,
            from: None,
            keeps_client: false,
            source: client,
            signalled: None,
            plan: plan.clone(),
            copied: false,
            haul: None,
            instead: None,
            tried: Vec::new(),
            direct_from: None,
        }
    }

    /// Outbound in use.
    pub fn outbound(&self) -> &OutboundSpec {
        self.instead.as_ref().unwrap_or(&self.plan.by)
    }

    /// Route of `client` to the host `name`, if no policy here depends on the host's address;
    /// `None` if the name must be resolved first. `Err` if the flow is denied, whatever the host's
    /// address.
    pub fn by_name(
        policies: &Policies,
        client: SocketAddr,
        name: &str,
        port: u16,
    ) -> Option<Result<Route, Failure>> {
        let plan = policies.plan_unseen(client.ip(), port)?;
        if plan.deny {
            return Some(Err(Failure::Denied));
        }
        let mut handlers = plan.handlers.iter().flat_map(|all| all.iter());
        let by_handler = handlers.any(|handler| handler.takes_names());
        let travels = match plan.by {
            OutboundSpec::Tunnel(_) => true,
            OutboundSpec::Direct | OutboundSpec::Trickles(_) => by_handler,
            OutboundSpec::Hop(_) | OutboundSpec::Hops(_) | OutboundSpec::Auto(_) => false,
        };
        let to = Address::Name(name.to_owned(), port);
        travels.then(|| Ok(Route::straight(plan, client, to)))
    }
}

impl Terms {
    /// Returns whether a client with this address may request a destination.
    pub fn allows_client(&self, client: IpAddr) -> bool {
        holds(&self.from, client)
    }

    /// Returns whether a client may connect to `to`.
    pub fn allows_destination(&self, to: IpAddr) -> bool {
        holds(&self.to, to)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Fixed(to) => to.fmt(f),
            Target::Original { .. } => f.write_str("each client's original destination"),
            Target::Requested(_) => f.write_str("the destination that each client names"),
            Target::Program => f.write_str("each program's destination"),
        }
    }
}

/// Returns whether `to` is an address of this machine.
pub fn is_here(to: SocketAddr) -> bool {
    thread_local! {
        /// A netlink socket for each thread, so that no thread reads the answer to another thread's
        /// query.
        static HERE: Option<LocalAddresses> = LocalAddresses::new().ok();
    }
    let ip = to.ip().to_canonical();
    let has = |here: &LocalAddresses| here.contains(ip).unwrap_or(false);
    ip.is_loopback() || HERE.with(|here| here.as_ref().is_some_and(has))
}

/// Maps a connection error to the failure that is reported.
pub fn failure(error: &io::Error) -> Failure {
    if let Some(number) = error.raw_os_error()
        && [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&number)
    {
        return Failure::Full;
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::TimedOut => Failure::TimedOut,
        io::ErrorKind::ConnectionReset => Failure::Reset,
        io::ErrorKind::PermissionDenied => Failure::Denied,
        _ => Failure::Unreachable,
    }
}

/// Returns an error that [`failure`] maps back to `failure`.
pub fn error_of(failure: Failure) -> io::Error {
    let kind = match failure {
        Failure::Refused => io::ErrorKind::ConnectionRefused,
        Failure::TimedOut => io::ErrorKind::TimedOut,
        Failure::Reset => io::ErrorKind::ConnectionReset,
        Failure::Denied => io::ErrorKind::PermissionDenied,
        Failure::Unreachable => io::ErrorKind::HostUnreachable,
        Failure::Full => return Errno::MFILE.into(),
    };
    kind.into()
}
