//! The questions of `viaduct setup`: a state machine that is given flags and answers, and returns
//! the next open question. It does no I/O.
//!
//! ```text
//!   Facts, flags ─▶ Setup ── poll_question ─▶ Question        finish ─▶ Draft
//!                     ▲─────── handle_answer ◀─ text            ▲
//!                     └─ take_defaults: no questions ───────────┘
//! ```

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use viaduct_proto::keys::PublicKey;

use super::draft::Draft;
use super::facts::{Facts, ip_of, is_private};
use crate::gateway::config::{check_site_name, parse_endpoint};
use crate::value_parser;

/// Port for repairs.
const PORT: u16 = 7400;

/// A value of the config, in the order of the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Name of this site.
    Name,
    /// Name of the other site.
    Peer,
    /// Prefixes of the other site's hosts.
    PeerPrefix,
    /// Address of the other site's gateway; may be empty.
    PeerEndpoint,
    /// Public key of the other site; may be empty.
    PeerKey,
    /// Interface towards the other site.
    Wan,
    /// Address at which repairs arrive.
    Listen,
    /// Prefixes of this site's hosts.
    Prefix,
}

/// All items.
pub const ITEMS: [Item; 8] = [
    Item::Name,
    Item::Peer,
    Item::PeerPrefix,
    Item::PeerEndpoint,
    Item::PeerKey,
    Item::Wan,
    Item::Listen,
    Item::Prefix,
];

impl Item {
    /// Flag, and a placeholder for its value.
    pub fn flag(self) -> (&'static str, &'static str) {
        match self {
            Item::Name => ("--name", "NAME"),
            Item::Peer => ("--peer", "NAME"),
            Item::PeerPrefix => ("--peer-prefix", "PREFIX,..."),
            Item::PeerEndpoint => ("--peer-endpoint", "HOST:PORT"),
            Item::PeerKey => ("--peer-key", "KEY"),
            Item::Wan => ("--wan", "INTERFACE"),
            Item::Listen => ("--listen", "ADDRESS:PORT"),
            Item::Prefix => ("--prefix", "PREFIX,..."),
        }
    }
}

/// Question to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Value that is asked for.
    pub item: Item,
    /// Text, without the default.
    pub text: String,
    /// Value of an empty answer; `None` if an answer is required.
    pub default: Option<String>,
}

/// Flags of the command line, one for each of [`ITEMS`], and the address at which the other site
/// reaches this one.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Values of the flags.
    pub values: [Option<String>; 8],
    /// `--endpoint`.
    pub endpoint: Option<String>,
}

/// Questions, and the values known so far.
#[derive(Clone, Debug)]
pub struct Setup {
    facts: Facts,
    values: [Option<String>; 8],
    endpoint: Option<String>,
}

impl Setup {
    /// Checks the flags.
    ///
    /// # Errors
    /// Description of the first wrong flag.
    pub fn new(facts: Facts, given: Given) -> Result<Setup, String> {
        let mut setup = Setup { facts, values: Default::default(), endpoint: None };
        if let Some(text) = given.endpoint {
            let text = with_port(&text);
            parse_endpoint(&text).map_err(|what| format!("--endpoint: {what}"))?;
            setup.endpoint = Some(text);
        }
        for (item, text) in ITEMS.into_iter().zip(given.values) {
            if let Some(text) = text {
                let value = setup.check(item, text.trim());
                setup.values[item as usize] =
                    Some(value.map_err(|what| format!("{}: {what}", item.flag().0))?);
            }
        }
        Ok(setup)
    }

    /// Returns the next open question; `None` if all are answered.
    pub fn poll_question(&self) -> Option<Question> {
        let item = ITEMS.into_iter().find(|&item| self.values[item as usize].is_none())?;
        Some(Question { item, text: self.text(item), default: self.default(item) })
    }

    /// Takes the answer to the open question.
    ///
    /// # Errors
    /// Description of what is wrong with the answer; the question stays open.
    pub fn handle_answer(&mut self, answer: &str) -> Result<(), String> {
        let Some(Question { item, default, .. }) = self.poll_question() else { return Ok(()) };
        let answer = match (answer.trim(), default) {
            ("", Some(default)) => default,
            (answer, _) => answer.to_owned(),
        };
        self.values[item as usize] = Some(self.check(item, &answer)?);
        Ok(())
    }

