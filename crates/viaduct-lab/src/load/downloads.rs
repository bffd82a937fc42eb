//! Concurrent downloads of one object by many Trickles clients. Periods in which a client gets no
//! data are recorded.

use std::io;
use std::time::{Duration, Instant};

use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State};
use viaduct_sys::poll::{Waker, wait};

use super::Trickles;
use crate::stop;

/// Maximum sleep.
const NAP: Duration = Duration::from_millis(20);
/// Minimum length of a period without data that is recorded, in seconds.
const MIN_GAP: f64 = 0.05;

/// Parameters of the downloads.
#[derive(Clone, Copy, Debug)]
pub struct Downloads<'a> {
    /// Request of each client.
    pub request: &'a [u8],
    /// Expected body of the response.
    pub content: &'a [u8],
    /// Number of downloads.
    pub clients: usize,
    /// Time over which the beginnings are evenly spread.
    pub spread: Duration,
    /// Time limit of all downloads.
    pub limit: Duration,
}

/// Period in which a download got no data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Beginning, in seconds since the downloads began.
    pub from: f64,
    /// End.
    pub to: f64,
}

impl Gap {
    /// Returns the length in seconds.
    pub fn length(&self) -> f64 {
        self.to - self.from
    }
}

/// Result of a download.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Downloaded {
    /// Bytes of the body, all as expected.
    pub bytes: u64,
    /// True if the complete body arrived.
    pub is_whole: bool,
    /// Reason of a failure.
    pub failed: Option<String>,
    /// Periods without data, of 50 ms or more, in order. Each was ended by data: a download that
    /// gets no more data has no such period after its last byte.
    pub gaps: Vec<Gap>,
    /// Time of the last byte, in seconds.
    pub end: f64,
}

impl Downloaded {
    /// Returns the length, in seconds, of the longest gap that overlaps the time from `from`
    /// to `to`.
    pub fn longest_gap(&self, from: f64, to: f64) -> f64 {
        let touches = |gap: &&Gap| gap.to > from && gap.from < to;
        self.gaps.iter().filter(touches).map(Gap::length).fold(0.0, f64::max)
    }
}

/// Download in progress.
struct Member {
    connection: u32,
    /// Bytes of the response's head, until it is complete.
    head: Vec<u8>,
    is_in_body: bool,
    last: f64,
    result: Downloaded,
    is_over: bool,
}

