//! Benchmarks of section 5.2 of the TESLA paper. Each runs as a minimal process of its own, because
//! handlers wrap whole programs. The experiments start them with `viaduct lab bench`.
//!
//! ```text
//!   read    ── Request ──▶ serve    ◀── blocks at full speed; prints bytes per second
//!   write   ── Request, blocks ──▶  ◀── bytes received, and the time
//!   volley  ── Request, a byte ──▶  ◀── a byte, repeated; prints round trips per second
//!   fetch   ── Request ──▶          ◀── n bytes, each compared; prints their trace
//!
//!   connect, close, flows    costs of opening and closing; hold serves connect and flows
//!   relay   writes what it has read: the proxy of the paper's configurations 2 and 3
//! ```

mod client;
mod content;
mod opening;
mod relay;
mod request;
mod server;
mod stream;

pub use content::Content;

use std::time::Duration;

use anyhow::Result;

use self::stream::Place;

/// Benchmark program and its arguments.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Program {
    /// Answer the requests of the other programs
    Serve {
        /// Address to listen on, as in 127.0.0.1:9000 or unix:/tmp/server
        at: Place,
    },
    /// Read blocks, and print the bytes received per second
    Read(Load),
    /// Write blocks, and print the bytes per second that the server received
    Write(Load),
    /// Send a byte and wait for one, and print the round trips per second
    Volley(Load),
    /// Read a number of bytes, compare each, and print the bytes received after each tenth of a
    /// second
    Fetch {
        /// The server
        to: Place,
        /// Number of bytes
        #[arg(long, default_value_t = 100_000_000)]
        bytes: u64,
    },
    /// Accept connections and hold them open
    Hold {
        /// Address to listen on
        at: Place,
    },
    /// Connect and close, and print the connections per second
    Connect {
        /// Address to connect to
        to: Place,
        /// For how long
        #[command(flatten)]
        time: Time,
    },
    /// Open and close a descriptor that is not a socket, and print the closes per second
    Close {
        /// For how long
        #[command(flatten)]
        time: Time,
    },
    /// Open flows; each line of standard input requests N of them: short N, or held N
    Flows {
        /// Address to connect to
        to: Place,
    },
    /// Relay connections from one address to another
    Relay {
        /// Address to listen on
        at: Place,
        /// Address to connect to
        to: Place,
    },
}

/// Duration of a measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Time {
    /// Measured seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds of warm-up before the measurement
    #[arg(long, default_value_t = 0.2)]
    warm_up: f64,
}

/// Arguments of a measuring client.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// The server, as in 127.0.0.1:9000 or unix:/tmp/server
    to: Place,
    /// Bytes per read and per write
    #[arg(long, default_value_t = 1)]
    block: u32,
    /// Content of the bytes
    #[arg(long, value_enum, default_value_t)]
    content: Content,
    /// For how long
    #[command(flatten)]
    time: Time,
    /// Idle seconds before and after the measurement, in which counters may be read
    #[arg(long, default_value_t = 0.0)]
    hold: f64,
}

impl Program {
    /// Runs the program to its end. Fails if a connection cannot be opened or breaks.
    pub fn run(&self) -> Result<()> {
        match self {
            Program::Serve { at } => Ok(server::run(at)?),
            Program::Read(load) => print(client::read(load)?),
            Program::Write(load) => print(client::write(load)?),
            Program::Volley(load) => print(client::volley(load)?),
            Program::Fetch { to, bytes } => client::fetch(to, *bytes),
            Program::Hold { at } => opening::hold(at),
            Program::Connect { to, time } => print(opening::connect(to, time.spans())?),
            Program::Close { time } => print(opening::close(time.spans())?),
            Program::Flows { to } => opening::flows(to),
            Program::Relay { at, to } => Ok(relay::run(at, to)?),
        }
    }
}

impl Time {
    /// Returns the warm-up and the measured duration.
    fn spans(&self) -> (Duration, Duration) {
        (Duration::from_secs_f64(self.warm_up), Duration::from_secs_f64(self.seconds))
    }
}

fn print(rate: f64) -> Result<()> {
    println!("{rate}");
    Ok(())
}
