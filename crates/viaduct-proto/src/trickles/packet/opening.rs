//! Choice of the packet format: tries the formats until a request is answered, and then keeps the
//! format of that request.
//!
//! ```text
//!   first ──TCP's format──▶ answered: TCP's format from now on
//!     │ a second later
//!     ├──UDP──▶ answered: UDP from now on
//!     ├──TCP's format, UDP, ... alternately, with each retransmission of the request
//!     ├──one format is refused──▶ only the other is tried; both are refused: there is no server
//!     └──a plain SYN-ACK──▶ the server is a plain TCP server
//! ```

use super::Format;
use crate::time::{Duration, Instant};

/// Time before the second format is tried: a satellite round trip with a margin.
const FALLBACK_DELAY: Duration = Duration::from_secs(1);

/// Formats that the user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FormatChoice {
    /// TCP's format, and UDP if TCP's format is not answered.
    #[default]
    Any,
    /// A single format.
    Only(Format),
}

/// Format selection of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    choice: FormatChoice,
    began: Option<Instant>,
    last: Format,
    /// True for each format that was refused: TCP's format, UDP.
    refused: (bool, bool),
    decided: Option<Format>,
}

impl Opening {
    /// Initial state: no format was tried.
    pub fn new(choice: FormatChoice) -> Opening {
        Opening { choice, began: None, last: Format::Tcp, refused: (false, false), decided: None }
    }

    /// Format of the next request.
    pub fn next(&mut self, now: Instant) -> Format {
        let began = *self.began.get_or_insert(now);
        let early = now.since(began) < FALLBACK_DELAY;
        let format = match (self.choice, self.decided) {
            (FormatChoice::Only(format), _) | (FormatChoice::Any, Some(format)) => format,
            (FormatChoice::Any, None) if self.refused.0 => Format::Udp,
            (FormatChoice::Any, None) if self.refused.1 || early || self.last == Format::Udp => {
                Format::Tcp
            }
            (FormatChoice::Any, None) => Format::Udp,
        };
        self.last = format;
        format
    }

    /// Records an answer in this format. The first answer decides.
    pub fn answered(&mut self, format: Format) {
        self.decided.get_or_insert(format);
    }

    /// Records that this format is refused: the server's kernel sent a TCP reset, or the UDP port
    /// is unreachable. Either the host does not serve Trickles, or a middlebox removed the TCP
    /// option that marks Trickles' packets. Returns whether another format can still be tried.
    /// After an answer of the server, refusals are ignored, and true is returned.
    pub fn refuse(&mut self, format: Format) -> bool {
        let (tcp, udp) = &mut self.refused;
        match (self.decided, format) {
            (Some(_), _) => return true,
            (None, Format::Tcp) => *tcp = true,
            (None, Format::Udp) => *udp = true,
        }
        self.choice == FormatChoice::Any && self.refused != (true, true)
    }

    /// Resets the choice after a long silence, because another format may be needed now, for
    /// instance on another network.
    pub fn doubt(&mut self) {
        *self = Opening::new(self.choice);
    }

    /// Format of the first answer; `None` before it.
    pub fn decided(&self) -> Option<Format> {
        self.decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_format_is_tried_when_the_first_is_not_answered() {
        let mut opening = Opening::new(FormatChoice::Any);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let tried: Vec<_> =
            [0, 300, 1_000, 2_000, 4_000].map(|ms| opening.next(at(ms))).into_iter().collect();
        let (tcp, udp) = (Format::Tcp, Format::Udp);
        assert_eq!(tried, [tcp, tcp, udp, tcp, udp]);
        opening.answered(udp);
        opening.answered(tcp);
        assert_eq!([opening.next(at(5_000)), opening.next(at(5_001))], [udp, udp]);
        opening.doubt();
        assert_eq!((opening.decided(), opening.next(at(9_000))), (None, tcp));
    }

    #[test]
    fn a_refused_format_is_not_tried_again() {
        let (tcp, udp) = (Format::Tcp, Format::Udp);
        let late = Instant::ZERO + Duration::from_secs(9);
        for (refused, other) in [(tcp, udp), (udp, tcp)] {
            let mut opening = Opening::new(FormatChoice::Any);
            opening.next(Instant::ZERO);
            assert!(opening.refuse(refused) && opening.refuse(refused));
            assert_eq!([Instant::ZERO, late].map(|at| opening.next(at)), [other, other]);
            assert!(!opening.refuse(other), "no format is left");
            let mut only = Opening::new(FormatChoice::Only(refused));
            assert!(!only.refuse(refused), "no other format is allowed");
            assert_eq!(only.next(late), refused);
        }
        let mut heard = Opening::new(FormatChoice::Any);
        heard.answered(udp);
        assert!(heard.refuse(udp) && heard.refuse(tcp), "the server has answered");
        assert_eq!(heard.next(late), udp);
    }
}
