//! Messages at a constant rate with timestamps, to measure one-way latency.
//!
//! ```text
//!   sender (a thread in one host)            receiver (a thread in another)
//!   due at 0, I, 2I, …  ── [number | time | padding] ──>  latency = now - time
//! ```
//!
//! Both ends run on one machine and share its monotonic clock, so one-way latencies need no
//! clock synchronization. If the previous message was still being written when a message was due,
//! the message's timestamp is the time at which it was due, so that a blocked sender does not hide
//! the delay.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_congestion;

use crate::stop;
use crate::topology::{Host, TopologyError};

/// Transport of the messages.
#[derive(Clone, Debug, PartialEq)]
pub enum Carrier {
    /// A single TCP connection with this congestion control and without Nagle's algorithm.
    Tcp {
        /// Congestion control, as in `cubic`.
        congestion: String,
    },
    /// A UDP datagram per message.
    Udp,
}

/// Stream of messages; the paper's has 1024 bytes at 0.1 Mb/s.
#[derive(Clone, Debug)]
pub struct TimedMessages {
    /// Transport: TCP or UDP.
    pub carrier: Carrier,
    /// Bytes per message: at least 16.
    pub size: usize,
    /// Bits of messages per second.
    pub bits_per_second: f64,
    /// Duration of sending.
    pub duration: Duration,
    /// Time that the receiver waits for messages in flight at the end.
    pub timeout: Duration,
    /// Port of the receiver.
    pub port: u16,
}

/// Record of one message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// Time of sending, from the start of the stream.
    pub sent: Duration,
    /// Time until arrival, one way; `None` if the message never arrived.
    pub latency: Option<Duration>,
}

impl Message {
    /// Returns the time until arrival in milliseconds; infinity if the message never arrived.
    pub fn milliseconds(&self) -> f64 {
        self.latency.map_or(f64::INFINITY, |latency| latency.as_secs_f64() * 1e3)
    }
}

/// Real-time priority, below that of the link emulator.
const PRIORITY: i32 = 5;

/// Message header: number and time, 8 bytes each.
const HEADER: usize = 16;

impl TimedMessages {
    /// Returns the messages of the paper's section 5.2: 1024 bytes at 0.1 Mb/s.
    pub fn paper(carrier: Carrier, duration: Duration) -> TimedMessages {
        let timeout = Duration::from_secs(5);
        TimedMessages { carrier, size: 1024, bits_per_second: 1e5, duration, timeout, port: 6000 }
    }

    /// Sends the messages from `from` to `to` and waits for the last. Returns the messages sent, in
    /// order, even after Ctrl-C. Fails if a socket cannot be created or the connection breaks.
    pub fn run(&self, from: &Host, to: &Host) -> Result<Vec<Message>, TopologyError> {
        let address = SocketAddr::new(to.v4().into(), self.port);
        let origin = Instant::now();
        let heard = |e| to.io(format!("receive messages on port {}", self.port), e);
        let said = |e| from.io(format!("send messages to {address}"), e);
        let (sent, latencies) = match &self.carrier {
            Carrier::Tcp { congestion } => {
                let listener = to.netns().enter(|| TcpListener::bind(address))?.map_err(heard)?;
                let sender = || connect(address, congestion);
                let stream = from.netns().enter(sender)?.map_err(said)?;
                let (incoming, _) = listener.accept().map_err(heard)?;
                self.exchange(origin, TcpSender(stream), TcpReceiver(incoming))
            }
            Carrier::Udp => {
                let receiver = to.udp_socket(self.port)?;
                let sender = from.netns().enter(|| udp_to(address))?.map_err(said)?;
                self.exchange(origin, sender, receiver)
            }
        };
        let (sent, latencies) = (sent.map_err(said)?, latencies.map_err(heard)?);
        let latency = |n: usize| latencies.get(n).copied().flatten();
        let message = |(n, sent)| Message { sent, latency: latency(n) };
        Ok(sent.into_iter().enumerate().map(message).collect())
    }

    fn count(&self) -> usize {
        (self.duration.as_secs_f64() / self.interval().as_secs_f64()).floor() as usize
    }

