//! Limit of the connections per source, so that one source cannot take all places.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use crate::source::Source;

/// Counter of connections by source.
#[derive(Clone, Debug)]
pub struct Sources {
    open: Rc<RefCell<HashMap<Source, u32>>>,
    most: u32,
}

/// Place of a source, given back when dropped.
#[derive(Debug)]
pub struct Place {
    source: Source,
    open: Rc<RefCell<HashMap<Source, u32>>>,
}

impl Sources {
    /// Creates a counter that allows `most` connections per source.
    pub fn new(most: u32) -> Sources {
        Sources { open: Rc::default(), most }
    }

    /// Takes a place for a client, if its source has one left.
    pub fn place(&self, client: IpAddr) -> Option<Place> {
        let source = Source::from(client);
        let mut open = self.open.borrow_mut();
        let count = open.entry(source).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { source, open: self.open.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.borrow_mut();
        if let Some(count) = open.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_places_and_no_more() {
        let sources = Sources::new(2);
        let place = |client: &str| sources.place(client.parse().unwrap());
        let first = [place("192.0.2.1"), place("::ffff:192.0.2.1")];
        assert!(first.iter().all(Option::is_some) && place("192.0.2.1").is_none());
        let other = [place("2001:db8::1"), place("2001:db8::2")];
        assert!(other.iter().all(Option::is_some) && place("2001:db8::3").is_none());
        assert!(place("2001:db8:0:1::1").is_some());
        drop(first);
        assert!(place("192.0.2.1").is_some());
        drop(other);
        assert!(sources.open.borrow().is_empty(), "what is not used is forgotten");
    }
}
