//! The lab.

pub mod emulator;