impl Downloads<'_> {
    /// Runs the downloads to their ends; calls `each` in every turn with the time in seconds and
    /// the bytes received until then. Errors: those of the kernel, or Ctrl-C.
    pub fn run(
        &self,
        clients: &mut Trickles,
        mut each: impl FnMut(f64, u64),
    ) -> io::Result<Vec<Downloaded>> {
        let (start, waker) = (Instant::now(), Waker::new()?);
        let mut members: Vec<Member> = Vec::new();
        let (mut changed, mut total) = (Vec::new(), 0);
        loop {
            let passed = start.elapsed();
            let now = passed.as_secs_f64();
            let due = now / self.spread.as_secs_f64().max(1e-3) * self.clients as f64;
            while members.len() < self.clients && members.len() as f64 <= due {
                members.push(self.begin(clients, now));
            }
            let is_over = members.len() == self.clients && members.iter().all(|one| one.is_over);
            if is_over || passed > self.limit {
                break;
            }
            stop::check().map_err(io::Error::other)?;
            let came = clients.turn(&mut changed)?;
            let now = start.elapsed().as_secs_f64();
            let has_news = !changed.is_empty();
            for connection in changed.drain(..) {
                let member = members.iter_mut().find(|one| one.connection == connection);
                if let Some(member) = member.filter(|one| !one.is_over) {
                    total += self.read(clients, member, now);
                }
            }
            each(now, total);
            // Reading makes room for more data.
            clients.flush(&mut changed);
            if !came && !has_news && changed.is_empty() {
                wait(&[&*clients], &waker, clients.poll_timeout().unwrap_or(NAP).min(NAP));
            }
        }
        for member in members.iter_mut().filter(|one| !one.is_over) {
            member.result.failed = Some("it did not complete in time".to_owned());
            clients.forget(member.connection);
        }
        Ok(members.into_iter().map(|member| member.result).collect())
    }

    fn begin(&self, clients: &mut Trickles, now: f64) -> Member {
        let connection = clients.connect(Config::default());
        if let Some(stream) = clients.stream(connection) {
            stream.write(MAIN, self.request);
            stream.shutdown(MAIN);
        }
        let (head, result) = (Vec::new(), Downloaded::default());
        Member { connection, head, is_in_body: false, last: now, result, is_over: false }
    }

    /// Reads what has arrived; returns the bytes of the body.
    fn read(&self, clients: &mut Trickles, member: &mut Member, now: f64) -> u64 {
        let Some(stream) = clients.stream(member.connection) else { return 0 };
        let before = member.result.bytes;
        while let Some(data) = stream.read(MAIN) {
            let gap = Gap { from: member.last, to: now };
            if gap.length() >= MIN_GAP {
                member.result.gaps.push(gap);
            }
            (member.last, member.result.end) = (now, now);
            if let Err(wrong) = member.take(&data, self.content) {
                member.result.failed.get_or_insert(wrong);
            }
        }
        match stream.state(MAIN) {
            State::Open if member.result.failed.is_none() => return member.result.bytes - before,
            State::Open => {}
            State::Finished => {
                member.result.is_whole = member.result.failed.is_none()
                    && member.result.bytes == self.content.len() as u64;
            }
            State::Failed(why) => {
                member.result.failed.get_or_insert(format!("{why:?}"));
            }
        }
        member.is_over = true;
        clients.forget(member.connection);
        member.result.bytes - before
    }
}

impl Member {
    /// Compares data with the expected content. Errors: the data differ.
    fn take(&mut self, data: &[u8], content: &[u8]) -> Result<(), String> {
        let (mut body, first) = (data, self.head.len());
        if !self.is_in_body {
            const END: &[u8] = b"\r\n\r\n";
            self.head.extend_from_slice(data);
            let Some(at) = self.head.windows(END.len()).position(|some| some == END) else {
                return Ok(());
            };
            if !self.head.starts_with(b"HTTP/1.1 200 ") {
                return Err("the status is not 200".to_owned());
            }
            self.is_in_body = true;
            body = &data[(at + END.len()).saturating_sub(first)..];
        }
        let at = self.result.bytes as usize;
        if content.get(at..at + body.len()) != Some(body) {
            return Err(format!("wrong bytes at offset {at}"));
        }
        self.result.bytes += body.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_that_overlap_a_period_count() {
        let gaps = vec![Gap { from: 1.0, to: 1.25 }, Gap { from: 5.0, to: 6.0 }];
        let one = Downloaded { gaps, ..Downloaded::default() };
        assert_eq!(one.longest_gap(0.0, 10.0), 1.0);
        assert_eq!(one.longest_gap(1.125, 2.0), 0.25);
        assert_eq!(one.longest_gap(2.0, 5.0), 0.0);
    }

    #[test]
    fn a_body_is_compared_wherever_the_head_ends() {
        let member = || Member {
            connection: 0,
            head: Vec::new(),
            is_in_body: false,
            last: 0.0,
            result: Downloaded::default(),
            is_over: false,
        };
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        for cut in 0..text.len() {
            let mut one = member();
            for part in [&text[..cut], &text[cut..]] {
                one.take(part, b"abc").unwrap();
            }
            assert_eq!(one.result.bytes, 3, "{cut}");
        }
        assert!(member().take(text, b"abd").unwrap_err().contains("offset 0"));
        assert!(member().take(b"HTTP/1.1 404 Not Found\r\n\r\n", b"").is_err());
    }
}
