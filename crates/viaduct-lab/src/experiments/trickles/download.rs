//! Downloads by unmodified curl, and the arrival times of their bytes.

use std::io::Read as _;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, poll};

use crate::experiments::prelude::*;

/// Time without a byte after which the TCP client reconnects. curl itself would wait for seven
/// seconds, because it averages the speed over several seconds.
const SILENCE: Duration = Duration::from_secs(1);

/// Result of reading a program's output: the output ended, or nothing arrived for [`SILENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Ended,
    Silent,
}

/// Transport of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// `viaduct run +trickles`.
    Trickles,
    /// The kernel's TCP; the client resumes from where the transfer broke.
    Tcp,
}

impl By {
    pub(super) fn name(self) -> &'static str {
        match self {
            By::Trickles => "Trickles",
            By::Tcp => "TCP",
        }
    }
}

/// Parameters of a download.
#[derive(Clone, Copy, Debug)]
pub(super) struct Download<'a> {
    pub(super) host: &'a Host,
    pub(super) by: By,
    /// Delay before the TCP client retries.
    pub(super) pause: Duration,
    pub(super) url: &'a str,
    /// Expected content of the file.
    pub(super) content: &'a [u8],
    /// Directory for the files of a `viaduct run`.
    pub(super) run_dir: &'a Path,
    /// Time limit.
    pub(super) limit: Duration,
}

/// Received bytes and their times.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// Points: seconds since the beginning, and the bytes received until then.
    pub(super) trace: Vec<(f64, u64)>,
    /// Number of programs that failed, or were killed because nothing arrived for [`SILENCE`].
    pub(super) errors: u32,
    /// True if all bytes arrived unaltered, and the program that received the last ones succeeded.
    pub(super) whole: bool,
}

impl Download<'_> {
    /// Runs the download to its end; times count from `begun`.
    pub(super) fn run(&self, begun: Instant) -> Result<Arrivals> {
        let mut found = Arrivals::default();
        loop {
            stop::check()?;
            let well = self.part(begun, &mut found)?;
            found.errors += u32::from(!well);
            let have = found.bytes();
            found.whole = well && have == self.content.len() as u64;
            let over = found.whole || have == self.content.len() as u64;
            // A client of Trickles does not need to retry.
            if over || self.by == By::Trickles || begun.elapsed() > self.limit {
                return Ok(found);
            }
            thread::sleep(self.pause);
        }
    }

    /// Runs curl once, from the first missing byte; returns whether it succeeded.
    fn part(&self, begun: Instant, found: &mut Arrivals) -> Result<bool> {
        let have = found.bytes();
        let left = self.limit.saturating_sub(begun.elapsed()).as_secs_f64().max(0.1);
        let mut command = match self.by {
            By::Tcp => self.host.command("curl"),
            By::Trickles => {
                let mut command = self.host.command(&binary()?.to_string_lossy());
                command.args(["run", "+trickles:way=tcp", "--run-dir"]).arg(self.run_dir);
                command.args(["--", "curl"]);
                command
            }
        };
        command.args(["-sS", "--fail", "--no-buffer", "--noproxy", "*"]);
        command.args(["--max-time", &format!("{left:.1}"), "-C", &have.to_string()]);
        if self.by == By::Tcp {
            command.args(["--connect-timeout", "1"]);
        }
        let log = self.run_dir.join(format!("curl-{}.log", self.by.name()));
        let said = File::options().create(true).append(true).open(&log)?;
        command.arg(self.url).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
        let mut process = self.host.spawn(command)?;
        match self.read(&mut process, begun, found)? {
            // A silent connection is abandoned: dropping the process ends it.
            Read::Silent => Ok(false),
            Read::Ended => {
                let well = process.wait()?.success();
                if !well && self.by == By::Trickles {
                    let said = fs::read_to_string(log)?;
                    eprintln!("a client ended after {} bytes: {}", found.bytes(), said.trim_end());
                }
                Ok(well)
            }
        }
    }

    fn read(&self, process: &mut Process, begun: Instant, found: &mut Arrivals) -> Result<Read> {
        let mut stdout = process.stdout.take().context("curl's standard output is not piped")?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let silent = rustix::event::Timespec::try_from(SILENCE)?;
            let mut ready = [PollFd::new(&stdout, PollFlags::IN)];
            if self.by == By::Tcp && poll(&mut ready, Some(&silent))? == 0 {
                return Ok(Read::Silent);
            }
            let read = stdout.read(&mut buffer)?;
            if read == 0 {
                return Ok(Read::Ended);
            }
            let have = found.bytes();
            let expected = self.content.get(have as usize..have as usize + read);
            ensure!(expected == Some(&buffer[..read]), "wrong bytes at offset {have}");
            found.trace.push((begun.elapsed().as_secs_f64(), have + read as u64));
        }
    }
}

impl Arrivals {
    /// Returns the bytes received in total.
    pub(super) fn bytes(&self) -> u64 {
        self.trace.last().map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the longest time without a byte, in seconds, of those that ended after `from`.
    pub(super) fn gap(&self, from: f64) -> f64 {
        let pairs = self.trace.windows(2).filter(|pair| pair[1].0 > from);
        pairs.map(|pair| pair[1].0 - pair[0].0).fold(0.0, f64::max)
    }

    /// Returns the bytes received by this time.
    pub(super) fn by(&self, time: f64) -> u64 {
        let come = self.trace.iter().take_while(|(at, _)| *at <= time);
        come.last().map_or(0, |(_, bytes)| *bytes)
    }

    /// Returns the arrival time of the last byte, in seconds.
    pub(super) fn end(&self) -> f64 {
        self.trace.last().map_or(f64::NAN, |(at, _)| *at)
    }
}
