//! Figure 14: ten outstanding requests on one connection, by round trip.
//!
//! ```text
//!   TCP                 ten consecutive requests on a connection, answered in order
//!   Trickles, sockets   the same on its main stream: ten heads in the input, responses in order
//!   Trickles, parallel  ten independent streams of one connection (msk_request)
//! ```
//!
//! The paper's server sends SKIP (section 5.2) after half of a response, to announce the end of the
//! response. `viaduct serve` knows a response's length at its beginning and announces its end in
//! the first continuation.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State};
use viaduct_sys::poll::{Waker, wait};

use super::replicas::{Replicas, SERVICE, Service};
use super::served::{CONGESTION_CONTROL, PORT};
use crate::experiments::prelude::*;
use crate::load::Trickles;

const OUTSTANDING: u64 = 10;
/// An object smaller than the capacity of a long path, and a larger one.
const SMALL: usize = 20_000;
const LARGE: usize = 250_000;
/// Round trips in milliseconds; the large object uses the first only.
const TRIPS: [u64; 5] = [10, 20, 40, 70, 100];
const QUICK: [u64; 2] = [10, 40];
/// Same number of rounds as the paper, whose error bars are 95 % confidence intervals.
const ROUNDS: usize = 6;
/// Minimum throughput relative to TCP's, with small objects by parallel requests.
const MIN_SMALL: f64 = 0.9;
/// Minimum throughput relative to TCP's, with large objects by either interface.
const MIN_LARGE: f64 = 0.94;
/// Sequence numbers reserved for a response in addition to the object's: more than its head needs.
const HEAD: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Tcp,
    Sockets,
    Parallel,
}

const WAYS: [(By, &str); 3] = [
    (By::Tcp, "TCP"),
    (By::Sockets, "Trickles, sockets interface"),
    (By::Parallel, "Trickles, parallel requests"),
];

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/pipelined",
    title: "Ten outstanding requests on one connection",
    figure: "Trickles, Figure 14",
    finding: "With objects of 250 kB and a round trip of 10 ms, Trickles carries 86 Mb/s, and TCP \
              91. With objects of 20 kB, a client with parallel requests is comparable to TCP, but \
              a client with the sockets interface is not.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let trips: &[u64] = run.choose(&TRIPS, &QUICK);
    let (warm_up, seconds) = run.choose((2, 4), (1, 3));
    let rounds = run.choose(ROUNDS, 1);
    let times = Times(Duration::from_secs(warm_up), Duration::from_secs(seconds));
    run.param("outstanding", OUTSTANDING);
    run.param("seconds_each", seconds);
    run.param("end_announced", "in the first continuation");
    run.param("rounds", rounds);
    run.param("trickles_client", "a client core in the lab's process, on the host of TCP's client");
    run.congestion_control(CONGESTION_CONTROL);
    let mut points = vec![(LARGE, trips[0])];
    points.extend(trips.iter().map(|trip| (SMALL, *trip)));
    run.steps(points.len() * WAYS.len() * rounds);
    for (size, trip) in points {
        let plot = format!("Objects of {} kB", size / 1000);
        let plot = Plot::line(&plot, ("round trip", "ms"), ("throughput", "Mb/s")).confidence();
        let mut found = WAYS.map(|_| Vec::new());
        for round in 0..rounds {
            let seed = run.seed() + round as u64;
            for ((by, name), found) in WAYS.into_iter().zip(&mut found) {
                run.step(&format!("{} kB, {trip} ms, {name}, {round}", size / 1000))?;
                let world = World::build(size, trip, seed, run.journal())?;
                let bits = world.measure(by, times, seed)?;
                run.plot_point(&plot, name, (trip as f64, bits / 1e6));
                found.push(bits);
            }
        }
        // Ratios to TCP in the same round.
        let ratios = |n: usize| -> Vec<f64> {
            found[n].iter().zip(&found[0]).map(|(ours, theirs)| ours / theirs).collect()
        };
        let name = |what: &str| format!("{} kB, {trip} ms: {what}, relative to TCP", size / 1000);
        let large = size == LARGE;
        let least = if large { MIN_LARGE } else { MIN_SMALL };
        for (n, what) in [(1, "sockets interface"), (2, "parallel requests")] {
            if large || n == 2 {
                run.at_least(&name(what), mean(&ratios(n)), least);
            }
            if rounds > 1 {
                run.param(&format!("{}, 95 %", name(what)), with_interval(&ratios(n)));
            }
        }
    }
    Ok(())
}

/// Warm-up, and measured time.
#[derive(Clone, Copy, Debug)]
struct Times(Duration, Duration);

struct World {
    net: Replicas,
    _server: Service,
    size: usize,
}

impl World {
    fn build(size: usize, trip: u64, seed: u64, journal: &Journal) -> Result<World> {
        // The queue holds the product of the rate and the longest round trip.
        let link = link(&format!("rate=100M,delay={}us,queue=1250kB", trip * 500));
        let net = Replicas::build(1, Wan::emulated(link, seed), journal)?;
        net.file("object", size, seed)?;
        let server = net.serve(0, &[])?;
        Ok(World { net, _server: server, size })
    }

