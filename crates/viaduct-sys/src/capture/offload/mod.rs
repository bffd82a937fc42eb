//! Offloads of an interface: segmentation of super-packets, coalescing of received segments, and
//! checksums.
//!
//! ```text
//!   a host's 64 KiB --> [ segmentation ] --> 1500-byte packets on the wire
//!          ^                                          |
//!          `-- a tap sees these with offloads on      `-- a tap sees these with offloads off
//! ```
//!
//! A tap that must see the wire's packets byte for byte needs all offloads off on its interface;
//! the kernel then segments packets and fills in checksums before the tap. On a veth pair the
//! offloads of the other end have to be off as well, as they determine which packets arrive; on a
//! physical link, packets always arrive as they were on the wire.
#![allow(unsafe_code)]

mod ethtool;

use std::io;

use serde::{Deserialize, Serialize};

use ethtool::Device;

/// Features of an interface that were on and have to be switched off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadState {
    /// Interface name.
    pub interface: String,
    /// The kernel's names of the features (`ethtool -k` shows older names for some).
    pub features: Vec<String>,
}

/// Errors of an interface's offloads.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    /// The kernel refused.
    #[error("cannot {action} the offload features of {interface:?}")]
    Device {
        /// `read` or `change`.
        action: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The driver does not switch off some features.
    #[error(
        "cannot switch off {} of {interface:?}, so a tap does not see the wire's packets: use an \
         interface whose driver can", features.join(", ")
    )]
    Stuck {
        /// The interface.
        interface: String,
        /// Features that are still on.
        features: Vec<String>,
    },
}

impl OffloadState {
    /// Reads the features that are on and hide the wire's packets from a tap. Errors: there is no
    /// such interface.
    pub fn read(interface: &str) -> Result<OffloadState, OffloadError> {
        let device = open(interface)?;
        let features = device.features().map_err(failed("read", interface))?;
        let hiding = features.into_iter().filter(|feature| hides_packets(&feature.name));
        let on = hiding.filter(|feature| feature.wanted && feature.changeable);
        let features = on.map(|feature| feature.name).collect();
        Ok(OffloadState { interface: interface.to_owned(), features })
    }

    /// Adds features that have been switched on since this state was read; returns whether there
    /// are any. An interface that no longer exists has none. Errors: the interface cannot be read.
    pub(crate) fn add_new(&mut self) -> Result<bool, OffloadError> {
        let now = match OffloadState::read(&self.interface) {
            Ok(state) => state.features,
            Err(OffloadError::Device { source, .. })
                if source.raw_os_error() == Some(libc::ENODEV) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let before = self.features.len();
        self.features
            .extend(now.into_iter().filter(|of| !self.features.contains(of)).collect::<Vec<_>>());
        Ok(self.features.len() > before)
    }

    /// Switches the features off. Errors: there is no such interface, CAP_NET_ADMIN is missing, or
    /// a driver keeps a feature on.
    pub fn switch_off(&self) -> Result<(), OffloadError> {
        self.set(false)?;
        let features =
            open(&self.interface)?.features().map_err(failed("read", &self.interface))?;
        let stuck = features.into_iter().filter(|f| f.active && hides_packets(&f.name));
        let features: Vec<String> = stuck.map(|feature| feature.name).collect();
        if features.is_empty() {
            return Ok(());
        }
        Err(OffloadError::Stuck { interface: self.interface.clone(), features })
    }

    /// Switches the features on again. May be called repeatedly. An interface that no longer exists
    /// is not an error. Errors: CAP_NET_ADMIN is missing.
    pub fn restore(&self) -> Result<(), OffloadError> {
        match self.set(true) {
            Err(OffloadError::Device { source, .. })
                if source.raw_os_error() == Some(libc::ENODEV) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn set(&self, on: bool) -> Result<(), OffloadError> {
        let device = open(&self.interface)?;
        device.set(&self.features, on).map_err(failed("change", &self.interface))
    }
}

/// Returns whether the interface's hardware may carry out `tc` rules (`hw-tc-offload`).
///
/// # Errors
/// There is no such interface.
pub fn offloads_tc(interface: &str) -> Result<bool, OffloadError> {
    let features = open(interface)?.features().map_err(failed("read", interface))?;
    Ok(features.iter().any(|feature| feature.name == "hw-tc-offload" && feature.active))
}

fn open(interface: &str) -> Result<Device, OffloadError> {
    Device::open(interface).map_err(failed("read", interface))
}

fn failed<'a>(
    action: &'static str,
    interface: &'a str,
) -> impl Fn(io::Error) -> OffloadError + use<'a> {
    move |source| OffloadError::Device { action, interface: interface.to_owned(), source }
}

/// Returns whether a feature makes a tap see packets that differ from those on the wire.
fn hides_packets(name: &str) -> bool {
    let segments =
        name.starts_with("tx-") && (name.ends_with("-segmentation") || name.starts_with("tx-gso-"));
    let joins = name.starts_with("rx-gro") || name == "rx-lro" || name == "rx-udp-gro-forwarding";
    segments || joins || name.starts_with("tx-checksum-")
}
