//! Parsers of values on the command line and in files. Their errors name the expected form.

pub mod table;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use rustls::pki_types::DnsName;
use viaduct_proto::units;

/// Slowest permitted rate limit, in bits a second.
const MIN_RATE: u64 = 1_000;
/// Smallest buffer, in bytes.
const MIN_BUFFER: u64 = 4 << 10;
/// Largest buffer that can be requested of the kernel, in bytes.
pub const MAX_BUFFER: usize = 1 << 30;
/// Largest buffer of a tunnel, in bytes.
const MAX_TUNNEL_BUFFER: u64 = 1 << 40;
/// Smallest and largest memory of a gateway for packets, in bytes.
const MIN_PACKET_MEMORY: u64 = 4 << 20;
const MAX_PACKET_MEMORY: u64 = 1 << 40;
/// Smallest limit of memory, in bytes.
const MIN_MEMORY: u64 = 64 << 10;
/// Longest time, in days: a hundred years.
const MAX_DAYS: u64 = 36_500;
/// Limits of `dead-after`: the kernel's interval of keepalive probes is in seconds, and its user
/// timeout is a positive `int` of milliseconds.
const DEAD_AFTER: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 24 * 3600);
/// Longest time that a loop may poll for events; falling asleep and waking up take far less time.
const MAX_SPIN: Duration = Duration::from_millis(1);

/// Parses an address and a port to listen on or connect to.
pub fn socket_addr(text: &str) -> Result<SocketAddr, String> {
    let at: SocketAddr = text.parse().map_err(|_| {
        "a numeric address with a port is expected, such as 192.0.2.1:7000 or [2001:db8::1]:7000 \
         (names of hosts are not looked up)"
            .to_owned()
    })?;
    if at.port() == 0 {
        return Err("a port from 1 to 65535 is expected".to_owned());
    }
    Ok(at)
}

/// Parses a [`socket_addr`] to connect to.
pub fn destination(text: &str) -> Result<SocketAddr, String> {
    let at = socket_addr(text)?;
    if at.ip().to_canonical().is_unspecified() {
        return Err(
            "an address to connect to is expected; for this machine use 127.0.0.1 or [::1]"
                .to_owned(),
        );
    }
    Ok(at)
}

/// Parses a prefix; a single address is a prefix of full length.
pub fn prefix(text: &str) -> Result<IpNet, String> {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(IpNet::from);
    let Some(net) = text.parse().ok().or_else(|| address(text)) else {
        return Err("a prefix is expected, such as 10.1.0.0/16 or fd00:1::/48".to_owned());
    };
    if net.trunc() != net {
        return Err(format!("{net} has bits beyond its length; {} is expected", net.trunc()));
    }
    Ok(net)
}

/// Parses ports: `80` or `8000-8080`.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first @ 1..), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err("a port or a range such as 8000-8080 is expected".to_owned()),
    }
}

/// Parses a time, which may be zero.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "a time such as 30s or 2m is expected".to_owned())?;
    if time.as_secs() > MAX_DAYS * 24 * 3600 {
        return Err(format!("a time is expected, {MAX_DAYS} days at most"));
    }
    Ok(time)
}

/// Parses the time without an acknowledgement after which a connection is reset; zero means the
/// kernel's limits.
pub fn dead_after(text: &str) -> Result<Duration, String> {
    let time = time(text).ok().filter(|time| time.is_zero() || DEAD_AFTER.contains(time));
    time.ok_or_else(|| "a time of 1s to 24d is expected, or 0s for the kernel's".to_owned())
}

/// Parses the time for which a loop may poll for events before it sleeps.
pub fn spin(text: &str) -> Result<Duration, String> {
    let time = time(text).ok().filter(|&time| time <= MAX_SPIN);
    time.ok_or_else(|| "a time such as 50us is expected, 1ms at most; 0s is never".to_owned())
}

/// Parses a time above zero.
pub fn wait(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("a time above 0s is expected".to_owned()),
        time => Ok(time),
    }
}

/// Parses a number, at least one.
pub fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or("a number of at least 1 is expected".to_owned())
}

/// Parses the number of event loops.
pub fn workers(text: &str) -> Result<u16, String> {
    between(text, 0..=64)
}

/// Parses the name of a server for a ClientHello.
pub fn server_name(text: &str) -> Result<DnsName<'static>, String> {
    let name = DnsName::try_from(text.to_owned());
    name.map_err(|_| "a host name is expected, such as www.example.com".to_owned())
}

