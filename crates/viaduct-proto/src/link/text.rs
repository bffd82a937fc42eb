//! Text form of a link in one line, for command lines, results and configuration.
//!
//! ```text
//! link    = "" | setting ("," setting)*            each key at most once, in any order
//! setting = "rate=" BITS                           rate=200M
//!         | "delay=" TIME | "jitter=" TIME         delay=50ms,jitter=500us
//!         | "queue=" limit ["/" limit]             queue=100ms  queue=256kB  queue=100ms/256kB
//!         | "loss=" loss ["+" loss]*               loss=0.1%+0.1%x30
//!         | "burst=" COUNT                         loss=1%,burst=8 is loss=1%x8
//!         | "reorder=" P ":" TIME                  reorder=1%:5ms
//!         | "duplicate=" P | "corrupt=" P          corrupt=0.01%
//! limit   = TIME | BYTES
//! loss    = "none"
//!         | P                                      each packet independently
//!         | P "x" COUNT                            P of all packets, in bursts of COUNT
//!         | "ge:" P ":" P ":" P ":" P              good to bad, bad to good, loss good, loss bad
//!         | "trace:" COUNT (":" COUNT)* [":once"]  delivered, lost, …; repeated unless "once"
//! BITS    = rate                                   200M  2Mbit/s, see the module units
//! BYTES   = size                                   256kB  64KiB, likewise
//! TIME    = number ("ns" | "us" | "ms" | "s")
//! P       = number ["%"]                           1% or 0.01
//! ```
//!
//! The text that `Display` prints parses to the same value.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use super::config::{LinkConfig, LinkError, QueueLimit, Reorder};
use super::loss::{Loss, Trace};
use crate::time::Duration;
use crate::units::{Unit, number, rate, rate_text, scaled, size, unscaled};

const TIME_UNITS: [Unit; 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
/// Units in which limits of queues are printed.
const BYTE_UNITS: [Unit; 4] = [("B", 1), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];

const A_TIME: &str = "a time, such as 50ms or 200us";
const A_RATE: &str = "bits per second, such as 200M or 1.5G";
const A_LIMIT: &str = "a time or bytes, such as 100ms, 256kB or 100ms/256kB";
const A_CHANCE: &str = "a probability, such as 1% or 0.01";
const A_COUNT: &str = "a whole number, such as 8";
const A_REORDER: &str = "a probability and a time, such as 1%:5ms";
const A_LOSS: &str =
    "none, a share such as 1%, bursts such as 1%x8, ge:P:P:P:P, or trace:1000:3:500:1";

impl FromStr for LinkConfig {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut config = LinkConfig::default();
        let mut burst = None;
        let mut seen = Vec::new();
        for setting in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let (key, value) =
                setting.split_once('=').ok_or_else(|| LinkError::NoSetting(setting.to_owned()))?;
            if seen.contains(&key) {
                return Err(LinkError::Twice(key.to_owned()));
            }
            seen.push(key);
            let bad = |expected| wrong(key, value, expected);
            match key {
                "rate" => config.rate = Some(rate(value).ok_or_else(|| bad(A_RATE))?),
                "delay" => config.delay = time(value).ok_or_else(|| bad(A_TIME))?,
                "jitter" => config.jitter = time(value).ok_or_else(|| bad(A_TIME))?,
                "queue" => config.queue = limits(value).ok_or_else(|| bad(A_LIMIT))?,
                "loss" => config.loss = value.parse()?,
                "burst" => burst = Some(value.parse().map_err(|_| bad(A_COUNT))?),
                "reorder" => config.reorder = reorder(value).ok_or_else(|| bad(A_REORDER))?,
                "duplicate" => config.duplicate = chance(value).ok_or_else(|| bad(A_CHANCE))?,
                "corrupt" => config.corrupt = chance(value).ok_or_else(|| bad(A_CHANCE))?,
                _ => return Err(LinkError::UnknownKey(key.to_owned())),
            }
        }
        if let Some(length) = burst {
            config.loss = in_bursts(&config.loss, length)?;
        }
        config.check()?;
        Ok(config)
    }
}

impl FromStr for Loss {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let part = |part| loss(part).ok_or_else(|| wrong("loss", part, A_LOSS));
        let loss = match text.contains('+') {
            true => Loss::Both(text.split('+').map(part).collect::<Result<_, _>>()?),
            false => part(text)?,
        };
        loss.check()?;
        Ok(loss)
    }
}

