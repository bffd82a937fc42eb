//! Options about next hops: a single one, or a list with checks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::{Result, bail};

use crate::engine::next_hops::{Fallback, HopCheck, HopList};
use crate::engine::outbound::OutboundSpec;
use crate::engine::policy::Policies;
use crate::value_parser::table::Syntax;
use crate::value_parser::{count, wait};

/// Maximum number of next hops of a list.
const MAX_HOPS: usize = 64;
/// Words of a check.
const EXPECTED: &str = "none, or some of interval=TIME, timeout=TIME, rise=N, fall=N and http=PATH \
                        are expected, separated by commas";

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

/// Outbound through `next`; `None` if it is empty. A single hop without a check or a fallback is
/// not checked. Errors: a hop is listed twice, or there are too many.
pub fn outbound(
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
    fn a_check_is_read_with_the_defaults_of_the_rest() {
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
            ("fall=0", "a number from 1"),
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
        assert_eq!(outbound(&[], None, None), Ok(None));
        assert_eq!(outbound(&[at(1)], None, None), Ok(Some(OutboundSpec::Hop(at(1)))));
        assert_eq!(outbound(&[at(1)], Some(&none), None), Ok(Some(OutboundSpec::Hop(at(1)))));
        let list = |next: &[SocketAddr], check, fallback| {
            outbound(next, check, fallback).unwrap().unwrap().list().unwrap().clone()
        };
        assert_eq!(list(&[at(1)], None, Some(Fallback::Refuse)).check, Some(HopCheck::default()));
        assert_eq!(list(&[at(1), at(2)], Some(&none), None).check, None);
        assert!(outbound(&[at(1), at(1)], None, None).unwrap_err().contains("twice"));
        let many: Vec<_> = (0..65).map(at).collect();
        assert!(outbound(&many, None, None).unwrap_err().contains("64 are possible"));
    }
}