/// Parses the number of links of a tunnel.
pub fn links(text: &str) -> Result<u16, String> {
    between(text, 1..=64)
}

fn between(text: &str, range: RangeInclusive<u16>) -> Result<u16, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("a number from {} to {} is expected", range.start(), range.end()))
}

/// Parses a size within `range`, in bytes.
pub fn size<T: TryFrom<u64>>(text: &str, range: RangeInclusive<u64>) -> Result<T, String> {
    let bytes = units::size(text).filter(|bytes| range.contains(bytes));
    bytes.and_then(|bytes| T::try_from(bytes).ok()).ok_or_else(|| {
        let [least, most] = [range.start(), range.end()].map(|&bytes| units::size_text(bytes));
        format!("bytes are expected, such as 2M or 64KiB; {least} at least and {most} at most")
    })
}

/// Parses an amount of memory, in bytes.
pub fn memory(text: &str) -> Result<usize, String> {
    size(text, MIN_MEMORY..=MAX_BUFFER as u64)
}

/// Parses the memory of a gateway for packets, in bytes; an FEC code cannot work with less than
/// 4 MiB.
pub fn packet_memory(text: &str) -> Result<usize, String> {
    size(text, MIN_PACKET_MEMORY..=MAX_PACKET_MEMORY)
}

/// Parses the size of a buffer, in bytes.
pub fn buffer(text: &str) -> Result<usize, String> {
    size(text, MIN_BUFFER..=MAX_BUFFER as u64)
}

/// Parses the bytes that a tunnel may hold.
pub fn tunnel_buffer(text: &str) -> Result<u64, String> {
    size(text, MIN_MEMORY..=MAX_TUNNEL_BUFFER)
}

/// Parses a rate, in bits a second.
pub fn rate(text: &str) -> Result<u64, String> {
    let rate = units::rate(text).filter(|&rate| rate >= MIN_RATE);
    rate.ok_or_else(|| {
        "bits a second such as 500k, 2M or 1Gbit/s are expected, 1k at least".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_alone_is_a_prefix_and_host_bits_are_refused() {
        assert_eq!(prefix("1.2.3.4").unwrap(), prefix("1.2.3.4/32").unwrap());
        assert_eq!(prefix("fd00::1").unwrap().prefix_len(), 128);
        let error = prefix("10.2.0.5/16").unwrap_err();
        assert!(error.contains("10.2.0.0/16 is expected"), "{error}");
        assert!(prefix("10.2/16").is_err());
    }

    #[test]
    fn invalid_values_are_refused() {
        assert!(socket_addr("host.example:80").unwrap_err().contains("not looked up"));
        assert!(socket_addr("10.0.0.1:0").unwrap_err().contains("1 to 65535"));
        for text in ["0", "0-9", "9-1", "x", "80-", "70000"] {
            assert!(ports(text).is_err(), "{text}");
        }
        assert_eq!(ports("80-90").unwrap(), 80..=90);
        assert!(wait("0s").is_err() && wait("x").is_err() && time("0s").is_ok());
        assert!(spin("100us").is_ok() && spin("0s").is_ok());
        assert!(spin("2ms").unwrap_err().contains("1ms at most"));
        assert!(count("0").is_err() && count("1").is_ok());
        assert!(buffer("1").unwrap_err().contains("4K at least and 1G at most"));
        assert!(buffer("4294967296").unwrap_err().contains("1G at most"));
        assert!(memory("32K").unwrap_err().contains("64K at least"));
        assert!(tunnel_buffer("2T").unwrap_err().contains("64K at least and 1T at most"));
        assert!(wait("18446744073709551615s").unwrap_err().contains("36500 days"));
        assert!(destination("0.0.0.0:80").is_err() && destination("[::ffff:0.0.0.0]:80").is_err());
        assert!(rate("5").is_err() && rate("1k").is_ok());
        assert!(workers("65").unwrap_err().contains("from 0 to 64") && links("0").is_err());
    }

    #[test]
    fn common_spellings_of_sizes_and_rates_are_accepted() {
        for (text, bytes) in [("4096", 4 << 10), ("64KiB", 64 << 10), ("16M", 16 << 20)] {
            assert_eq!(buffer(text), Ok(bytes), "{text}");
        }
        assert_eq!((memory("2M"), tunnel_buffer("1T")), (Ok(2 << 20), Ok(1 << 40)));
        for text in ["2M", "2000k", "2Mbit/s", "2000000"] {
            assert_eq!(rate(text), Ok(2_000_000), "{text}");
        }
    }
}
