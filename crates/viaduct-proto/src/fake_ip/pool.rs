//! Pool of fake IPs for names.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use super::wire::{A, AAAA, IN, PTR, Query, Reply};
use crate::flow::Address;

/// Maximum number of names. If there are more, the least recently used name loses its fake IP.
const MAX_NAMES: u32 = 65_534;
/// Prefix of IPv6 fake IPs, whose last four bytes are the number of the fake IP.
const POOL6: Ipv6Addr = Ipv6Addr::new(0xfd76, 0x6961, 0x6475, 0x6374, 0, 0, 0, 0);

/// IPv4 prefix from which fake IPs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeIpPrefix {
    base: Ipv4Addr,
    length: u8,
}

/// Invalid prefix for fake IPs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a prefix for fake IPs; expected one from /8 to /24, such as 198.18.0.0/15")]
pub struct FakeIpPrefixError(String);

/// Pool of fake IPs: the names, and the fake IP of each.
#[derive(Debug)]
pub struct FakeIpPool {
    prefix: FakeIpPrefix,
    most: u32,
    slots: Vec<Slot>,
    numbers: HashMap<Arc<str>, u32>,
    /// Numbers in order of their last use.
    order: BTreeMap<u64, u32>,
    uses: u64,
}

#[derive(Debug)]
struct Slot {
    name: Arc<str>,
    used: u64,
}

impl Default for FakeIpPrefix {
    /// Prefix reserved for benchmark tests of networks (RFC 2544).
    fn default() -> FakeIpPrefix {
        FakeIpPrefix { base: Ipv4Addr::new(198, 18, 0, 0), length: 15 }
    }
}

impl FromStr for FakeIpPrefix {
    type Err = FakeIpPrefixError;

    fn from_str(text: &str) -> Result<FakeIpPrefix, FakeIpPrefixError> {
        let wrong = || FakeIpPrefixError(text.to_owned());
        let (base, length) = text.split_once('/').ok_or_else(wrong)?;
        let (base, length) = (base.parse::<Ipv4Addr>(), length.parse::<u8>());
        let (base, length) = (base.map_err(|_| wrong())?, length.map_err(|_| wrong())?);
        let prefix = FakeIpPrefix { base, length };
        let is_valid = (8..=24).contains(&length) && base.to_bits() & !prefix.mask() == 0;
        if is_valid { Ok(prefix) } else { Err(wrong()) }
    }
}

impl fmt::Display for FakeIpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.length)
    }
}

impl FakeIpPrefix {
    fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.length))
    }

    /// Number of a fake IP, assigned or not, IPv4 or IPv6; `None` for other addresses.
    fn number(self, ip: IpAddr) -> Option<u32> {
        match ip.to_canonical() {
            IpAddr::V4(ip) => {
                let inside = ip.to_bits() & self.mask() == self.base.to_bits();
                inside.then(|| ip.to_bits() & !self.mask())
            }
            IpAddr::V6(ip) => {
                let number = ip.to_bits() as u32;
                (ip.to_bits() - u128::from(number) == POOL6.to_bits()).then_some(number)
            }
        }
    }

    /// Returns whether `ip` is a fake IP, assigned or not.
    pub fn contains(self, ip: IpAddr) -> bool {
        self.number(ip).is_some()
    }
}

impl FakeIpPool {
    /// Creates an empty pool with fake IPs from `prefix`.
    pub fn new(prefix: FakeIpPrefix) -> FakeIpPool {
        // The first and last address of a prefix are not hosts.
        let most = MAX_NAMES.min(!prefix.mask() - 1);
        let (numbers, order) = (HashMap::new(), BTreeMap::new());
        FakeIpPool { prefix, most, slots: Vec::new(), numbers, order, uses: 0 }
    }

    /// Answers the DNS query `packet`; `None` if [`Query::parse`] does not accept it.
    pub fn answer(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let query = Query::parse(packet)?;
        let reply = self.reply(&query);
        Some(query.answer(&reply))
    }

