//! Load of requests like that of Web Polygraph. The request times form a Poisson process,
//! independent of earlier requests and their answers. The sizes of the documents follow Zipf's law.
//! Each request uses a connection of its own.
//!
//! ```text
//!   due at t1, t2, t3, …  ── connect · GET · read to the end ──▶  a proxy, or the server itself
//!                                   a thread per request          each byte compared
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_proto::rng::Rng;

use super::{Documents, answer};
use crate::stop;
use crate::topology::{Host, TopologyError};

/// Settings of a load of requests.
#[derive(Clone, Debug)]
pub struct Requests {
    /// Average requests per second.
    pub rate: f64,
    /// Duration of the load.
    pub duration: Duration,
    /// Time limit of a document, after which it counts as not arrived.
    pub timeout: Duration,
    /// Address that the client connects to: a proxy, the server, or the near end of a tunnel.
    pub to: SocketAddr,
    /// Address of the server, as in URLs.
    pub server: SocketAddr,
    /// True if `to` is an HTTP proxy, which expects the complete URL.
    pub proxied: bool,
    /// Seed of the request times and documents.
    pub seed: u64,
}

/// Request and its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Time of the request, from the start of the load.
    pub sent: Duration,
    /// Size of the document in KB.
    pub kb: usize,
    /// Time to the first byte of the answer, connection setup included.
    pub first_byte: Option<Duration>,
    /// Time to the last byte; `None` if it did not arrive, or the content differs.
    pub time: Option<Duration>,
}

/// Maximum number of concurrent requests; a load that exceeds it fails.
const MAX_IN_FLIGHT: usize = 2000;

impl Requests {
    /// Sends the requests from `from` and waits for the last. Returns every request sent, in order;
    /// after Ctrl-C, those sent until then. Fails if more than 2000 requests are in progress, which
    /// means that the server does not answer.
    pub fn run(&self, from: &Host, documents: &Documents) -> Result<Vec<Request>, TopologyError> {
        let made = from.netns().enter(|| thread::scope(|scope| self.make(scope, documents)))?;
        made.map_err(|e| answer(from, e))
    }

    fn make<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        documents: &'scope Documents,
    ) -> Result<Vec<Request>, String> {
        let (done, answers) = channel();
        let mut rng = Rng::from_seed(self.seed);
        let (start, mut due, mut made) = (Instant::now(), Duration::ZERO, Vec::new());
        let mut under_way = 0;
        loop {
            // Exponentially distributed interval of a Poisson process.
            due += Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / self.rate);
            if due > self.duration {
                break;
            }
            let kb = documents.draw(&mut rng);
            thread::sleep(due.saturating_sub(start.elapsed()));
            if stop::is_requested() {
                break;
            }
            let number = made.len();
            made.push(Request { sent: start.elapsed(), kb, first_byte: None, time: None });
            under_way += 1;
            let done: Sender<_> = done.clone();
            // Results are collected through the channel below.
            let ask = move || drop(done.send((number, self.ask(number, documents.of(kb)))));
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, ask)
                .map_err(|e| format!("cannot start the thread of a request: {e}"))?;
            while let Ok(answered) = answers.try_recv() {
                note(&mut made, answered);
                under_way -= 1;
            }
            if under_way > MAX_IN_FLIGHT {
                return Err(format!("more than {MAX_IN_FLIGHT} requests are in progress"));
            }
        }
        drop(done);
        answers.iter().for_each(|answered| note(&mut made, answered));
        Ok(made)
    }

    /// Requests a document; returns the times to its first and last byte.
    fn ask(&self, number: usize, document: &[u8]) -> io::Result<(Duration, Duration)> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect_timeout(&self.to, self.timeout)?;
        stream.set_nodelay(true)?;
        let path = format!("/{}?{}-{number}", document.len() / 1000, self.seed);
        let url = match self.proxied {
            true => format!("http://{}{path}", self.server),
            false => path,
        };
        let host = self.server;
        let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        // A single write: several small ones would fill the initial window.
        stream.write_all(request.as_bytes())?;
        let (mut got, mut first) = (Vec::new(), None);
        let mut buffer = [0; 16 << 10];
        while !is_whole(&got, document.len()) {
            let left = self.timeout.saturating_sub(begin.elapsed());
            if left.is_zero() || stop::is_requested() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left.min(Duration::from_millis(500))))?;
            match stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e),
            }
            first.get_or_insert(begin.elapsed());
        }
        match got.starts_with(b"HTTP/1.1 200") && got.ends_with(document) {
            true => Ok((first.unwrap_or_default(), begin.elapsed())),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn note(made: &mut [Request], (number, answer): (usize, io::Result<(Duration, Duration)>)) {
    // A failed request does not end the load; it is recorded as not arrived.
    if let Ok((first, whole)) = answer {
        made[number].first_byte = Some(first);
        made[number].time = Some(whole);
    }
}

/// Returns whether `got` is complete: a header and a body of at least `length` bytes, or at least
/// `length` bytes of an answer with another status than 200 whose header is complete.
fn is_whole(got: &[u8], length: usize) -> bool {
    got.len() >= length
        && got
            .windows(4)
            .take(4096)
            .position(|four| four == b"\r\n\r\n")
            .is_some_and(|end| got.len() >= end + 4 + length || !got.starts_with(b"HTTP/1.1 200"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::programs::WebServer;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    #[test]
    fn a_load_has_the_configured_rate_and_every_document_is_complete() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let documents = Documents::new(1);
        let server = WebServer::with_documents(world.b1(), &documents).unwrap();
        let load = |port| Requests {
            rate: 100.0,
            duration: Duration::from_secs(2),
            timeout: Duration::from_secs(5),
            to: SocketAddr::new(world.b1().v4().into(), port),
            server: server.address(),
            proxied: false,
            seed: 1,
        };
        let made = load(server.address().port()).run(world.a1(), &documents).unwrap();
        assert!((140..260).contains(&made.len()), "{}", made.len());
        assert!(made.iter().all(|request| request.first_byte <= request.time));
        assert!(made.iter().all(|request| request.time.is_some()), "{made:?}");
        let refused = load(1).run(world.a1(), &documents).unwrap();
        assert_eq!(refused.len(), made.len(), "the same seed, the same load");
        assert!(refused.iter().all(|request| request.time.is_none()));
    }
}
