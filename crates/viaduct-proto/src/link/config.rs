//! Settings of a link, and their validation.

use serde::{Deserialize, Serialize};

use super::loss::Loss;
use crate::time::Duration;

/// Settings of one direction of a link. The default has no limit, no delay and no loss. Serde uses
/// the text form (see [`text`](super::text)), checked as it is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkConfig {
    /// Bits per second, counted over complete IP packets; None is unlimited.
    pub rate: Option<u64>,
    /// Propagation delay, one way: from the last bit sent to the packet's arrival.
    pub delay: Duration,
    /// Maximum deviation from the delay, upwards or downwards and uniformly distributed; at most
    /// the delay. Jitter does not reorder packets, so the mean delay grows if the jitter exceeds
    /// the time between packets.
    pub jitter: Duration,
    /// Limit of the queue in front of the transmitter, which drops packets at its tail.
    pub queue: QueueLimit,
    /// Loss process, applied as packets enter.
    pub loss: Loss,
    /// Reordering: packets that are overtaken.
    pub reorder: Reorder,
    /// Probability that a packet arrives twice in a row. The copy takes no transmission time.
    pub duplicate: f64,
    /// Probability that a random bit of the payload is flipped ([`flip_bit`](super::flip_bit)).
    pub corrupt: f64,
}

/// Limit of the queue in front of the transmitter, not counting the packet on the wire. If both
/// limits are given, both apply; with neither, the queue is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimit {
    /// Maximum bytes that may wait, including the new packet.
    pub bytes: Option<u64>,
    /// Maximum time that a new packet may have to wait.
    pub time: Option<Duration>,
}

/// Reordering: some packets are held back, so that later ones overtake them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reorder {
    /// Probability of being held back.
    pub probability: f64,
    /// Time for which a packet is held back.
    pub extra: Duration,
}

/// Invalid setting of a link; the message says which values are valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// No bit would ever be sent.
    #[error(
        "rate=0 carries nothing: give bits per second, such as 200M, or omit rate for no \
            limit"
    )]
    ZeroRate,
    /// Packets would arrive before they were sent.
    #[error("jitter={jitter:?} is more than delay={delay:?}: it may be at most the delay")]
    JitterAboveDelay {
        /// As given.
        jitter: Duration,
        /// As given.
        delay: Duration,
    },
    /// Value outside the range of a probability.
    #[error("{what}={value}: a probability is 0 to 1, or 0% to 100%")]
    Probability {
        /// Name of the probability.
        what: &'static str,
        /// As given.
        value: f64,
    },
    /// Bursts without a delivered packet between them.
    #[error(
        "loss={rate} in bursts of {length}: with a delivered packet between bursts it may be at \
            most {most:.4}"
    )]
    BurstsTooDense {
        /// As given.
        rate: f64,
        /// As given.
        length: u32,
        /// Greatest possible rate.
        most: f64,
    },
    /// Burst of no packets.
    #[error("a burst has at least 1 packet, not 0")]
    EmptyBurst,
    /// Trace of no packets.
    #[error("the trace has no packet: give run lengths, delivered first, such as 1000:3:500:1")]
    EmptyTrace,
    /// Text that is not key=value.
    #[error("'{0}' is not a setting: give key=value, such as delay=50ms")]
    NoSetting(String),
    /// Unknown key.
    #[error(
        "unknown key '{0}': known are rate, delay, jitter, queue, loss, burst, reorder, \
            duplicate, corrupt"
    )]
    UnknownKey(String),
    /// Key given twice.
    #[error("'{0}' is given twice: give it once")]
    Twice(String),
    /// Value that does not parse.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// As given.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
}

impl LinkConfig {
    /// Checks every value; the error names the first invalid one.
    pub fn check(&self) -> Result<(), LinkError> {
        if self.rate == Some(0) {
            return Err(LinkError::ZeroRate);
        }
        if self.jitter > self.delay {
            return Err(LinkError::JitterAboveDelay { jitter: self.jitter, delay: self.delay });
        }
        self.loss.check()?;
        probability("reorder", self.reorder.probability)?;
        probability("duplicate", self.duplicate)?;
        probability("corrupt", self.corrupt)
    }
}

impl Loss {
    /// Checks every value; the error names the first invalid one.
    pub fn check(&self) -> Result<(), LinkError> {
        match self {
            Loss::None => Ok(()),
            Loss::Independent { rate } => probability("loss", *rate),
            Loss::Bursts { length: 0, .. } => Err(LinkError::EmptyBurst),
            &Loss::Bursts { rate, length } => {
                probability("loss", rate)?;
                let most = f64::from(length) / (f64::from(length) + 1.0);
                if rate > most {
                    return Err(LinkError::BurstsTooDense { rate, length, most });
                }
                Ok(())
            }
            &Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                probability("loss, good to bad", p_good_to_bad)?;
                probability("loss, bad to good", p_bad_to_good)?;
                probability("loss, while good", loss_good)?;
                probability("loss, while bad", loss_bad)
            }
            Loss::Trace(trace) if trace.packets() == 0 => Err(LinkError::EmptyTrace),
            Loss::Trace(_) => Ok(()),
            Loss::Both(parts) => parts.iter().try_for_each(Loss::check),
        }
    }
}

fn probability(what: &'static str, value: f64) -> Result<(), LinkError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(LinkError::Probability { what, value }) }
}