    /// Returns the time between two messages.
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.size as f64 * 8.0 / self.bits_per_second)
    }

    fn exchange(
        &self,
        origin: Instant,
        sender: impl Sender + Send,
        receiver: impl Receiver + Send,
    ) -> (io::Result<Vec<Duration>>, io::Result<Vec<Option<Duration>>>) {
        thread::scope(|scope| {
            let received = scope.spawn(|| {
                hurry();
                self.receive_all(origin, receiver)
            });
            let sent = scope.spawn(|| {
                hurry();
                self.send_all(origin, sender)
            });
            let panicked = || io::Error::other("a thread of the messages panicked");
            let sent = sent.join().unwrap_or_else(|_| Err(panicked()));
            (sent, received.join().unwrap_or_else(|_| Err(panicked())))
        })
    }

    /// Sends all messages; returns the time of each.
    fn send_all(&self, origin: Instant, mut sender: impl Sender) -> io::Result<Vec<Duration>> {
        let mut message = vec![0x5a; self.size.max(HEADER)];
        let mut times = Vec::with_capacity(self.count());
        let start = origin.elapsed();
        for n in 0..self.count() {
            let due = start + self.interval() * n as u32;
            let late = origin.elapsed() > due;
            if !late {
                thread::sleep(due.saturating_sub(origin.elapsed()));
            }
            if stop::is_requested() {
                break;
            }
            let time = if late { due } else { origin.elapsed() };
            message[..8].copy_from_slice(&(n as u64).to_be_bytes());
            message[8..HEADER].copy_from_slice(&(time.as_nanos() as u64).to_be_bytes());
            sender.send(&message)?;
            times.push(time - start);
        }
        Ok(times)
    }

    /// Receives the messages; returns the latency of each that arrived.
    fn receive_all(
        &self,
        origin: Instant,
        mut receiver: impl Receiver,
    ) -> io::Result<Vec<Option<Duration>>> {
        let mut message = vec![0; self.size.max(HEADER)];
        let mut latencies = vec![None; self.count()];
        let mut missing = self.count();
        let mut end = origin.elapsed() + self.duration + self.timeout;
        while missing > 0 {
            if stop::is_requested() {
                // After a stop, wait only briefly for messages in flight.
                end = end.min(origin.elapsed() + Duration::from_millis(500));
            }
            let left = end.saturating_sub(origin.elapsed());
            if left.is_zero() || !receiver.receive(&mut message, left)? {
                break;
            }
            let now = origin.elapsed();
            let number =
                |at: usize| message[at..at + 8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
            let (n, time) = (number(0) as usize, Duration::from_nanos(number(8)));
            // If the network duplicates a message, the first copy counts.
            if let Some(slot @ None) = latencies.get_mut(n) {
                *slot = Some(now.saturating_sub(time));
                missing -= 1;
            }
        }
        Ok(latencies)
    }
}

/// Raises the thread's priority, so that waiting for a core does not add to the measured latency.
/// If the process may not use real-time priority, the measurement proceeds without it.
fn hurry() {
    let _ = viaduct_sys::process::thread::set_fifo(PRIORITY);
}

trait Sender {
    fn send(&mut self, message: &[u8]) -> io::Result<()>;
}

trait Receiver {
    /// Receives the next message into `message`; false at the end, or if none arrived in `limit`.
    fn receive(&mut self, message: &mut [u8], limit: Duration) -> io::Result<bool>;
}

struct TcpSender(TcpStream);

impl Sender for TcpSender {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(message)
    }
}

struct TcpReceiver(TcpStream);

impl Receiver for TcpReceiver {
    fn receive(&mut self, message: &mut [u8], limit: Duration) -> io::Result<bool> {
        self.0.set_read_timeout(Some(limit))?;
        arrived(self.0.read_exact(message))
    }
}

impl Sender for UdpSocket {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        UdpSocket::send(self, message).map(drop)
    }
}

impl Receiver for UdpSocket {
    fn receive(&mut self, message: &mut [u8], limit: Duration) -> io::Result<bool> {
        self.set_read_timeout(Some(limit))?;
        arrived(self.recv(message).map(drop))
    }
}

fn arrived(result: io::Result<()>) -> io::Result<bool> {
    use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
    match result {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.kind(), WouldBlock | TimedOut | UnexpectedEof) => Ok(false),
        Err(e) => Err(e),
    }
}

fn connect(to: SocketAddr, congestion: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
    stream.set_nodelay(true)?;
    set_tcp_congestion(&stream, congestion)?;
    Ok(stream)
}

fn udp_to(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    fn stream(carrier: Carrier) -> TimedMessages {
        let duration = Duration::from_millis(500);
        let timeout = Duration::from_millis(300);
        TimedMessages { bits_per_second: 1e6, timeout, ..TimedMessages::paper(carrier, duration) }
    }

    #[test]
    fn every_message_arrives_over_tcp_and_udp() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        for carrier in [Carrier::Tcp { congestion: "cubic".into() }, Carrier::Udp] {
            let messages = stream(carrier).run(world.a1(), world.b1()).unwrap();
            assert_eq!(messages.len(), 61, "one message every 8.192 ms for half a second");
            assert!(messages.iter().all(|m| m.latency.is_some()));
            let paced = messages[60].sent.abs_diff(Duration::from_micros(60 * 8192));
            assert!(paced < Duration::from_millis(100), "{paced:?}");
        }
    }

    #[test]
    fn messages_that_udp_loses_have_no_latency() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let messages = thread::scope(|scope| {
            let run = scope.spawn(|| stream(Carrier::Udp).run(world.a1(), world.b1()));
            thread::sleep(Duration::from_millis(250));
            world.gateway_b().ip(&["link set b1 down".into()]).unwrap();
            run.join().unwrap().unwrap()
        });
        assert_eq!(messages.len(), 61);
        assert!(messages[0].latency.is_some());
        assert_eq!(messages[60].latency, None);
    }
}