    fn reply(&mut self, query: &Query<'_>) -> Reply {
        if query.class != IN {
            return Reply::Refused;
        }
        let Some(name) = &query.name else { return Reply::NoName };
        if name.ends_with(".arpa") {
            let ip = reversed(name).filter(|_| query.kind == PTR);
            let name = ip.and_then(|ip| self.name_of(ip));
            return name.map_or(Reply::NoName, |name| Reply::Name(name.to_string()));
        }
        // `localhost` must not be resolved at the far end (RFC 6761), and an address is not a name.
        let local = name == "localhost" || name.ends_with(".localhost");
        if name.parse::<Ipv4Addr>().is_ok() {
            return Reply::NoName;
        }
        match query.kind {
            A if local => Reply::Address(Ipv4Addr::LOCALHOST.into()),
            AAAA if local => Reply::Address(Ipv6Addr::LOCALHOST.into()),
            A => Reply::Address(self.fake_ip(name, true)),
            AAAA => Reply::Address(self.fake_ip(name, false)),
            _ => Reply::Nothing,
        }
    }

    /// Returns the IPv4 or IPv6 fake IP of `name`, and assigns one if needed.
    pub fn fake_ip(&mut self, name: &str, v4: bool) -> IpAddr {
        let number = self.number(name);
        match v4 {
            true => Ipv4Addr::from_bits(self.prefix.base.to_bits() + number).into(),
            false => Ipv6Addr::from_bits(POOL6.to_bits() + u128::from(number)).into(),
        }
    }

    /// Returns the name of a fake IP, and counts this as a use of the name. `None` if `ip` has no
    /// name.
    pub fn name_of(&mut self, ip: IpAddr) -> Option<Arc<str>> {
        let number = self.prefix.number(ip)?;
        let name = self.slots.get(number.checked_sub(1)? as usize)?.name.clone();
        self.touch(number);
        Some(name)
    }

    /// Destination of a flow to `to`: the name if `to` is a fake IP, otherwise `to` itself. `None`
    /// if `to` is a fake IP without a name.
    pub fn destination(&mut self, to: SocketAddr) -> Option<Address> {
        if !self.prefix.contains(to.ip()) {
            return Some(Address::Ip(to));
        }
        let name = self.name_of(to.ip())?;
        Some(Address::Name(name.to_string(), to.port()))
    }

    /// Number of `name`, from 1; assigns one if needed.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            self.touch(number);
            return number;
        }
        let name: Arc<str> = name.into();
        let slot = Slot { name: name.clone(), used: 0 };
        let number = match self.order.first_key_value() {
            Some((&used, &number)) if self.slots.len() >= self.most as usize => {
                self.order.remove(&used);
                let old = std::mem::replace(&mut self.slots[number as usize - 1], slot);
                self.numbers.remove(&old.name);
                number
            }
            _ => {
                self.slots.push(slot);
                self.slots.len() as u32
            }
        };
        self.numbers.insert(name, number);
        self.touch(number);
        number
    }

    fn touch(&mut self, number: u32) {
        self.uses += 1;
        let slot = &mut self.slots[number as usize - 1];
        self.order.remove(&slot.used);
        slot.used = self.uses;
        self.order.insert(self.uses, number);
    }
}

/// Address in a reverse name such as `7.0.18.198.in-addr.arpa`.
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let text: Vec<&str> = digits.rsplit('.').collect();
        return Some(IpAddr::V4(text.join(".").parse().ok()?));
    }
    let digits = name.strip_suffix(".ip6.arpa")?;
    let digits: Vec<&str> = digits.rsplit('.').collect();
    let fine = digits.len() == 32 && digits.iter().all(|digit| digit.len() == 1);
    let bits = u128::from_str_radix(&digits.concat(), 16).ok().filter(|_| fine)?;
    Some(Ipv6Addr::from_bits(bits).into())
}