    /// Answers all open questions by their defaults.
    ///
    /// # Errors
    /// Description of the values that have no default.
    pub fn take_defaults(&mut self) -> Result<(), String> {
        let mut missing = Vec::new();
        for item in ITEMS {
            if self.values[item as usize].is_some() {
                continue;
            }
            match self.default(item) {
                Some(value) => self.values[item as usize] = Some(value),
                None => missing.push(self.missing(item)),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
    }

    /// Flags of the open questions with their defaults, as a command line would have them.
    pub fn open_flags(&self) -> String {
        let mut flags = Vec::new();
        // A default may follow from that of an earlier item.
        let mut filled = self.clone();
        for item in ITEMS.into_iter().filter(|&item| self.values[item as usize].is_none()) {
            let (flag, placeholder) = item.flag();
            let default = filled.default(item).unwrap_or_default();
            let value = if default.is_empty() { placeholder } else { &default };
            flags.push(format!("{flag} {value}"));
            filled.values[item as usize] = Some(default);
        }
        flags.join(" ")
    }

    /// Returns the values, all of which are known, and checks them against each other.
    ///
    /// # Errors
    /// Neither site could connect to the other one.
    pub fn finish(&self) -> Result<Draft, String> {
        let endpoint = self.own_endpoint();
        let peer_endpoint = Some(self.value(Item::PeerEndpoint)).filter(|at| !at.is_empty());
        if endpoint.is_none() && peer_endpoint.is_none() {
            return Err("neither site knows the other's address: --peer-endpoint, or --endpoint \
                        with the address at which that site reaches this one, is expected"
                .to_owned());
        }
        let text = |item| self.value(item).to_owned();
        let key = self.value(Item::PeerKey);
        Ok(Draft {
            name: text(Item::Name),
            prefixes: list(self.value(Item::Prefix)),
            wan: text(Item::Wan),
            listen: text(Item::Listen),
            endpoint,
            peer: text(Item::Peer),
            peer_prefixes: list(self.value(Item::PeerPrefix)),
            peer_endpoint: peer_endpoint.map(str::to_owned),
            peer_key: key.parse::<PublicKey>().ok(),
        })
    }

    /// Returns the machine's properties.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    fn value(&self, item: Item) -> &str {
        self.values[item as usize].as_deref().unwrap_or_default()
    }

    fn text(&self, item: Item) -> String {
        let peer = self.value(Item::Peer);
        match item {
            Item::Name => "Name of this site".to_owned(),
            Item::Peer => "Name of the other site".to_owned(),
            Item::PeerPrefix => {
                format!("Prefixes of {peer}'s hosts, such as 10.2.0.0/16, fd00:2::/48")
            }
            Item::PeerEndpoint => format!(
                "Address or host name of {peer}'s gateway (empty: {peer} connects to this site)"
            ),
            Item::PeerKey => format!("Public key of {peer} (empty: not known yet)"),
            Item::Wan => format!("Interface towards {peer} ({})", self.interfaces()),
            Item::Listen => "Address of this gateway for repairs (UDP, or TCP)".to_owned(),
            Item::Prefix => "Prefixes of this site's hosts".to_owned(),
        }
    }

    fn missing(&self, item: Item) -> String {
        let (flag, placeholder) = item.flag();
        let why = match item {
            Item::Wan => format!(
                "no route leads to {}; here are {}",
                self.value(Item::Peer),
                self.interfaces()
            ),
            Item::Listen => format!("{} has no address that fits", self.value(Item::Wan)),
            Item::Prefix => "no other interface has a network".to_owned(),
            _ => return format!("{flag} {placeholder} is missing"),
        };
        format!("{flag} {placeholder} is missing: {why}")
    }

    fn interfaces(&self) -> String {
        let names: Vec<&str> =
            self.facts.links.iter().map(|link| &link.name[..]).filter(|&n| n != "lo").collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    /// Value of an item that this machine's properties suggest.
    fn default(&self, item: Item) -> Option<String> {
        match item {
            Item::Name => self.facts.site_name(),
            Item::Peer | Item::PeerPrefix => None,
            Item::PeerEndpoint | Item::PeerKey => Some(String::new()),
            Item::Wan => self.facts.wan(&self.targets()).map(|link| link.name.clone()),
            Item::Listen => self.default_listen().map(|at| at.to_string()),
            Item::Prefix => {
                let nets = self.facts.site_prefixes(self.value(Item::Wan));
                let nets: Vec<String> = nets.iter().map(IpNet::to_string).collect();
                (!nets.is_empty()).then(|| nets.join(","))
            }
        }
    }

    /// Addresses at the other site.
    fn targets(&self) -> Vec<IpAddr> {
        let prefixes = list(self.value(Item::PeerPrefix)).into_iter();
        let hosts = prefixes.filter_map(|net| net.parse::<IpNet>().ok()).map(|net| net.addr());
        hosts.chain(ip_of(self.value(Item::PeerEndpoint))).collect()
    }

    /// Default of `--listen`: the address of `--endpoint`, if this machine has it; otherwise this
    /// machine's address of the peer's family on the WAN, or the unspecified address if the
    /// machine's address may change.
    fn default_listen(&self) -> Option<SocketAddr> {
        let endpoint = self.endpoint.as_deref().and_then(|at| at.rsplit_once(':'));
        let port = endpoint.and_then(|(_, port)| port.parse().ok()).unwrap_or(PORT);
        let public = self.endpoint.as_deref().and_then(ip_of);
        if let Some(ip) = public.filter(|&ip| self.facts.has_address(ip)) {
            return Some(SocketAddr::new(ip, port));
        }
        let family = ip_of(self.value(Item::PeerEndpoint)).map(|ip| ip.is_ipv4());
        let own = self.facts.wan_address(self.value(Item::Wan), family)?;
        let any = if own.ip.is_ipv4() { [0_u8; 4].into() } else { IpAddr::from([0_u16; 8]) };
        Some(SocketAddr::new(if own.is_permanent { own.ip } else { any }, port))
    }

    /// Address at which the other site reaches this one; `None` if NAT may hide this site from the
    /// other one, or no address is known.
    fn own_endpoint(&self) -> Option<String> {
        if let Some(given) = &self.endpoint {
            return Some(given.clone());
        }
        let listen: SocketAddr = self.value(Item::Listen).parse().ok()?;
        let theirs = self.value(Item::PeerEndpoint);
        let ip = if listen.ip().is_unspecified() {
            let peer = ip_of(theirs).map(|ip| ip.is_ipv4());
            let family = if listen.is_ipv4() { Some(true) } else { peer };
            self.facts.wan_address(self.value(Item::Wan), family)?.ip
        } else {
            listen.ip()
        };
        let is_behind_nat =
            is_private(ip) && !theirs.is_empty() && !ip_of(theirs).is_some_and(is_private);
        (!is_behind_nat).then(|| SocketAddr::new(ip, listen.port()).to_string())
    }

    /// Checks a value, and returns it in the form of the config.
    fn check(&self, item: Item, text: &str) -> Result<String, String> {
        match item {
            Item::Name | Item::Peer => {
                check_site_name(text)?;
                if item == Item::Peer && text == self.value(Item::Name) {
                    return Err(format!("{text:?} is this site's name; the other's is expected"));
                }
            }
            Item::PeerPrefix | Item::Prefix => return prefixes(text),
            Item::PeerEndpoint if text.is_empty() => {}
            Item::PeerEndpoint => {
                let text = with_port(text);
                parse_endpoint(&text)?;
                return Ok(text);
            }
            Item::PeerKey if text.is_empty() => {}
            Item::PeerKey => {
                return Ok(text.parse::<PublicKey>().map_err(|e| e.to_string())?.to_string());
            }
            Item::Wan => {
                if self.facts.links.named(text).is_none() {
                    return Err(format!("{text:?}: one of {} is expected", self.interfaces()));
                }
            }
            Item::Listen => {
                let at = value_parser::socket_addr(&with_port(text))?;
                return Ok(at.to_string());
            }
        }
        Ok(text.to_owned())
    }
}

/// Appends the port for repairs to an address or name that has none.
fn with_port(text: &str) -> String {
    match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, PORT).to_string(),
        Err(_) if text.contains(':') || text.is_empty() => text.to_owned(),
        Err(_) => format!("{text}:{PORT}"),
    }
}

/// Checks prefixes that commas or blanks separate.
fn prefixes(text: &str) -> Result<String, String> {
    let nets: Vec<String> = list(text)
        .iter()
        .map(|one| match value_parser::prefix(one) {
            Ok(net) => Ok(net.to_string()),
            Err(what) => Err(format!("{one:?}: {what}")),
        })
        .collect::<Result<_, _>>()?;
    match nets.is_empty() {
        true => Err("a prefix is expected, such as 10.1.0.0/16 or fd00:1::/48".to_owned()),
        false => Ok(nets.join(",")),
    }
}

fn list(text: &str) -> Vec<String> {
    let parts = text.split([',', ' ', '\t']).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "questions_tests.rs"]
mod tests;
