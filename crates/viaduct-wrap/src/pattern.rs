//! Pattern of a rule: `[tcp:|udp:][ADDRESS[/LENGTH]][:PORT[-PORT]]`. A transport may stand alone
//! (`tcp`), or be followed by ports (`tcp:443`).

use std::net::{IpAddr, Ipv6Addr};

use crate::rules::{ANYWHERE, Line, RuleError, Transport, mapped};

/// Parses a pattern into a [`Line`] of the rules, which diverts the pattern's destinations.
pub(crate) fn parse(pattern: &str) -> Result<Line, RuleError> {
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

/// Splits a pattern into address and ports. After a transport, a number or a range means ports.
fn split(rest: &str, after_transport: bool) -> (&str, Option<&str>) {
    let is_ports = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '-');
    if after_transport && is_ports(rest) {
        return ("", Some(rest));
    }
    match rest.rsplit_once(':') {
        // An IPv6 address must be in brackets if ports follow.
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
    // The brackets may or may not include the prefix length.
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
