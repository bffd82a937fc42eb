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

use super::pattern::parse;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    lines: [Line; MOST],
    count: usize,
    /// Whether what cannot be captured is refused.
    pub strict: bool,
    /// Whether datagrams can pass the chain.
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

pub(super) const ANYWHERE: Line = Line {
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
        self.join(other, Fate::min)
    }

    /// These, above those of a master below: what they leave alone is that one's to judge. Either being
    /// strict, both are.
    ///
    /// # Errors
    /// There is no room for all of them.
    pub fn above(&self, below: &Rules) -> Result<Rules, RuleError> {
        let above = |ours, theirs| if ours == Fate::Leave { theirs } else { ours };
        Ok(Rules { names: self.names, ..self.join(below, above)? })
    }

    /// What `both` makes of the two fates of every destination: lines of each pair that have something in
    /// common, in the order in which the first of each decides.
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

    /// One more, which decides what none before it does.
    pub(super) fn append(&mut self, line: Line) -> Result<(), RuleError> {
        *self.lines.get_mut(self.count).ok_or(RuleError::TooMany)? = line;
        self.count += 1;
        Ok(())
    }

    /// What becomes of what no line fits, as one.
    fn last(&self) -> Line {
        Line { fate: self.otherwise(), ..ANYWHERE }
    }

    /// In the order in which they decide: the first that fits.
    pub fn lines(&self) -> &[Line] {
        &self.lines[..self.count]
    }

    /// What becomes of what none fits.
    pub fn otherwise(&self) -> Fate {
        if let Some(all) = self.lines().iter().find(|line| line.fits_all()) {
            return all.fate;
        }
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

    fn fits_all(&self) -> bool {
        self.transport.is_none() && self.is_everything()
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
