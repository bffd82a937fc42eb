//! What an end says of its handlers: an option of 16 bytes in its SYN, or in its SYN-ACK.
//!
//! ```text
//!   byte  0     253   experimental (RFC 4727)
//!         1      16   length of the option
//!         2, 3 5661   ExID "Va", Viaduct agreement (RFC 6994), in hexadecimal
//!         4           version, 1, in the high half; in the low half bit 0: not plainly
//!         5           how many handlers follow, 0 to 10
//!         6..16       a handler each, the application's first: its number in the high half,
//!                     its format in the low one; zeros where there are no more
//! ```
//!
//! Linux uses 20 of the 40 bytes that a SYN has for options; these are the other 20, and 4 are left.

use crate::split::option::{KIND, each};

/// Bytes of the option.
pub const LEN: usize = 16;
/// What tells it from other experiments.
pub const EXID: [u8; 2] = *b"Va";
/// Handlers that fit into it.
pub const MOST: usize = 10;

const VERSION: u8 = 1;
const NOT_PLAINLY: u8 = 1;
const HEAD: usize = 6;

/// The handlers that can be agreed on: name, number, and the format of what each sends. A format is
/// counted on when an older end could not read it.
pub const NUMBERS: [(&str, u8, u8); 5] =
    [("compress", 1, 1), ("crypt", 2, 1), ("migrate", 3, 1), ("stripe", 4, 1), ("mux", 5, 1)];

/// A handler, as it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// Which: 1 to 15. Of later ends there may be numbers that are not in [`NUMBERS`].
    pub number: u8,
    /// What it sends: 0 to 15.
    pub format: u8,
}

/// What an end says: its handlers, the application's first, none twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offer {
    /// They.
    pub items: Vec<Item>,
    /// It goes on with none of them missing that it was told to insist on; that is for the other end's
    /// log, who insists is who refuses.
    pub insists: bool,
}

impl Offer {
    /// The option, byte by byte; handlers beyond the tenth are left out.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let items = &self.items[..self.items.len().min(MOST)];
        bytes[..2].copy_from_slice(&[KIND, LEN as u8]);
        bytes[2..4].copy_from_slice(&EXID);
        bytes[4] = VERSION << 4 | if self.insists { NOT_PLAINLY } else { 0 };
        bytes[5] = items.len() as u8;
        for (byte, item) in bytes[HEAD..].iter_mut().zip(items) {
            *byte = item.number << 4 | item.format & 0xf;
        }
        bytes
    }

    /// From an option, its kind and length included; `None` if it is another, of another version, or
    /// says what no end says.
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
        sound.then(|| Offer { insists: bytes[4] & NOT_PLAINLY != 0, items })
    }

    /// The first such option among the options of a TCP header.
    pub fn find(options: &[u8]) -> Option<Offer> {
        each(options).find_map(Offer::parse)
    }

    /// The same in the headers of a packet, from its IP header on, as the kernel keeps them of a SYN.
    pub fn in_headers(headers: &[u8]) -> Option<Offer> {
        Offer::find(crate::split::syn::options(headers)?)
    }
}

/// What a handler is called; its number, if that is not known here.
pub(super) fn name(number: u8) -> String {
    let known = NUMBERS.iter().find(|(_, of, _)| *of == number);
    known.map_or_else(|| format!("handler {number}"), |(name, ..)| (*name).to_owned())
}

/// How a handler is offered.
pub(super) fn item(name: &str) -> Option<Item> {
    let &(_, number, format) = NUMBERS.iter().find(|(of, ..)| *of == name)?;
    Some(Item { number, format })
}
