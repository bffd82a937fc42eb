//! Packet capture of the segments to and from one TCP port, as by tcpdump, for plots of sequence
//! numbers over time that show stalls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use viaduct_proto::wire::ip::Header;
use viaduct_sys::capture::ring::{Direction, Ring, RingConfig};

use super::answer;
use crate::topology::{Node, TopologyError};

/// Running capture. Its segments are lost unless [`Capture::finish`] is called.
#[derive(Debug)]
pub struct Capture {
    node: Node,
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<Captured>>,
}

/// Captured segments, and the number of missed ones.
type Captured = (Vec<Segment>, u64);

/// Segment that crossed the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Wall-clock time of the segment.
    pub at: Duration,
    /// True if the segment left through the interface, false if it arrived.
    pub outgoing: bool,
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Acknowledgment number: the next byte that the segment's sender expects.
    pub acknowledged: u32,
    /// Bytes of payload.
    pub length: u32,
}

const RING: RingConfig = RingConfig { max_packet: 1500, bytes: 8 << 20 };
const TICK: Duration = Duration::from_millis(5);
const TCP: u8 = 6;

impl Capture {
    /// Captures the segments to or from TCP `port` that cross `interface` of `node`. Errors: if
    /// there is no such interface, or the process may not read it.
    pub fn start(node: &Node, interface: &str, port: u16) -> Result<Capture, TopologyError> {
        let ring = node.netns().enter(|| Ring::open(interface, RING))?;
        let ring = ring.map_err(|e| answer(node, e.to_string()))?;
        let enough = Arc::new(AtomicBool::new(false));
        let until = enough.clone();
        let thread = thread::Builder::new()
            .name("capture".into())
            .spawn(move || read(ring, port, &until))
            .map_err(|e| node.io("start the thread of a capture".into(), e))?;
        Ok(Capture { node: node.clone(), enough, thread: Some(thread) })
    }

    /// Stops the capture and returns its segments. Fails if segments were missed because the
    /// reader was too slow.
    pub fn finish(mut self) -> Result<Vec<Segment>, TopologyError> {
        self.enough.store(true, Ordering::Relaxed);
        let seen = self.thread.take().and_then(|thread| thread.join().ok());
        match seen {
            Some((segments, 0)) => Ok(segments),
            Some((_, missed)) => {
                Err(answer(&self.node, format!("a capture missed {missed} segments")))
            }
            None => Err(answer(&self.node, "the thread of a capture panicked".into())),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

fn read(mut ring: Ring, port: u16, enough: &AtomicBool) -> Captured {
    let mut segments = Vec::new();
    loop {
        // The flag is read before the ring, so that everything captured until then is read.
        let last = enough.load(Ordering::Relaxed);
        while let Some(frame) = ring.next() {
            let outgoing = frame.direction() == Direction::Outgoing;
            segments.extend(parse(&frame, port, frame.stamp(), outgoing));
        }
        if last {
            return (segments, ring.drops());
        }
        thread::sleep(TICK);
    }
}

fn parse(packet: &[u8], port: u16, at: Duration, outgoing: bool) -> Option<Segment> {
    let header = Header::parse(packet).ok().filter(|header| header.protocol == TCP)?;
    let tcp = packet.get(header.header_len..header.total_len)?;
    let short = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let word = |at: usize| Some(u32::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
    if short(0)? != port && short(2)? != port {
        return None;
    }
    let length = tcp.len().checked_sub(usize::from(*tcp.get(12)? >> 4) * 4)?;
    let (sequence, acknowledged) = (word(4)?, word(8)?);
    Some(Segment { at, outgoing, sequence, acknowledged, length: length as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::WebServer;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal, Wan};

    #[test]
    fn every_byte_of_a_download_is_seen() {
        let wan = Wan::emulated("rate=100M".parse().unwrap(), 1);
        let spec = DumbbellSpec { wan, ..DumbbellSpec::default() };
        let world = Dumbbell::build(&spec, &Journal::new()).unwrap();
        let server = WebServer::start(world.b1(), 300_000, 1).unwrap();
        let port = server.address().port();
        let capture = Capture::start(world.gateway_b(), "wan0", port).unwrap();
        server.download(world.a1(), Duration::from_secs(5)).unwrap();
        let segments = capture.finish().unwrap();
        let sent: u32 = segments.iter().filter(|s| s.outgoing).map(|s| s.length).sum();
        assert!((300_000..310_000).contains(&sent), "{sent}");
        assert!(segments.iter().all(|segment| segment.length <= 1460));
        assert!(segments.iter().any(|segment| !segment.outgoing && segment.length == 0));
    }
}
