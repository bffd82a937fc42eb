//! Limit of connections per source, so that one source cannot use up all connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use crate::source::Source;

/// Counter of connections by source.
#[derive(Clone, Debug)]
pub struct Sources {
    open: Rc<RefCell<HashMap<Source, u32>>>,
    max: u32,
}

/// Permit for a connection of a source, released when dropped.
#[derive(Debug)]
pub struct Permit {
    source: Source,
    open: Rc<RefCell<HashMap<Source, u32>>>,
}

impl Sources {
    /// Creates a counter that allows `max` connections per source.
    pub fn new(max: u32) -> Sources {
        Sources { open: Rc::default(), max }
    }

    /// Acquires a permit for a client; `None` if its source has reached the limit.
    pub fn acquire(&self, client: IpAddr) -> Option<Permit> {
        let source = Source::from(client);
        let mut open = self.open.borrow_mut();
        let count = open.entry(source).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Permit { source, open: self.open.clone() })
    }
}

impl Drop for Permit {
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
    fn a_source_gets_at_most_its_number_of_permits() {
        let sources = Sources::new(2);
        let acquire = |client: &str| sources.acquire(client.parse().unwrap());
        let first = [acquire("192.0.2.1"), acquire("::ffff:192.0.2.1")];
        assert!(first.iter().all(Option::is_some) && acquire("192.0.2.1").is_none());
        let other = [acquire("2001:db8::1"), acquire("2001:db8::2")];
        assert!(other.iter().all(Option::is_some) && acquire("2001:db8::3").is_none());
        assert!(acquire("2001:db8:0:1::1").is_some());
        drop(first);
        assert!(acquire("192.0.2.1").is_some());
        drop(other);
        assert!(sources.open.borrow().is_empty(), "sources without connections are removed");
    }
}
