//! The feature list of an interface, by `ioctl(SIOCETHTOOL)`.
//!
//! Features are bits with names: the requests read the number of features, then their names, then
//! their states in words of 32 bits.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::os;

const GET_STRINGS: u32 = 0x1b;
const GET_SET_SIZE: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
/// String set that names the features.
const FEATURE_NAMES: u32 = 4;
/// Words of one name (32 bytes, padded with NUL).
const NAME_WORDS: usize = 8;

#[derive(Debug)]
pub(super) struct Feature {
    pub(super) name: String,
    /// True if the feature can be switched.
    pub(super) changeable: bool,
    /// True if the administrator has requested the feature.
    pub(super) wanted: bool,
    pub(super) active: bool,
}

/// An interface that can be queried.
#[derive(Debug)]
pub(super) struct Device {
    socket: OwnedFd,
    name: CString,
}

impl Device {
    pub(super) fn open(interface: &str) -> io::Result<Device> {
        let name = CString::new(interface)?;
        if name.as_bytes().len() >= libc::IFNAMSIZ {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let socket = os::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        Ok(Device { socket, name })
    }

    /// Returns all features, in the kernel's order.
    pub(super) fn features(&self) -> io::Result<Vec<Feature>> {
        let names = self.names()?;
        let words = names.len().div_ceil(32);
        // Command, number of words; for each word: changeable, wanted, active, never changed.
        let mut request = vec![0; 2 + 4 * words];
        request[..2].copy_from_slice(&[GET_FEATURES, words as u32]);
        self.ioctl(&mut request)?;
        let bit = |which: usize, index: usize| {
            request[2 + 4 * (index / 32) + which] >> (index % 32) & 1 == 1
        };
        let feature = |(index, name)| Feature {
            name,
            changeable: bit(0, index),
            wanted: bit(1, index),
            active: bit(2, index),
        };
        Ok(names.into_iter().enumerate().map(feature).collect())
    }

    /// Requests that features be switched on or off, by name; unknown names are ignored.
    pub(super) fn set(&self, features: &[String], on: bool) -> io::Result<()> {
        let names = self.names()?;
        let words = names.len().div_ceil(32);
        // Command, number of words; for each word: mask of the bits to change, their values.
        let mut request = vec![0; 2 + 2 * words];
        request[..2].copy_from_slice(&[SET_FEATURES, words as u32]);
        for (index, _) in names.iter().enumerate().filter(|(_, name)| features.contains(name)) {
            let (word, bit) = (2 + 2 * (index / 32), 1 << (index % 32));
            request[word] |= bit;
            request[word + 1] |= if on { bit } else { 0 };
        }
        self.ioctl(&mut request)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mask = (1_u64 << FEATURE_NAMES).to_ne_bytes();
        let half =
            |at: usize| u32::from_ne_bytes([mask[at], mask[at + 1], mask[at + 2], mask[at + 3]]);
        // Command, reserved, mask of 64 bits, answer.
        let mut request = vec![GET_SET_SIZE, 0, half(0), half(4), 0];
        self.ioctl(&mut request)?;
        let count = request[4] as usize;
        let mut request = vec![0; 3 + NAME_WORDS * count];
        request[..3].copy_from_slice(&[GET_STRINGS, FEATURE_NAMES, count as u32]);
        self.ioctl(&mut request)?;
        Ok(request[3..].chunks(NAME_WORDS).map(name).collect())
    }

    /// Runs the command in `request`, which must have room for the answer.
    fn ioctl(&self, request: &mut [u32]) -> io::Result<()> {
        // SAFETY: all zeros are a valid `ifreq`.
        let mut ifreq: libc::ifreq = unsafe { mem::zeroed() };
        for (to, &from) in ifreq.ifr_name.iter_mut().zip(self.name.as_bytes()) {
            *to = from as libc::c_char;
        }
        ifreq.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
        // SAFETY: the name is shorter than its array, hence NUL-terminated. The kernel reads and
        // writes as much of `request` as its counts specify, and the methods above allocate
        // `request` by these counts.
        os::check(unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut ifreq)
        })
    }
}

fn name(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    String::from_utf8_lossy(&bytes.take_while(|&byte| byte != 0).collect::<Vec<u8>>()).into_owned()
}
