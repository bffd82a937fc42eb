//! Which flows a chain applies to, as the user says it.
//!
//! ```text
//!   only   tcp:443               the chain applies to what fits one of these, if there are any,
//!   except 10.0.0.0/8            but not to what fits one of these: that goes as if nobody were there;
//!   refuse 192.0.2.1:1-1023      and what fits one of these may not be
//!
//!   PATTERN = [tcp:|udp:] [ADDRESS[/LENGTH]] [:PORT[-PORT]]       all that stands there must fit
//! ```
//!
//! What is refused wins over what is excepted, and that over what is wanted; their order does not
//! matter.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Lines at most.
pub const MOST: usize = 128;

/// What becomes of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// The program is told that it may not.
    Refuse = 0,
    /// It goes where it was meant to, by itself.
    Leave = 1,
    /// It is ours.
    Divert = 2,
}

/// What carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream.
    Tcp = 1,
    /// Datagrams.
    Udp = 2,
}

/// One rule: the destinations that it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Their transport; both if `None`.
    pub transport: Option<Transport>,
    /// Their prefix; an IPv4 one is mapped, and 96 longer.
    pub prefix: (Ipv6Addr, u8),
    /// Their ports, first and last.
    pub ports: (u16, u16),
    /// What becomes of them.
    pub fate: Fate,
}

/// What the user has said.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    lines: [Line; MOST],
    count: usize,
    /// Whether what cannot be captured is refused.
    pub strict: bool,
    /// Whether datagrams of IPv4 can pass the chain.
    pub carries: bool,
    /// Whether names are looked up at the far end: questions of DNS are the master's to answer.
    pub names: bool,
}

/// Why a rule cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A word in its place is none.
    #[error("`{0}` is no address; right would be 10.0.0.0/8, [2001:db8::]/32 or 192.0.2.1")]
    Address(String),
    /// Its length is not one.
    #[error("`{0}` is no length of a prefix; right would be 0 to 32, of IPv6 0 to 128")]
    Length(String),
    /// Its port is not one.
    #[error("`{0}` is no port; right would be 443 or 8000-8999")]
    Ports(String),
    /// It says nothing.
    #[error("a rule is empty; right would be tcp:443, 10.0.0.0/8 or 192.0.2.1:22")]
    Empty,
    /// A line of a file does not begin as it must.
    #[error("`{0}` is no rule; a line begins with only, except or refuse")]
    Word(String),
    /// There is no room for it.
    #[error("more than {MOST} rules; prefixes and ranges of ports say more in one")]
    TooMany,
}

const ANYWHERE: Line = Line {
    transport: None,
    prefix: (Ipv6Addr::UNSPECIFIED, 0),
    ports: (0, u16::MAX),
    fate: Fate::Divert,
};

impl Rules {
    /// Every flow is the chain's, and what is no flow goes by itself.
    pub const EVERYTHING: Rules =
        Rules { lines: [ANYWHERE; MOST], count: 0, strict: false, carries: false, names: false };

    /// What fits `pattern` shall have this fate.
    ///
    /// # Errors
    /// It is no pattern, or there is no room for it.
    pub fn add(&mut self, fate: Fate, pattern: &str) -> Result<(), RuleError> {
        self.push(Line { fate, ..parse(pattern)? })
    }

    /// The lines of a file; `#` begins a comment.
    ///
    /// # Errors
    /// The number of the line, from 1, and what is wrong with it.
    pub fn read(&mut self, text: &str) -> Result<(), (usize, RuleError)> {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            let (word, pattern) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let fate = match word {
                "" => continue,
                "only" => Fate::Divert,
                "except" => Fate::Leave,
                "refuse" => Fate::Refuse,
                _ => return Err((number, RuleError::Word(word.to_owned()))),
            };
            self.add(fate, pattern.trim()).map_err(|error| (number, error))?;
        }
        Ok(())
    }

    /// One more.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn push(&mut self, line: Line) -> Result<(), RuleError> {
        let full = RuleError::TooMany;
        let at = self.lines().partition_point(|other| other.fate <= line.fate);
        let lines = self.lines.get_mut(at..=self.count).ok_or(full)?;
        lines.rotate_right(1);
        lines[0] = line;
        self.count += 1;
        Ok(())
    }

    /// What both want: what either refuses is refused, what either leaves alone is left alone, and either
    /// being strict, both are.
    ///
    /// # Errors
    /// There is no room for all of them.
    pub fn both(&self, other: &Rules) -> Result<Rules, RuleError> {
        let mut rules = Rules::EVERYTHING;
        rules.strict = self.strict || other.strict;
        let wanted = |line: &&Line| line.fate == Fate::Divert;
        for line in self.lines().iter().chain(other.lines()).filter(|line| !wanted(line)) {
            rules.push(*line)?;
        }
        let (ours, theirs) =
            (|| self.lines().iter().filter(wanted), || other.lines().iter().filter(wanted));
        match (ours().next(), theirs().next()) {
            (Some(_), None) => ours().try_for_each(|line| rules.push(*line))?,
            (None, _) => theirs().try_for_each(|line| rules.push(*line))?,
            (Some(_), Some(_)) => {
                let pairs = ours().flat_map(|one| theirs().map(move |other| one.and(other)));
                let mut common = pairs.flatten().peekable();
                if common.peek().is_none() {
                    // Nothing is wanted by both.
                    rules.push(Line { fate: Fate::Leave, ..ANYWHERE })?;
                }
                common.try_for_each(|line| rules.push(line))?;
            }
        }
        Ok(rules)
    }

    /// In the order in which they decide: the first that fits.
    pub fn lines(&self) -> &[Line] {
        &self.lines[..self.count]
    }

    /// What becomes of what none fits.
    pub fn otherwise(&self) -> Fate {
        let chosen = self.lines().iter().any(|line| line.fate == Fate::Divert);
        if chosen { Fate::Leave } else { Fate::Divert }
    }

    /// Whether there are datagrams that the chain applies to.
    pub fn want_datagrams(&self) -> bool {
        for line in self.lines().iter().filter(|line| line.transport != Some(Transport::Tcp)) {
            match line.fate {
                Fate::Divert => return true,
                _ if line.is_everything() => return false,
                _ => {}
            }
        }
        self.otherwise() == Fate::Divert
    }

    /// What becomes of a flow, or of datagrams, to `to`.
    pub fn fate(&self, transport: Transport, to: SocketAddr) -> Fate {
        let fits = self.lines().iter().find(|line| line.fits(transport, to));
        fits.map_or(self.otherwise(), |line| line.fate)
    }
}

