//! Offer of an end's handlers: an option of 16 bytes in its SYN or SYN-ACK.
//!
//! ```text
//!   byte  0     253   experimental (RFC 4727)
//!         1      16   length of the option
//!         2, 3 5661   ExID "Va", Viaduct agreement (RFC 6994), in hexadecimal
//!         4           version, 1, in the high half; bit 0: handlers are required
//!         5           number of handlers, 0 to 10
//!         6..16       a byte a handler, in order from the application: its number in
//!                     the high half, its format in the low half; 0 if unused
//! ```
//!
//! Linux uses 20 of the 40 bytes that a SYN has for options. This option takes 16 of the other
//! 20, and 4 are left.

use crate::split::option::{KIND, each};

/// Length of the option in bytes.
pub const LEN: usize = 16;
/// Experiment identifier of the option.
pub const EXID: [u8; 2] = *b"Va";
/// Maximum number of handlers in the option.
pub const MAX_HANDLERS: usize = 10;

const VERSION: u8 = 1;
const INSISTS: u8 = 1;
const HEAD: usize = 6;

/// Handlers that can be negotiated: name, number, and the format of the handler's data. The
/// format's number is incremented by a change that an older end could not read.
pub const NUMBERS: [(&str, u8, u8); 5] =
    [("compress", 1, 1), ("crypt", 2, 1), ("migrate", 3, 1), ("stripe", 4, 1), ("mux", 5, 1)];

/// Handler in an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// Number of the handler, 1 to 15; later versions may send numbers not in [`NUMBERS`].
    pub number: u8,
    /// Format of the handler's data, 0 to 15.
    pub format: u8,
}

/// Offer of an end: its handlers, in order from the application, each at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Handlers of the end.
    pub items: Vec<Item>,
    /// True if the end requires handlers. Informational only: the end that requires handlers
    /// refuses the flow itself.
    pub insists: bool,
}

impl Offer {
    /// Encodes the option. Handlers beyond the tenth are left out.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let items = &self.items[..self.items.len().min(MAX_HANDLERS)];
        bytes[..2].copy_from_slice(&[KIND, LEN as u8]);
        bytes[2..4].copy_from_slice(&EXID);
        bytes[4] = VERSION << 4 | if self.insists { INSISTS } else { 0 };
        bytes[5] = items.len() as u8;
        for (byte, item) in bytes[HEAD..].iter_mut().zip(items) {
            *byte = item.number << 4 | item.format & 0xf;
        }
        bytes
    }

    /// Parses an option with kind and length; `None` if it is another option, or invalid.
    pub fn parse(option: &[u8]) -> Option<Offer> {
        let bytes: &[u8; LEN] = option.try_into().ok()?;
        if bytes[..2] != [KIND, LEN as u8] || bytes[2..4] != EXID || bytes[4] >> 4 != VERSION {
            return None;
        }
        let (items, rest) = bytes[HEAD..].split_at_checked(bytes[5].into())?;
        let item = |byte: &u8| Item { number: byte >> 4, format: byte & 0xf };
        let items: Vec<Item> = items.iter().map(item).collect();
        let once = |(n, item): (usize, &Item)| {
            item.number > 0 && items[..n].iter().all(|other| other.number != item.number)
        };
        let sound = items.iter().enumerate().all(once) && rest.iter().all(|&byte| byte == 0);
        sound.then(|| Offer { insists: bytes[4] & INSISTS != 0, items })
    }

    /// First offer among the options of a TCP header.
    pub fn find(options: &[u8]) -> Option<Offer> {
        each(options).find_map(Offer::parse)
    }

    /// First offer in the headers of a packet, beginning with its IP header, as the kernel saves
    /// those of a SYN (`TCP_SAVED_SYN`).
    pub fn in_headers(headers: &[u8]) -> Option<Offer> {
        Offer::find(crate::split::syn::options(headers)?)
    }
}

/// Name of a handler; its number if the name is not known here.
pub(super) fn name(number: u8) -> String {
    let known = NUMBERS.iter().find(|(_, of, _)| *of == number);
    known.map_or_else(|| format!("handler {number}"), |(name, ..)| (*name).to_owned())
}

pub(super) fn item(name: &str) -> Option<Item> {
    let &(_, number, format) = NUMBERS.iter().find(|(of, ..)| *of == name)?;
    Some(Item { number, format })
}
