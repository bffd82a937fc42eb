//! Coding of packets towards a peer.

use std::fmt;

use super::classes::Class;
use super::control::Limits;
use crate::fec::{Code, MAX_COVER};

/// Coding of packets towards a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum Coding {
    /// Repairs at a rate that adapts to the measured losses.
    Auto(Settings),
    /// Code with fixed parameters.
    Fixed(Code),
    /// Names only; the peer uses them to measure the link.
    Observe,
}

/// Operator's settings for repairs that adapt to the losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Bounds of the repair rate.
    pub limits: Limits,
    /// Classes that override the built-in ones; the first match decides.
    pub classes: Vec<Class>,
    /// True if acknowledgements without data are protected, too.
    pub acks: bool,
}

impl From<Limits> for Settings {
    fn from(limits: Limits) -> Self {
        Settings { limits, classes: Vec::new(), acks: false }
    }
}

impl Coding {
    /// Largest distance, in packets, from a repair back to a packet that it covers.
    pub fn span(&self) -> usize {
        match self {
            Coding::Auto(_) => usize::from(MAX_COVER),
            Coding::Observe => 0,
            Coding::Fixed(Code::Layered(layered)) => {
                let longest = layered.interleaves.iter().copied().max().unwrap_or(1);
                // A delayed repair leaves one interleave later.
                (usize::from(layered.r) + 1) * usize::from(longest)
            }
            Coding::Fixed(Code::ReedSolomon(block)) => {
                usize::from(block.r) * usize::from(block.interleave)
            }
            Coding::Fixed(Code::Window(code)) => usize::from(code.window),
        }
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Coding::Auto(Settings { limits, .. }) => {
                write!(f, "auto, {:.0} % at most", 100.0 * limits.max_overhead)
            }
            Coding::Fixed(code) => code.fmt(f),
            Coding::Observe => f.write_str("observe"),
        }
    }
}