impl Display for LinkConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut settings = Vec::new();
        let mut say = |key: &str, value: String| settings.push(format!("{key}={value}"));
        if let Some(bits) = self.rate {
            say("rate", rate_text(bits));
        }
        if !self.delay.is_zero() {
            say("delay", time_text(self.delay));
        }
        if !self.jitter.is_zero() {
            say("jitter", time_text(self.jitter));
        }
        let bytes = self.queue.bytes.map(|b| unscaled(b, &BYTE_UNITS));
        let limits: Vec<_> = self.queue.time.map(time_text).into_iter().chain(bytes).collect();
        if !limits.is_empty() {
            say("queue", limits.join("/"));
        }
        if self.loss != Loss::None {
            say("loss", self.loss.to_string());
        }
        if self.reorder != Reorder::default() {
            let Reorder { probability, extra } = self.reorder;
            say("reorder", format!("{}:{}", chance_text(probability), time_text(extra)));
        }
        for (key, p) in [("duplicate", self.duplicate), ("corrupt", self.corrupt)] {
            if p != 0.0 {
                say(key, chance_text(p));
            }
        }
        f.write_str(&settings.join(","))
    }
}

impl Display for Loss {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Loss::None => f.write_str("none"),
            Loss::Independent { rate } => f.write_str(&chance_text(*rate)),
            Loss::Bursts { rate, length } => write!(f, "{}x{length}", chance_text(*rate)),
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                let all = [p_good_to_bad, p_bad_to_good, loss_good, loss_bad];
                write!(f, "ge:{}", all.map(|p| chance_text(*p)).join(":"))
            }
            Loss::Trace(Trace { runs, repeats }) => {
                let runs: Vec<_> = runs.iter().map(u32::to_string).collect();
                write!(f, "trace:{}{}", runs.join(":"), if *repeats { "" } else { ":once" })
            }
            Loss::Both(parts) => {
                let parts: Vec<_> = parts.iter().map(Loss::to_string).collect();
                f.write_str(&parts.join("+"))
            }
        }
    }
}

impl TryFrom<String> for LinkConfig {
    type Error = LinkError;
    fn try_from(text: String) -> Result<Self, LinkError> {
        text.parse()
    }
}

impl From<LinkConfig> for String {
    fn from(config: LinkConfig) -> String {
        config.to_string()
    }
}

impl TryFrom<String> for Loss {
    type Error = LinkError;
    fn try_from(text: String) -> Result<Self, LinkError> {
        text.parse()
    }
}

impl From<Loss> for String {
    fn from(loss: Loss) -> String {
        loss.to_string()
    }
}

fn wrong(key: &str, value: &str, expected: &'static str) -> LinkError {
    LinkError::Value { key: key.to_owned(), value: value.to_owned(), expected }
}

fn in_bursts(loss: &Loss, length: u32) -> Result<Loss, LinkError> {
    match loss {
        &Loss::Independent { rate } => Ok(Loss::Bursts { rate, length }),
        _ => Err(wrong(
            "burst",
            &length.to_string(),
            "an independent loss in the same text, such as loss=1%",
        )),
    }
}

fn loss(text: &str) -> Option<Loss> {
    if text == "none" {
        return Some(Loss::None);
    }
    if let Some(four) = text.strip_prefix("ge:") {
        let four: Option<Vec<f64>> = four.split(':').map(chance).collect();
        let [p_good_to_bad, p_bad_to_good, loss_good, loss_bad] = four?.try_into().ok()?;
        return Some(Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad });
    }
    if let Some(runs) = text.strip_prefix("trace:") {
        let once = runs.strip_suffix(":once");
        let runs = once.unwrap_or(runs).split(':').map(|run| run.parse().ok());
        return Some(Loss::Trace(Trace {
            runs: runs.collect::<Option<_>>()?,
            repeats: once.is_none(),
        }));
    }
    match text.split_once('x') {
        Some((rate, length)) => {
            Some(Loss::Bursts { rate: chance(rate)?, length: length.parse().ok()? })
        }
        None => Some(Loss::Independent { rate: chance(text)? }),
    }
}

fn limits(text: &str) -> Option<QueueLimit> {
    let mut queue = QueueLimit::default();
    for limit in text.split('/') {
        match (time(limit), size(limit)) {
            (Some(t), _) if queue.time.is_none() => queue.time = Some(t),
            (_, Some(bytes)) if queue.bytes.is_none() => queue.bytes = Some(bytes),
            _ => return None,
        }
    }
    Some(queue)
}

fn reorder(text: &str) -> Option<Reorder> {
    let (probability, extra) = text.split_once(':')?;
    Some(Reorder { probability: chance(probability)?, extra: time(extra)? })
}

fn time(text: &str) -> Option<Duration> {
    scaled(text, &TIME_UNITS).map(Duration::from_nanos)
}

fn time_text(time: Duration) -> String {
    unscaled(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), &TIME_UNITS)
}

fn chance(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => number(percent).map(|p| p / 100.0),
        None => number(text),
    }
}

/// Formats a probability in per cent if that parses to the same number.
fn chance_text(p: f64) -> String {
    let rounded = (p * 1e10).round() / 1e8;
    let percent = format!("{rounded}%");
    if chance(&percent) == Some(p) { percent } else { p.to_string() }
}