impl Line {
    /// Whether all of its transport fits it, wherever it goes.
    pub fn is_everything(&self) -> bool {
        self.prefix.1 == 0 && self.ports == ANYWHERE.ports
    }

    /// What fits both, if anything does.
    fn and(&self, other: &Line) -> Option<Line> {
        let transport = match (self.transport, other.transport) {
            (Some(one), Some(other)) if one != other => return None,
            (one, other) => one.or(other),
        };
        let (wide, narrow) = match self.prefix.1 <= other.prefix.1 {
            true => (self.prefix, other.prefix),
            false => (other.prefix, self.prefix),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(wide.1.min(128))).unwrap_or(0);
        let ports = (self.ports.0.max(other.ports.0), self.ports.1.min(other.ports.1));
        let nested = (wide.0.to_bits() ^ narrow.0.to_bits()) & mask == 0;
        (nested && ports.0 <= ports.1).then_some(Line { transport, prefix: narrow, ports, ..*self })
    }

    fn fits(&self, transport: Transport, to: SocketAddr) -> bool {
        let ((ip, length), (first, last)) = (self.prefix, self.ports);
        let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
        self.transport.is_none_or(|of| of == transport)
            && (first..=last).contains(&to.port())
            && (ip.to_bits() ^ mapped(to.ip()).to_bits()) & mask == 0
    }
}

/// IPv4 addresses stand among those of IPv6.
pub(super) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn parse(pattern: &str) -> Result<Line, RuleError> {
    let transports = [("tcp", Transport::Tcp), ("udp", Transport::Udp)];
    let mut line = ANYWHERE;
    let mut rest = pattern;
    for (word, transport) in transports {
        if let Some(after) = pattern.strip_prefix(word)
            && (after.is_empty() || after.starts_with(':'))
        {
            line.transport = Some(transport);
            rest = after.strip_prefix(':').unwrap_or(after);
        }
    }
    if rest.is_empty() {
        return if line.transport.is_some() { Ok(line) } else { Err(RuleError::Empty) };
    }
    let (place, port) = split(rest, line.transport.is_some());
    if let Some(port) = port {
        line.ports = ports(port)?;
    }
    if !place.is_empty() {
        line.prefix = prefix(place)?;
    }
    Ok(line)
}

/// Where the place ends and the ports begin. After a transport a number alone is a port.
fn split(rest: &str, after_transport: bool) -> (&str, Option<&str>) {
    let is_ports = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '-');
    if after_transport && is_ports(rest) {
        return ("", Some(rest));
    }
    match rest.rsplit_once(':') {
        // An IPv6 address stands in brackets where ports follow it.
        Some((place, port)) if !place.contains(':') || place.contains(']') => (place, Some(port)),
        _ => (rest, None),
    }
}

fn ports(text: &str) -> Result<(u16, u16), RuleError> {
    let wrong = || RuleError::Ports(text.to_owned());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [first, last] = [first, last].map(|port| port.parse::<u16>().map_err(|_| wrong()));
    let (first, last) = (first?, last?);
    if first <= last { Ok((first, last)) } else { Err(wrong()) }
}

fn prefix(text: &str) -> Result<(Ipv6Addr, u8), RuleError> {
    // Brackets may enclose the length or not.
    let bare = text.replace(['[', ']'], "");
    let (ip, length) = match bare.split_once('/') {
        Some((ip, length)) => (ip, Some(length)),
        None => (bare.as_str(), None),
    };
    let ip: IpAddr = ip.parse().map_err(|_| RuleError::Address(text.to_owned()))?;
    let (before, most) = if ip.is_ipv4() { (96, 32) } else { (0, 128) };
    let length = match length {
        Some(length) => length.parse().ok().filter(|&length| length <= most),
        None => Some(most),
    };
    let length = length.ok_or_else(|| RuleError::Length(text.to_owned()))?;
    Ok((mapped(ip), before + length))
}
