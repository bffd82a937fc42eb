//! Which way a client's requests go until one is answered, and from then on.
//!
//! ```text
//!   first ──TCP's format──▶ answered: so from now on
//!     │ a second later
//!     ├──UDP──▶ answered: so from now on
//!     ├──TCP's format, UDP, ... in turn, as the transport asks again
//!     └──a plain SYN-ACK──▶ the server is a plain TCP server
//! ```

use super::Format;
use crate::time::{Duration, Instant};

/// How long the first way is tried alone: a round trip by satellite, and some.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ways {
    /// TCP's format, and UDP where that is not answered.
    #[default]
    Any,
    /// One of them.
    Only(Format),
}

/// One connection's.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    ways: Ways,
    began: Option<Instant>,
    last: Format,
    refused: bool,
    decided: Option<Format>,
}

impl Opening {
    /// Nothing was tried.
    pub fn new(ways: Ways) -> Opening {
        Opening { ways, began: None, last: Format::Tcp, refused: false, decided: None }
    }

    /// How the next request goes.
    pub fn next(&mut self, now: Instant) -> Format {
        let began = *self.began.get_or_insert(now);
        let early = now.since(began) < PATIENCE;
        let format = match (self.ways, self.decided) {
            (Ways::Only(format), _) | (Ways::Any, Some(format)) => format,
            (Ways::Any, None) if self.refused => Format::Udp,
            (Ways::Any, None) if early || self.last == Format::Udp => Format::Tcp,
            (Ways::Any, None) => Format::Udp,
        };
        self.last = format;
        format
    }

    /// An answer has come this way: the first one decides.
    pub fn heard(&mut self, format: Format) {
        self.decided.get_or_insert(format);
    }

    /// The far kernel's TCP has reset us: nobody knows marked packets there, or somebody on the way took
    /// the mark. Whether there is another way to try.
    pub fn reset(&mut self) -> bool {
        self.refused |= self.decided.is_none();
        self.ways == Ways::Any
    }

    /// Nothing has come for long: what was decided may not hold any more, on another network say.
    pub fn doubt(&mut self) {
        *self = Opening::new(self.ways);
    }

    /// The way that was answered.
    pub fn decided(&self) -> Option<Format> {
        self.decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_way_is_tried_when_the_first_is_not_answered() {
        let mut opening = Opening::new(Ways::Any);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let tried: Vec<_> =
            [0, 300, 1_000, 2_000, 4_000].map(|ms| opening.next(at(ms))).into_iter().collect();
        let (tcp, udp) = (Format::Tcp, Format::Udp);
        assert_eq!(tried, [tcp, tcp, udp, tcp, udp]);
        opening.heard(udp);
        opening.heard(tcp);
        assert_eq!([opening.next(at(5_000)), opening.next(at(5_001))], [udp, udp]);
        opening.doubt();
        assert_eq!((opening.decided(), opening.next(at(9_000))), (None, tcp));
    }

    #[test]
    fn a_reset_ends_the_first_way_at_once() {
        let mut opening = Opening::new(Ways::Any);
        opening.next(Instant::ZERO);
        assert!(opening.reset());
        assert_eq!(opening.next(Instant::ZERO), Format::Udp);
        let mut only = Opening::new(Ways::Only(Format::Tcp));
        assert!(!only.reset(), "nothing else is to be tried");
        assert_eq!(only.next(Instant::ZERO + Duration::from_secs(9)), Format::Tcp);
    }
}
