//! Numbered datagrams from one site with a rack to all slices of the other, until stopped.

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::topology::Racks;
use crate::topology::racks::addresses;

const PORT: u16 = 5_001;
/// Payload in bytes.
const LENGTH: usize = 300;
/// Time after the end of sending in which datagrams may still arrive.
const REST: Duration = Duration::from_millis(700);
/// Number of the first datagram of this process's next stream. Numbers continue from stream to
/// stream, so that a late datagram of an earlier stream is recognized.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Running stream.
#[derive(Debug)]
pub struct SliceStream {
    /// Number of the stream's first datagram.
    first: u32,
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<Vec<SliceDatagram>>>,
    receiver: JoinHandle<Arrivals>,
}

/// Received datagrams.
#[derive(Debug, Default)]
struct Arrivals {
    /// Time of the first arrival and number of arrivals by datagram number.
    right: HashMap<u32, (Instant, u32)>,
    /// Number of datagrams with a wrong byte or length.
    wrong: usize,
}

/// Datagram of a stream.
#[derive(Clone, Copy, Debug)]
pub struct SliceDatagram {
    /// Send time.
    pub sent_at: Instant,
    /// Index of the destination's slice.
    pub slice: usize,
    /// Time of the first arrival.
    pub arrived_at: Option<Instant>,
    /// Number of arrivals.
    pub copies: u32,
}

impl SliceStream {
    /// Starts to send `rate` datagrams per second from site `from`, 0 or 1, to the slices of the
    /// other site in turn.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub fn start(world: &Racks, from: usize, rate: f64) -> Result<SliceStream> {
        let open = |site: usize| world.sites[site].host.udp_socket(PORT);
        let (sender, receiver) = (open(from)?, open(1 - from)?);
        receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
        // The buffer holds some seconds of datagrams, because the receiver pauses when its table of
        // millions of datagrams grows.
        set_socket_recv_buffer_size_force(&receiver, 64 << 20)?;
        let to: Vec<_> = addresses(2 - from as u8).collect();
        let (first, stop) = (NEXT.load(Ordering::Relaxed), Arc::new(AtomicBool::new(false)));
        let (of_sender, of_receiver) = (stop.clone(), stop.clone());
        let sender = thread::spawn(move || send(&sender, &to, rate, (first, &of_sender)));
        let receiver = thread::spawn(move || arrivals(&receiver, &of_receiver));
        Ok(SliceStream { first, stop, sender, receiver })
    }

    /// Ends the stream, and waits for the last datagrams.
    ///
    /// # Errors
    /// If a socket has failed, or a datagram has arrived with a wrong byte.
    pub fn finish(self) -> Result<Vec<SliceDatagram>> {
        let (sent, wrong) = self.finish_counting()?;
        ensure!(wrong == 0, "{wrong} datagrams have a wrong byte");
        Ok(sent)
    }

    /// Ends the stream, and waits for the last datagrams. Returns the datagrams that were sent, and
    /// the number of those that arrived with a wrong byte or length.
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn finish_counting(self) -> Result<(Vec<SliceDatagram>, usize)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sent = self.sender.join().ok().context("the sender panicked")??;
        let Arrivals { right, wrong } =
            self.receiver.join().ok().context("the receiver panicked")?;
        NEXT.store(self.first + sent.len() as u32, Ordering::Relaxed);
        for (number, (at, copies)) in right {
            let Some(index) = number.checked_sub(self.first) else {
                continue; // A datagram of an earlier stream, which counted it as missing.
            };
            let datagram = sent.get_mut(index as usize).context("a datagram of another stream")?;
            (datagram.arrived_at, datagram.copies) = (Some(at), copies);
        }
        Ok((sent, wrong))
    }
}

/// Returns the share of datagrams that have not arrived; 0 if there are no datagrams.
pub fn missing_share<'a>(datagrams: impl IntoIterator<Item = &'a SliceDatagram>) -> f64 {
    let (mut all, mut missing) = (0_u32, 0_u32);
    for datagram in datagrams {
        all += 1;
        missing += u32::from(datagram.arrived_at.is_none());
    }
    f64::from(missing) / f64::from(all.max(1))
}

fn send(
    socket: &UdpSocket,
    to: &[Ipv4Addr],
    rate: f64,
    (first, stop): (u32, &AtomicBool),
) -> Result<Vec<SliceDatagram>> {
    let (begun, mut sent) = (Instant::now(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let (number, slice) = (first + sent.len() as u32, sent.len() % to.len());
        // The kernel may reject the send while a router has no route.
        let _ = socket.send_to(&datagram(number), (to[slice], PORT));
        sent.push(SliceDatagram { sent_at: Instant::now(), slice, arrived_at: None, copies: 0 });
        let due = Duration::from_secs_f64(sent.len() as f64 / rate);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(sent)
}

fn arrivals(socket: &UdpSocket, stop: &AtomicBool) -> Arrivals {
    let (mut arrived, mut buffer) = (Arrivals::default(), [0; 2_000]);
    let mut stopped_at: Option<Instant> = None;
    while stopped_at.is_none_or(|at| at.elapsed() < REST) {
        if stopped_at.is_none() && stop.load(Ordering::Relaxed) {
            stopped_at = Some(Instant::now());
        }
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let number = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
        if buffer[..length] == datagram(number) {
            arrived.right.entry(number).or_insert((Instant::now(), 0)).1 += 1;
        } else {
            arrived.wrong += 1;
        }
    }
    arrived
}

fn datagram(number: u32) -> [u8; LENGTH] {
    let mut datagram = [number as u8; LENGTH];
    datagram[..4].copy_from_slice(&number.to_be_bytes());
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_datagrams_are_counted() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut altered = datagram(8);
        altered[LENGTH - 1] ^= 1;
        for sent in [&datagram(7)[..], &datagram(7), &altered, &datagram(9)[..3]] {
            receiver.send_to(sent, receiver.local_addr().unwrap()).unwrap();
        }
        let arrived = arrivals(&receiver, &AtomicBool::new(true));
        assert_eq!((arrived.right.len(), arrived.right[&7].1, arrived.wrong), (1, 2, 2));
    }
}
