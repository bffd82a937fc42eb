//! A load of requests, as Web Polygraph makes it: they arrive as a Poisson process, whatever became
//! of those before, for documents whose sizes are Zipf's; each is a connection of its own.
//!
//! ```text
//!   due at t1, t2, t3, …  ── connect · GET · read to the end ──▶  a proxy, or the server itself
//!                                   a thread each                 each byte compared
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

/// A load of requests.
#[derive(Clone, Debug)]
pub struct Requests {
    /// Requests a second, on average.
    pub rate: f64,
    /// How long requests are made.
    pub duration: Duration,
    /// How long a document may take before it counts as never arrived.
    pub patience: Duration,
    /// Where the client connects to: a proxy, the server, or what stands for it.
    pub to: SocketAddr,
    /// The server, as URLs name it.
    pub server: SocketAddr,
    /// Whether `to` is an HTTP proxy, which is told the whole URL.
    pub proxied: bool,
    /// Decides when, and for what, requests are made.
    pub seed: u64,
}

/// A request and what became of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// When it was made, from the start of the load.
    pub sent: Duration,
    /// The document's size in KB.
    pub kb: usize,
    /// Until the first byte of the answer, from before the connection is opened.
    pub first_byte: Option<Duration>,
    /// Until the last byte; `None` if it did not come, or came with other bytes.
    pub time: Option<Duration>,
}

/// Requests under way at once; more than that are not made any more, which is an error.
const MOST: usize = 2000;

impl Requests {
    /// Makes the requests in `from`, and waits for the last.
    ///
    /// # Returns
    /// Every request that was made, in order; after Ctrl-C those until then.
    ///
    /// # Errors
    /// If more than 2000 are under way at once: nobody answers then.
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
            // The time between two of a Poisson process.
            due += Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / self.rate);
            if due > self.duration {
                break;
            }
            let kb = documents.draw(&mut rng);
            thread::sleep(due.saturating_sub(start.elapsed()));
            if stop::asked() {
                break;
            }
            let number = made.len();
            made.push(Request { sent: start.elapsed(), kb, first_byte: None, time: None });
            under_way += 1;
            let done: Sender<_> = done.clone();
            // Who hears the answer waits below for all of them.
            let ask = move || drop(done.send((number, self.ask(number, documents.of(kb)))));
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, ask)
                .map_err(|e| format!("cannot start the thread of a request: {e}"))?;
            while let Ok(answered) = answers.try_recv() {
                note(&mut made, answered);
                under_way -= 1;
            }
            if under_way > MOST {
                return Err(format!("more than {MOST} requests are under way at once"));
            }
        }
        drop(done);
        answers.iter().for_each(|answered| note(&mut made, answered));
        Ok(made)
    }

    /// Times to the first and to the last byte of a document.
    fn ask(&self, number: usize, document: &[u8]) -> io::Result<(Duration, Duration)> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect_timeout(&self.to, self.patience)?;
        stream.set_nodelay(true)?;
        let path = format!("/{}?{}-{number}", document.len() / 1000, self.seed);
        let url = match self.proxied {
            true => format!("http://{}{path}", self.server),
            false => path,
        };
        let host = self.server;
        let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        // In one piece: many small ones would fill the first flight.
        stream.write_all(request.as_bytes())?;
        let (mut got, mut first) = (Vec::new(), None);
        let mut buffer = [0; 16 << 10];
        while !is_whole(&got, document.len()) {
            let left = self.patience.saturating_sub(begin.elapsed());
            if left.is_zero() || stop::asked() {
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
    // What went wrong with one request is no reason to end the load; that it never arrived is noted.
    if let Ok((first, whole)) = answer {
        made[number].first_byte = Some(first);
        made[number].time = Some(whole);
    }
}

/// Whether `got` is a head and a body of `length` bytes, or more.
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
    fn a_load_is_as_often_as_asked_and_every_document_is_whole() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let documents = Documents::new(1);
        let server = WebServer::with_documents(world.b1(), &documents).unwrap();
        let load = |port| Requests {
            rate: 100.0,
            duration: Duration::from_secs(2),
            patience: Duration::from_secs(5),
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