    fn measure(&self, by: By, times: Times, seed: u64) -> Result<f64> {
        let to = SocketAddr::new(SERVICE.into(), PORT);
        let objects = match by {
            By::Tcp => {
                let fetch = || self.by_tcp(to, times);
                self.net.net.a1().netns().enter(fetch)??
            }
            By::Sockets | By::Parallel => {
                let mut clients = Trickles::open(&self.net.net, to, seed)?;
                self.by_trickles(&mut clients, by, times)?
            }
        };
        Ok(objects * self.size as f64 * 8.0)
    }

    fn by_tcp(&self, to: SocketAddr, times: Times) -> Result<f64> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let (mut window, mut answers) = (Window::new(times), Answers::new(self.size));
        let (mut asked, mut buffer) = (0, vec![0; 256 << 10]);
        while !window.is_over()? {
            while asked < answers.done() + OUTSTANDING {
                stream.write_all(REQUEST)?;
                asked += 1;
            }
            let read = stream.read(&mut buffer)?;
            ensure!(read > 0, "the server has closed the connection");
            answers.take(&buffer[..read])?;
            window.note(answers.objects());
        }
        Ok(window.rate())
    }

    fn by_trickles(&self, clients: &mut Trickles, by: By, times: Times) -> Result<f64> {
        let client = clients.connect(Config::default());
        let mut window = Window::new(times);
        let (mut main, mut asked) = (Answers::new(self.size), 0);
        let (mut streams, mut done): (Vec<(u32, Answers)>, u64) = (Vec::new(), 0);
        let (waker, mut changed) = (Waker::new()?, Vec::new());
        while !window.is_over()? {
            let stream = clients.stream(client).context("no such connection")?;
            if by == By::Sockets {
                while let Some(data) = stream.read(MAIN) {
                    main.take(&data)?;
                }
                while asked < main.done() + OUTSTANDING {
                    ensure!(stream.write(MAIN, REQUEST) == REQUEST.len(), "no room for a request");
                    asked += 1;
                }
            } else {
                for (id, answers) in &mut streams {
                    while let Some(data) = stream.read(*id) {
                        answers.take(&data)?;
                    }
                    if stream.state(*id) != State::Open {
                        ensure!(answers.done() == 1, "a response ended: {:?}", stream.state(*id));
                        stream.forget(*id);
                        done += 1;
                    }
                }
                streams.retain(|(_, answers)| answers.done() == 0);
                while streams.len() < OUTSTANDING as usize {
                    let reserve = self.size as u64 + HEAD;
                    let id = stream.request(REQUEST, reserve).context("no stream numbers left")?;
                    streams.push((id, Answers::new(self.size)));
                }
            }
            let ours = streams.iter().map(|(_, answers)| answers.objects()).sum::<f64>();
            window.note(main.objects() + done as f64 + ours);
            clients.flush(&mut changed);
            changed.clear();
            if !clients.turn(&mut changed)? {
                let most = Duration::from_millis(20);
                wait(&[&*clients], &waker, clients.poll_timeout().unwrap_or(most).min(most));
            }
        }
        Ok(window.rate())
    }
}

const REQUEST: &[u8] = b"GET /object HTTP/1.1\r\nHost: lab\r\n\r\n";

/// Measuring window after a warm-up.
struct Window {
    begun: Instant,
    times: Times,
    /// Start of the window, and the objects received until then.
    first: Option<(Instant, f64)>,
    last: (Instant, f64),
}

impl Window {
    fn new(times: Times) -> Window {
        let begun = Instant::now();
        Window { begun, times, first: None, last: (begun, 0.0) }
    }

    fn is_over(&self) -> Result<bool> {
        stop::check()?;
        Ok(self.begun.elapsed() > self.times.0 + self.times.1)
    }

    /// Records the number of objects received, fractions included.
    fn note(&mut self, objects: f64) {
        self.last = (Instant::now(), objects);
        if self.first.is_none() && self.begun.elapsed() > self.times.0 {
            self.first = Some(self.last);
        }
    }

    fn rate(&self) -> f64 {
        let Some((since, before)) = self.first else { return 0.0 };
        (self.last.1 - before) / (self.last.0 - since).as_secs_f64()
    }
}

/// Parser of consecutive responses of equal length.
struct Answers {
    size: usize,
    /// Bytes of a response, known once its head has arrived.
    length: Option<u64>,
    head: Vec<u8>,
    bytes: u64,
}

impl Answers {
    fn new(size: usize) -> Answers {
        Answers { size, length: None, head: Vec::new(), bytes: 0 }
    }

    fn take(&mut self, data: &[u8]) -> io::Result<()> {
        self.bytes += data.len() as u64;
        if self.length.is_none() {
            self.head.extend_from_slice(data);
            let end = self.head.windows(4).position(|four| four == b"\r\n\r\n");
            if !self.head.starts_with(&b"HTTP/1.1 200"[..self.head.len().min(12)]) {
                return Err(io::Error::other(String::from_utf8_lossy(&self.head).into_owned()));
            }
            self.length = end.map(|end| (end + 4 + self.size) as u64);
        }
        Ok(())
    }

    /// Returns the complete responses.
    fn done(&self) -> u64 {
        self.length.map_or(0, |length| self.bytes / length)
    }

    /// Returns the responses, fractions included.
    fn objects(&self) -> f64 {
        self.length.map_or(0.0, |length| self.bytes as f64 / length as f64)
    }
}
