//! How packets towards a peer are encoded.

use std::fmt;

use super::classes::Class;
use super::control::Limits;
use crate::fec::{Code, MAX_COVER};

/// How packets towards a peer are encoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Coding {
    /// As many repairs as the measured losses ask for.
    Auto(Settings),
    /// A code of fixed parameters.
    Fixed(Code),
    /// Names alone, by which the peer measures the link.
    Observe,
}

/// What an operator says of repairs that follow the losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Bounds.
    pub limits: Limits,
    /// Packets that are protected in another way than the built-in classes have it; the first that
    /// matches decides.
    pub classes: Vec<Class>,
    /// Whether acknowledgements without data are protected, too.
    pub acks: bool,
}

impl From<Limits> for Settings {
    fn from(limits: Limits) -> Self {
        Settings { limits, classes: Vec::new(), acks: false }
    }
}

impl Coding {
    /// How many packets back a repair may reach.
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
