//! Options about next hops: a single one, a list with checks, or those that measurements choose.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::ValueEnum;
use viaduct_proto::placement::score::Preference;

use super::args::ProxyArgs;
use crate::engine::next_hops::{AutoSpec, Fallback, HopCheck, HopList};
use crate::engine::outbound::{HopSignalling, OutboundSpec};
use crate::engine::policy::Policies;
use crate::value_parser::table::Syntax;
use crate::value_parser::{count, destination, wait};

/// Maximum number of next hops of a list.
const MAX_HOPS: usize = 64;
/// Error for a check that cannot be parsed.
const EXPECTED: &str = "none, or some of interval=TIME, timeout=TIME, rise=N, fall=N and http=PATH \
                        are expected, separated by commas";

/// Next hop as written: an address, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Hop at this address.
    At(SocketAddr),
    /// Hops that measurements choose.
    Auto,
}

impl NextHop {
    /// Address of the hop, if it is given.
    pub fn at(&self) -> Option<SocketAddr> {
        if let NextHop::At(at) = self { Some(*at) } else { None }
    }
}

impl FromStr for NextHop {
    type Err = String;

    fn from_str(text: &str) -> Result<NextHop, String> {
        if text == "auto" { Ok(NextHop::Auto) } else { destination(text).map(NextHop::At) }
    }
}

/// Syntax of a next hop in tables.
pub enum Next {}

impl Syntax for Next {
    type Value = NextHop;

    fn parse(text: &str) -> Result<NextHop, String> {
        text.parse()
    }
}

/// Criterion by which hops are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NextFor {
    /// Time to the first byte
    #[default]
    FirstByte,
    /// Throughput of long flows
    Bulk,
}

impl From<NextFor> for Preference {
    fn from(criterion: NextFor) -> Preference {
        match criterion {
            NextFor::FirstByte => Preference::FirstByte,
            NextFor::Bulk => Preference::Bulk,
        }
    }
}

/// Check of next hops as written: `none`, or settings such as `interval=1s,fall=2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextCheck(Option<HopCheck>);

impl FromStr for NextCheck {
    type Err = String;

    fn from_str(text: &str) -> Result<NextCheck, String> {
        if text == "none" {
            return Ok(NextCheck(None));
        }
        let mut check = HopCheck::default();
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or(EXPECTED)?;
            let times = || u32::try_from(count(value)?).map_err(|error| error.to_string());
            match key {
                "interval" => check.timing.interval = wait(value)?,
                "timeout" => check.timing.timeout = wait(value)?,
                "rise" => check.timing.rise = times()?,
                "fall" => check.timing.fall = times()?,
                "http" if value.starts_with('/') && value.bytes().all(|b| b.is_ascii_graphic()) => {
                    check.path = Some(value.to_owned());
                }
                "http" => return Err("http: a path such as / is expected".to_owned()),
                _ => return Err(EXPECTED.to_owned()),
            }
        }
        Ok(NextCheck(Some(check)))
    }
}

/// Syntax of a check in tables.
pub enum Check {}

impl Syntax for Check {
    type Value = NextCheck;

    fn parse(text: &str) -> Result<NextCheck, String> {
        text.parse()
    }
}

/// Settings of next hops, of the proxy or of a policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextSettings<'a> {
    /// Hops.
    pub next: &'a [NextHop],
    /// Check of the hops.
    pub check: Option<&'a NextCheck>,
    /// Treatment of flows if no hop is up.
    pub fallback: Option<Fallback>,
    /// Status socket of the overlay.
    pub overlay: Option<&'a Path>,
    /// Criterion by which hops of the overlay are chosen.
    pub criterion: Option<NextFor>,
    /// Form in which hops get the flows' addresses.
    pub tell: Option<HopSignalling>,
}

