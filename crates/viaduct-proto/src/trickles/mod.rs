//! Trickles: a transport whose servers keep nothing per connection (Trickles, section 2).

pub mod packet;
