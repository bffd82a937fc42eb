//! File of the root secrets from which replicas derive the secret of each period. `viaduct key
//! replicas` writes it, and `viaduct serve --replicas` reads it.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use viaduct_proto::trickles::rotation::{MAX_ROOTS, ROOT_NUMBERS, Root, Rotation};

use crate::text;
use crate::value_parser::table::{Wait, one};

/// Default length of a period in a new file.
pub const PERIOD: &str = "1day";
/// Number of hexadecimal digits of a secret.
const DIGITS: usize = 64;

/// Form of a file, for errors.
const EXPECTED: &str = "a mistake, or an unknown or missing key; the keys are `period` (a time, \
    such as \"1day\") and `keep` (a number), and in each [[root]] `number` (a number), `secret` \
    (64 hexadecimal digits in quotes) and `from` (a time in quotes)";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(deserialize_with = "one::<Wait, _>")]
    period: Duration,
    #[serde(default = "one_period")]
    keep: u8,
    #[serde(default)]
    root: Vec<RootTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[root]]")]
struct RootTable {
    number: u8,
    secret: String,
    from: String,
}

fn one_period() -> u8 {
    1
}

/// Parses the text of a file. Errors: the position, the mistake and a correct form; never a secret.
pub fn parse(text: &str) -> Result<Rotation> {
    let (period, keep, roots) = read(text)?;
    Ok(Rotation::new(period, keep, roots)?)
}

fn read(text: &str) -> Result<(u64, u8, Vec<Root>)> {
    let file: File = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        // The parser's message may quote a value, and so a secret at the wrong place.
        let line = text::position(text, at);
        let line = line.split_inclusive(": ").next().unwrap_or_default();
        anyhow!("{line}{EXPECTED}")
    })?;
    let roots = file.root.iter().map(|table| {
        let number = table.number;
        let secret = secret(&table.secret);
        let from = humantime::parse_rfc3339_weak(&table.from).ok();
        Ok(Root {
            number,
            secret: secret.with_context(|| format!("root {number}: 64 hexadecimal digits"))?,
            from: from.map(seconds).with_context(|| {
                format!("root {number}: from: a time such as 2026-01-31T12:00:00Z is expected")
            })?,
        })
    });
    Ok((file.period.as_secs(), file.keep, roots.collect::<Result<_>>()?))
}

fn secret(digits: &str) -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    if digits.len() != DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in secret.iter_mut().zip((0..DIGITS).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(secret)
}

/// Returns the text of a new file with one root, with which replicas seal from `now`.
pub fn new_file(period: &str, secret: [u8; 32], now: SystemTime) -> Result<String> {
    let head = format!(
        "# Root secrets of a service's replicas (viaduct serve --replicas): keep them secret.\n\
         # The secret of each period is derived from a root, so rotation needs no change here.\n\
         period = \"{period}\"\n# Earlier periods whose secrets are accepted.\nkeep = 1\n"
    );
    let text = head + &root(0, secret, now);
    parse(&text)?;
    Ok(text)
}

/// Returns the text of a file with one more root, with which replicas seal from time `from`. Roots
/// that no longer have an effect are not removed. Errors: the text is not a valid file, already has
/// the maximum number of roots, or has a root that begins at `from`.
pub fn add_root(text: &str, secret: [u8; 32], from: SystemTime) -> Result<String> {
    let (_, _, roots) = read(text)?;
    if roots.len() >= MAX_ROOTS {
        bail!("{} roots: remove the oldest [[root]], which no longer has an effect", roots.len());
    }
    let last = roots.iter().max_by_key(|root| root.from).map_or(0, |root| root.number);
    let numbers = (1..=*ROOT_NUMBERS.end()).map(|n| (last + n) % (ROOT_NUMBERS.end() + 1));
    let is_free = |number: &u8| roots.iter().all(|root| root.number != *number);
    let Some(number) = { numbers }.find(is_free) else { bail!("all numbers of roots are in use") };
    let more = root(number, secret, from);
    let text = format!("{}\n{more}", text.trim_end());
    parse(&text)?;
    Ok(text)
}

fn root(number: u8, secret: [u8; 32], from: SystemTime) -> String {
    let digits = secret.iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    });
    let from = humantime::format_rfc3339_seconds(from);
    format!("\n[[root]]\nnumber = {number}\nsecret = \"{digits}\"\nfrom = \"{from}\"\n")
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_one_root_and_with_more_roots_are_read() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let first = new_file(PERIOD, [1; 32], now).unwrap();
        let alone = parse(&first).unwrap();
        let later = now + Duration::from_secs(600);
        let refused = format!("{:#}", add_root(&first, [2; 32], now).unwrap_err());
        assert!(refused.starts_with("roots 0 and 1 seal from the same time"), "{refused}");
        let mut text = add_root(&first, [2; 32], later).unwrap();
        let both = parse(&text).unwrap();
        assert_eq!(both.secrets(seconds(later) - 1)[0], alone.secrets(seconds(later) - 1)[0]);
        assert_ne!(both.secrets(seconds(later))[0], alone.secrets(seconds(later))[0]);
        for n in 1..=2 {
            text = add_root(&text, [n; 32], later + Duration::from_secs(n.into())).unwrap();
        }
        let refused = add_root(&text, [9; 32], later + Duration::from_secs(9)).unwrap_err();
        assert!(format!("{refused:#}").contains("remove the oldest [[root]]"), "{refused:#}");
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        let good = new_file(PERIOD, [0xab; 32], UNIX_EPOCH).unwrap();
        let wrong = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            let said = format!("{:#}", parse(&good.replacen(from, to, 1)).unwrap_err());
            assert!(!said.contains("abab"), "{said}");
            said
        };
        assert!(wrong("1day", "5s").contains("a period of 10 seconds to 366 days"));
        assert!(wrong("keep = 1", "keep = 9").contains("keep = 9: 1 to 6"));
        assert!(wrong("\"ab", "\"b").contains("root 0: 64 hexadecimal digits"));
        assert!(wrong("1970", "197").contains("root 0: from: a time such as"));
        assert!(wrong("number = 0", "number = 8").contains("a number from 0 to 7"));
        assert!(wrong("\nsecret", "\nsecrets").contains("unknown or missing key"));
        let digits = format!("\"{}\"", "ab".repeat(32));
        for (key, value) in [("period", "\"1day\""), ("keep", "1"), ("number", "0")] {
            wrong(&format!("{key} = {value}"), &format!("{key} = {digits}"));
        }
        wrong("from = \"1970-01-01T00:00:00Z\"", &format!("from = {digits}"));
        wrong("keep = 1", &format!("{digits} = 1"));
        wrong(&format!("secret = {digits}"), &digits);
    }
}