impl<'a> NextSettings<'a> {
    /// Settings of a proxy.
    pub fn of(args: &'a ProxyArgs) -> NextSettings<'a> {
        NextSettings {
            next: &args.next,
            check: args.next_check.as_ref(),
            fallback: args.next_fallback,
            overlay: args.next_overlay.as_deref(),
            criterion: args.next_for,
            tell: args.tell,
        }
    }

    /// Outbound through the hops; `None` if there are none. Errors: the settings are inconsistent.
    pub fn outbound(&self) -> Result<Option<OutboundSpec>, String> {
        if self.next.contains(&NextHop::Auto) {
            return self.auto().map(Some);
        }
        if self.criterion.is_some() && !self.next.is_empty() {
            return Err("next-for: it needs next auto, not addresses".to_owned());
        }
        let hops: Vec<_> = self.next.iter().filter_map(NextHop::at).collect();
        listed(&hops, self.check, self.fallback)
    }

    /// Outbound through the hops that measurements choose.
    fn auto(&self) -> Result<OutboundSpec, String> {
        if self.next.len() > 1 {
            return Err(
                "next: auto chooses all hops; no address is possible next to auto".to_owned()
            );
        }
        if self.fallback.is_some() {
            return Err("next-fallback: with next auto, flows go directly if no hop is better; \
                        leave it out"
                .to_owned());
        }
        if self.tell == Some(HopSignalling::Option) {
            return Err("tell: the option has no room for the route of next auto; proxy-tfo or \
                        proxy is expected"
                .to_owned());
        }
        let Some(overlay) = self.overlay else {
            return Err("next: auto needs next-overlay, the status socket of the overlay node on \
                        this host, such as /run/viaduct/overlay-NAME.sock"
                .to_owned());
        };
        let check = self.check.map_or_else(|| Some(HopCheck::default()), |check| check.0.clone());
        let preference = self.criterion.unwrap_or_default().into();
        Ok(OutboundSpec::Auto(AutoSpec { overlay: overlay.to_owned(), check, preference }))
    }
}

/// Outbound through `next`; `None` if it is empty. A single hop without a check or a fallback is
/// not checked. Errors: a hop is listed twice, or there are too many.
fn listed(
    next: &[SocketAddr],
    check: Option<&NextCheck>,
    fallback: Option<Fallback>,
) -> Result<Option<OutboundSpec>, String> {
    if next.len() > MAX_HOPS {
        return Err(format!("next: {} hops are given; {MAX_HOPS} are possible", next.len()));
    }
    let is_repeated = |(n, hop): &(usize, &SocketAddr)| next[..*n].contains(hop);
    if let Some((_, hop)) = next.iter().enumerate().find(is_repeated) {
        return Err(format!("next: {hop} is given twice"));
    }
    let is_checked = check.is_some_and(|check| check.0.is_some());
    Ok(match next {
        [] => None,
        [hop] if !is_checked && fallback.is_none() => Some(OutboundSpec::Hop(*hop)),
        hops => Some(OutboundSpec::Hops(HopList {
            hops: hops.to_vec(),
            check: check.map_or_else(|| Some(HopCheck::default()), |check| check.0.clone()),
            fallback: fallback.unwrap_or_default(),
        })),
    })
}

/// Refuses policies that check a hop in different ways.
pub fn check_alike(policies: &Policies) -> Result<()> {
    let mut checks = policies.outbounds().filter_map(|by| by.auto()).map(|auto| &auto.check);
    let first = checks.next();
    if checks.any(|check| Some(check) != first) {
        bail!("next-check: two policies check the hops of next auto in different ways");
    }
    let mut known: BTreeMap<SocketAddr, &HopCheck> = BTreeMap::new();
    for list in policies.outbounds().filter_map(|by| by.list()) {
        let Some(check) = &list.check else { continue };
        for hop in &list.hops {
            if *known.entry(*hop).or_insert(check) != check {
                bail!("next-check: two policies check {hop} in different ways; one is expected");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn omitted_settings_of_a_check_have_defaults() {
        let check = |text: &str| text.parse::<NextCheck>().unwrap().0;
        assert_eq!(check("none"), None);
        let read = check("interval=2s, fall=2,http=/up").unwrap();
        assert_eq!((read.timing.interval, read.timing.fall), (Duration::from_secs(2), 2));
        assert_eq!(read.timing.timeout, HopCheck::default().timing.timeout);
        assert_eq!(read.path.as_deref(), Some("/up"));
        for (text, expected) in [
            ("", "interval=TIME"),
            ("interval", "interval=TIME"),
            ("inter=2s", "interval=TIME"),
            ("fall=0", "a number of at least 1"),
            ("timeout=0s", "above 0s"),
            ("http=up", "a path"),
            ("http=/a b", "a path"),
        ] {
            let error = text.parse::<NextCheck>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn one_hop_alone_is_not_checked_and_several_are() {
        let at = |n: u8| SocketAddr::from(([192, 0, 2, n], 7000));
        let none = NextCheck(None);
        assert_eq!(listed(&[], None, None), Ok(None));
        assert_eq!(listed(&[at(1)], None, None), Ok(Some(OutboundSpec::Hop(at(1)))));
        assert_eq!(listed(&[at(1)], Some(&none), None), Ok(Some(OutboundSpec::Hop(at(1)))));
        let list = |next: &[SocketAddr], check, fallback| {
            listed(next, check, fallback).unwrap().unwrap().list().unwrap().clone()
        };
        assert_eq!(list(&[at(1)], None, Some(Fallback::Refuse)).check, Some(HopCheck::default()));
        assert_eq!(list(&[at(1), at(2)], Some(&none), None).check, None);
        assert!(listed(&[at(1), at(1)], None, None).unwrap_err().contains("twice"));
        let many: Vec<_> = (0..65).map(at).collect();
        assert!(listed(&many, None, None).unwrap_err().contains("64 are possible"));
    }

    #[test]
    fn auto_stands_alone_and_needs_an_overlay() {
        let at = NextHop::At(SocketAddr::from(([192, 0, 2, 1], 7000)));
        let auto = NextSettings {
            next: &[NextHop::Auto],
            overlay: Some(Path::new("/run/viaduct/overlay-a.sock")),
            ..NextSettings::default()
        };
        let spec = auto.outbound().unwrap().unwrap().auto().unwrap().clone();
        assert_eq!(spec.check, Some(HopCheck::default()));
        assert_eq!(spec.preference, Preference::FirstByte);
        let error = |settings: NextSettings<'_>| settings.outbound().unwrap_err();
        for (settings, expected) in [
            (NextSettings { next: &[NextHop::Auto, at], ..auto }, "no address is possible"),
            (NextSettings { overlay: None, ..auto }, "needs next-overlay"),
            (NextSettings { fallback: Some(Fallback::Refuse), ..auto }, "leave it out"),
            (NextSettings { tell: Some(HopSignalling::Option), ..auto }, "proxy-tfo or proxy"),
            (NextSettings { next: &[at], criterion: Some(NextFor::Bulk), ..auto }, "next auto"),
        ] {
            let error = error(settings);
            assert!(error.contains(expected), "{error}");
        }
    }
}
