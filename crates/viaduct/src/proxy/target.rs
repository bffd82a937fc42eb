//! Where a flow goes, and by which hop.

use std::net::{IpAddr, SocketAddr};
use std::{fmt, io};

use ipnet::IpNet;
use rustix::io::Errno;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::{Languages, Secret};
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::split::syn::Syn;
use viaduct_sys::here::Here;
use viaduct_sys::tcp::LongHaul;

use super::onward::Onward;
use super::policy::{Plan, Policies, holds};
use super::through::Factories;

/// Where flows go.
#[derive(Clone, Debug)]
pub enum Target {
    /// All to one place.
    Fixed(SocketAddr),
    /// Each to where its client meant to, as tproxy says.
    Meant {
        /// With the client's address.
        keep_client: bool,
    },
    /// Each to where its client says.
    Asked(Terms),
    /// Each to where a wrapped program does ([`super::calls`]); nobody else comes.
    Called,
}

/// Who may say so, how, and where to: an open proxy is somebody else's weapon.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What is understood.
    pub languages: Languages,
    /// The name and password that clients must know.
    pub secret: Secret,
    /// Clients' addresses.
    pub from: Vec<IpNet>,
    /// Servers' addresses.
    pub to: Vec<IpNet>,
}

/// A flow's second half, to be begun.
#[derive(Clone, Debug)]
pub struct Route {
    /// Where to; a name only through the tunnel.
    pub to: Address,
    /// With which address, if not our own.
    pub from: Option<SocketAddr>,
    /// That is its client's, who is elsewhere: it stands towards `to`, and to nobody else.
    pub keeps_client: bool,
    /// Who it is for.
    pub source: SocketAddr,
    /// What the hop is told, if it goes by one.
    pub told: Option<Addresses>,
    /// What the option of the client's SYN tells a hop further on.
    pub carries: Option<Addresses>,
    /// How it goes on.
    pub by: Onward,
    /// The handlers that it passes, if any.
    pub handlers: Option<Factories>,
    /// Its client comes from the same handlers elsewhere.
    pub accepts: bool,
    /// Its client's end is no connection, and cannot be spliced.
    pub copied: bool,
    /// Bits a second that the kernel lets pass each way, if there is a limit.
    pub rate: Option<u64>,
    /// How its connection is set up for a long link, if it crosses it.
    pub haul: Option<LongHaul>,
}

impl Target {
    /// Whether a running proxy can take up `other` instead.
    pub fn is_alike(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Fixed(_), Target::Fixed(_)) | (Target::Meant { .. }, Target::Meant { .. }) => {
                true
            }
            (Target::Asked(ours), Target::Asked(theirs)) => ours.languages == theirs.languages,
            _ => false,
        }
    }

    /// Where the flow that `tuple` names goes in the end, or the one that was `told` of.
    pub fn destination(&self, tuple: &Tuple, told: Option<Addresses>) -> SocketAddr {
        match self {
            Target::Fixed(to) => *to,
            _ => told.map_or(tuple.to, |told| told.destination),
        }
    }

    /// Whether servers see clients' addresses.
    pub fn keeps_clients(&self) -> bool {
        matches!(self, Target::Meant { keep_client: true, .. })
    }

    /// Whether sockets take other hosts' addresses.
    pub fn is_transparent(&self) -> bool {
        matches!(self, Target::Meant { .. })
    }

    /// Whether a SYN may tell where its flow goes.
    pub fn is_in_the_syn(&self) -> bool {
        !matches!(self, Target::Asked(terms) if !terms.languages.option)
    }

    /// Whether options in SYNs matter: they may tell where to, or are for a hop further on.
    pub fn heeds_options(&self) -> bool {
        match self {
            Target::Fixed(_) | Target::Called => false,
            Target::Meant { .. } => true,
            Target::Asked(terms) => terms.languages.option,
        }
    }

    /// What `syn` tells, as far as it is heeded.
    pub fn told(&self, syn: &Syn) -> Option<Addresses> {
        match self {
            Target::Asked(Terms { languages, .. }) => match syn.hop {
                Some(_) => syn.told().filter(|_| languages.option),
                None => syn.header.filter(|_| languages.proxy),
            },
            Target::Meant { .. } => syn.hop.and_then(|_| syn.told()),
            Target::Fixed(_) | Target::Called => None,
        }
    }

    /// How the flow that `tuple` names goes on, or the one that was `told` of; `None` if it may not.
    pub fn route(
        &self,
        tuple: &Tuple,
        told: Option<Addresses>,
        policies: &Policies,
    ) -> Option<Route> {
        match self {
            Target::Called => None,
            Target::Fixed(to) => Route::by(policies, tuple.client, *to, None),
            // Nothing passes this machine from itself to itself: it would be our own connection,
            // and so would the one that it asks for.
            Target::Meant { .. } if tuple.client.ip() == tuple.to.ip() => None,
            // What goes to this machine does not pass it. Its SYNs are seen all the same, and clients may come to
            // our own listener: with the client's address its second half would come back.
            Target::Meant { .. } if is_here(tuple.to) => None,
            Target::Meant { keep_client, .. } => {
                let from = keep_client.then_some(tuple.client);
                let route = Route::by(policies, tuple.client, tuple.to, from)?;
                // What a hop further on is told goes on with the flow, unless that is bent here.
                let carries = told.filter(|_| route.by.hop().is_none());
                Some(Route { carries, keeps_client: route.from.is_some(), ..route })
            }
            Target::Asked(terms) => {
                let Addresses { source, destination } = told?;
                let may = terms.may_ask(tuple.client.ip()) && terms.may_go(destination.ip());
                if may { Route::by(policies, source, destination, None) } else { None }
            }
        }
    }
}

