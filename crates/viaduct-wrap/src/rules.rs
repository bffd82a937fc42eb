//! The user's rules, which select the flows of a chain.
//!
//! ```text
//!   only   tcp:443               if there are any, the chain applies only to flows that match one
//!   except 10.0.0.0/8            flows that match go direct
//!   refuse 192.0.2.1:1-1023      flows that match are refused
//!
//!   PATTERN = [tcp:|udp:] [ADDRESS[/LENGTH]] [:PORT[-PORT]]       all parts given must match
//! ```
//!
//! Precedence: `refuse`, then `except`, then `only`. The order of the rules does not matter.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::pattern::parse;

/// Maximum number of rules.
pub const MAX_LINES: usize = 128;

/// Decision about a flow or a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Refused: the program receives an error.
    Refuse = 0,
    /// Left to the kernel: the flow goes direct.
    Leave = 1,
    /// Diverted to the chain.
    Divert = 2,
}

/// Transport of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp = 1,
    /// UDP.
    Udp = 2,
}

/// A rule: a set of destinations and their fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Transport; both if `None`.
    pub transport: Option<Transport>,
    /// Address prefix. IPv4 prefixes are mapped into IPv6, so their length is 96 greater.
    pub prefix: (Ipv6Addr, u8),
    /// First and last port.
    pub ports: (u16, u16),
    /// Fate of the destinations.
    pub fate: Fate,
}

/// The user's rules, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    lines: [Line; MAX_LINES],
    count: usize,
    /// True if traffic that cannot be captured is refused.
    pub strict: bool,
    /// True if the chain carries datagrams.
    pub carries: bool,
    /// True if names are resolved at the far end: the master answers DNS queries.
    pub names: bool,
}

/// Error in a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The address is invalid.
    #[error("`{0}` is not an address (examples: 10.0.0.0/8, [2001:db8::]/32, 192.0.2.1)")]
    Address(String),
    /// The prefix length is invalid.
    #[error("`{0}` is not a prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6")]
    Length(String),
    /// The port or range of ports is invalid.
    #[error("`{0}` is not a port or a range of ports (examples: 443, 8000-8999)")]
    Ports(String),
    /// The rule is empty.
    #[error("a rule is empty: a pattern is expected, such as tcp:443, 10.0.0.0/8 or 192.0.2.1:22")]
    Empty,
    /// A line of a file begins with an unknown word.
    #[error("`{0}` is not a rule: only, except or refuse is expected")]
    Word(String),
    /// There are more than [`MAX_LINES`] rules.
    #[error("more than {MAX_LINES} rules: merge some into prefixes and ranges of ports")]
    TooMany,
}

pub(crate) const ANYWHERE: Line = Line {
    transport: None,
    prefix: (Ipv6Addr::UNSPECIFIED, 0),
    ports: (0, u16::MAX),
    fate: Fate::Divert,
};

impl Rules {
    /// No rules: the chain applies to every flow, and other traffic goes direct.
    pub const EVERYTHING: Rules = Rules {
        lines: [ANYWHERE; MAX_LINES],
        count: 0,
        strict: false,
        carries: false,
        names: false,
    };

    /// Adds a rule that gives destinations matching `pattern` the fate `fate`. Errors: the pattern
    /// is invalid, or there are too many rules.
    pub fn add(&mut self, fate: Fate, pattern: &str) -> Result<(), RuleError> {
        self.push(Line { fate, ..parse(pattern)? })
    }

    /// Adds a file's rules; `#` begins a comment. Errors: the number of the first invalid line,
    /// counted from 1, and the error in it.
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

    /// Inserts a rule after those of the same or a higher precedence. Errors: too many rules.
    pub fn push(&mut self, line: Line) -> Result<(), RuleError> {
        let full = RuleError::TooMany;
        let at = self.lines().partition_point(|other| other.fate <= line.fate);
        let lines = self.lines.get_mut(at..=self.count).ok_or(full)?;
        lines.rotate_right(1);
        lines[0] = line;
        self.count += 1;
        Ok(())
    }

    /// Intersects two sets of rules: a flow is refused if either set refuses it, and otherwise goes
    /// direct if either set lets it go direct. The result is strict if either set is; its `names`
    /// and `carries` are false. Errors: the result has too many rules.
    pub fn both(&self, other: &Rules) -> Result<Rules, RuleError> {
        self.join(other, Fate::min)
    }

    /// Combines the rules of a nested master with those of its parent, `below`. The parent's rules
    /// decide about flows that the nested master lets go direct. The result is strict if either set
    /// is, has the `names` of `self`, and its `carries` is false. Errors: the result has too many
    /// rules.
    pub fn above(&self, below: &Rules) -> Result<Rules, RuleError> {
        let above = |ours, theirs| if ours == Fate::Leave { theirs } else { ours };
        Ok(Rules { names: self.names, ..self.join(below, above)? })
    }

    /// Combines two sets of rules by applying `both` to the two fates of each destination. The
    /// result has a line for each pair of lines that intersect, or a single line for a line of
    /// `self` whose result is the same for all lines of `other`. The first line that matches
    /// decides.
    fn join(&self, other: &Rules, both: impl Fn(Fate, Fate) -> Fate) -> Result<Rules, RuleError> {
        let mut rules = Rules { strict: self.strict || other.strict, ..Rules::EVERYTHING };
        let theirs = || other.lines().iter().copied().chain([other.last()]);
        for ours in self.lines().iter().copied().chain([self.last()]) {
            let fates = theirs().map(|line| both(ours.fate, line.fate));
            let otherwise = both(ours.fate, other.otherwise());
            if fates.clone().all(|fate| fate == otherwise) {
                rules.append(Line { fate: otherwise, ..ours })?;
                continue;
            }
            for (line, fate) in theirs().zip(fates) {
                if let Some(common) = ours.and(&line) {
                    rules.append(Line { fate, ..common })?;
                }
            }
        }
        Ok(rules)
    }

    /// Appends a line, which applies if no earlier line matches.
    pub(crate) fn append(&mut self, line: Line) -> Result<(), RuleError> {
        *self.lines.get_mut(self.count).ok_or(RuleError::TooMany)? = line;
        self.count += 1;
        Ok(())
    }

    /// Returns a line that matches everything, with the default fate.
    fn last(&self) -> Line {
        Line { fate: self.otherwise(), ..ANYWHERE }
    }

    /// Returns the lines in order of evaluation. The first one that matches decides.
    pub fn lines(&self) -> &[Line] {
        &self.lines[..self.count]
    }

    /// Returns the fate of destinations that no line matches.
    pub fn otherwise(&self) -> Fate {
        let fits_all = |line: &&Line| line.transport.is_none() && line.is_everything();
        if let Some(all) = self.lines().iter().find(fits_all) {
            return all.fate;
        }
        let chosen = self.lines().iter().any(|line| line.fate == Fate::Divert);
        if chosen { Fate::Leave } else { Fate::Divert }
    }

    /// Returns whether the chain applies to any datagrams.
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

    /// Returns the fate of a flow or a datagram to `to`.
    pub fn fate(&self, transport: Transport, to: SocketAddr) -> Fate {
        let fits = self.lines().iter().find(|line| line.fits(transport, to));
        fits.map_or(self.otherwise(), |line| line.fate)
    }
}

impl Line {
    /// Returns whether the line matches every destination of its transport.
    pub fn is_everything(&self) -> bool {
        self.prefix.1 == 0 && self.ports == ANYWHERE.ports
    }

    /// Returns the intersection of two lines, with the fate of `self`; `None` if it is empty.
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

/// Maps an IPv4 address into IPv6.
pub(crate) fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}
