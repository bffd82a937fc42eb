//! The benchmarks of TESLA's section 5.2, each a process of its own, as small as can be: what is wrapped
//! must be a program. `viaduct lab bench` runs them; they are made for the experiments.
//!
//! ```text
//!   read    ── Asked ──▶ serve    ◀── blocks, as many as it can write; bytes a second are printed
//!   write   ── Asked, blocks ──▶  ◀── what came, and in what time
//!   volley  ── Asked, a byte ──▶  ◀── a byte, and so on; volleys a second are printed
//!   fetch   ── Asked ──▶          ◀── so many bytes, each compared; their trace is printed
//!
//!   connect, close, flows    what opening and closing costs; hold is their server
//!   relay   reads and writes what it read: the proxy of the paper's configurations 2 and 3
//! ```

mod asked;
mod client;
mod content;
mod opening;
mod relay;
mod server;
mod stream;

pub use content::Content;

use std::time::Duration;

use anyhow::Result;

use self::stream::Place;

/// Which of them, and what it is told.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Program {
    /// Answer what the others ask
    Serve {
        /// Where, as in 127.0.0.1:9000 or unix:/tmp/server
        at: Place,
    },
    /// Read blocks, and print how many bytes came a second
    Read(Load),
    /// Write blocks, and print how many bytes came a second, as the server counts them
    Write(Load),
    /// Send a byte and wait for one, and print how often a second
    Volley(Load),
    /// Read so many bytes, compare each, and print how many had come after each tenth of a second
    Fetch {
        /// The server
        to: Place,
        /// How many
        #[arg(long, default_value_t = 100_000_000)]
        bytes: u64,
    },
    /// Take connections and hold them
    Hold {
        /// Where
        at: Place,
    },
    /// Connect and close, and print how often a second
    Connect {
        /// Where to
        to: Place,
        /// For how long
        #[command(flatten)]
        time: Time,
    },
    /// Open and close a descriptor that has nothing to do with networks, and print how often a second
    Close {
        /// For how long
        #[command(flatten)]
        time: Time,
    },
    /// Open flows as the lines of the input say: short N, or held N
    Flows {
        /// Where to
        to: Place,
    },
    /// Take connections at one place to another
    Relay {
        /// Where connections come
        at: Place,
        /// Where they go
        to: Place,
    },
}

/// How long it is to last.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Time {
    /// Seconds that count
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds before them
    #[arg(long, default_value_t = 0.2)]
    warm_up: f64,
}

/// What a client is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// The server, as in 127.0.0.1:9000 or unix:/tmp/server
    to: Place,
    /// Bytes that are read, and written, at once
    #[arg(long, default_value_t = 1)]
    block: u32,
    /// What the bytes are
    #[arg(long, value_enum, default_value_t)]
    content: Content,
    /// For how long
    #[command(flatten)]
    time: Time,
    /// Seconds of silence before and after what counts, in which counters may be read
    #[arg(long, default_value_t = 0.0)]
    hold: f64,
}

impl Program {
    /// Runs it to its end.
    ///
    /// # Errors
    /// A connection that cannot be made, or breaks.
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
    /// Before what counts, and what counts.
    fn spans(&self) -> (Duration, Duration) {
        (Duration::from_secs_f64(self.warm_up), Duration::from_secs_f64(self.seconds))
    }
}

fn print(rate: f64) -> Result<()> {
    println!("{rate}");
    Ok(())
}