impl Route {
    /// The way of `client` to `to`, with the address `from` if that is given; by a hop, which is told
    /// both, if a policy wants it. `None` if it may not: nobody may go to no address in particular, which
    /// the kernel takes for this machine, past rules about its addresses.
    pub fn by(
        policies: &Policies,
        client: SocketAddr,
        to: SocketAddr,
        from: Option<SocketAddr>,
    ) -> Option<Route> {
        let plan = policies.plan(client.ip(), to);
        if plan.deny || to.ip().to_canonical().is_unspecified() {
            return None;
        }
        let hop = plan.by.hop();
        let haul = policies.far.haul(hop.unwrap_or(to).ip()).cloned();
        let straight = Route { from, haul, ..Route::straight(plan, client, to.into()) };
        Some(match hop {
            None => straight,
            Some(hop) => {
                let told = Some(Addresses { source: client, destination: to });
                Route { to: hop.into(), from: None, told, ..straight }
            }
        })
    }

    /// What `plan` says of a flow of `client` to where it goes.
    fn straight(plan: &Plan, client: SocketAddr, to: Address) -> Route {
        Route {
            to,
            from: None,
            keeps_client: false,
            source: client,
            told: None,
            carries: None,
            by: plan.by.clone(),
            handlers: plan.handlers.clone(),
            accepts: plan.accepts,
            copied: false,
            rate: plan.rate,
            haul: None,
        }
    }

    /// The way of `client` to the host of this name, if nobody here has to know its address; `None`: it
    /// must be looked up. `Err`: it may not, whatever its address is.
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
            Onward::Tunnel(_) => true,
            Onward::Direct | Onward::Trickles(_) => by_handler,
            Onward::Hop(_) => false,
        };
        let to = Address::Name(name.to_owned(), port);
        travels.then(|| Ok(Route::straight(plan, client, to)))
    }
}

impl Terms {
    /// Whether a client of this address may ask.
    pub fn may_ask(&self, client: IpAddr) -> bool {
        holds(&self.from, client)
    }

    /// Whether it may go there.
    pub fn may_go(&self, to: IpAddr) -> bool {
        holds(&self.to, to)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Fixed(to) => to.fmt(f),
            Target::Meant { .. } => f.write_str("where each client meant to"),
            Target::Asked(_) => f.write_str("where each client says"),
            Target::Called => f.write_str("where each program does"),
        }
    }
}

/// Whether this is an address of this machine's: what goes there comes from there.
pub fn is_here(to: SocketAddr) -> bool {
    thread_local! {
        /// One a thread: answers must not meet another thread's questions.
        static HERE: Option<Here> = Here::new().ok();
    }
    let ip = to.ip().to_canonical();
    let has = |here: &Here| here.has(ip).unwrap_or(false);
    ip.is_loopback() || HERE.with(|here| here.as_ref().is_some_and(has))
}

/// What an error of a connection means to whoever asked for it.
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

/// The error that means [`failure`].
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
