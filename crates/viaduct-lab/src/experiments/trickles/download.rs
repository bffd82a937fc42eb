//! Downloads by curl, which knows nothing of Trickles, and when their bytes came.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::stop;
use crate::topology::Host;

/// After so long without a byte TCP's client connects anew: curl itself would wait for seven seconds, as it
/// looks at the mean of some.
const SILENCE: Duration = Duration::from_secs(1);

/// How a program's output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Ended,
    Silent,
}

/// Whose transport it goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// `viaduct run +trickles`.
    Trickles,
    /// The kernel's, tried again from where it broke.
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

/// What is downloaded, from where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Download<'a> {
    pub(super) host: &'a Host,
    pub(super) by: By,
    /// How long TCP's client waits before it tries again.
    pub(super) pause: Duration,
    pub(super) url: &'a str,
    /// The file as it should come.
    pub(super) content: &'a [u8],
    /// Where a run of Viaduct's may leave its files.
    pub(super) run_dir: &'a Path,
    /// Longest that it may take.
    pub(super) limit: Duration,
}

/// What came, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// Seconds since the beginning, and bytes that had come by then.
    pub(super) trace: Vec<(f64, u64)>,
    /// Programs that ended otherwise than well.
    pub(super) errors: u32,
    /// Whether all came, byte for byte.
    pub(super) whole: bool,
}

impl Download<'_> {
    /// Runs it to its end; its times count from `begun`.
    pub(super) fn run(&self, begun: Instant) -> Result<Arrivals> {
        let mut found = Arrivals::default();
        loop {
            stop::check()?;
            let well = self.part(begun, &mut found)?;
            found.errors += u32::from(!well);
            let have = found.bytes();
            found.whole = well && have == self.content.len() as u64;
            let over = found.whole || have == self.content.len() as u64;
            // A client of Trickles has nothing to try again.
            if over || self.by == By::Trickles || begun.elapsed() > self.limit {
                return Ok(found);
            }
            thread::sleep(self.pause);
        }
    }

    /// One run of curl, from what has come on; whether it ended well.
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
            // A connection on which nothing comes is given up: it ends with the value.
            Read::Silent => Ok(false),
            Read::Ended => {
                let well = process.wait()?.success();
                if !well && self.by == By::Trickles {
                    let said = std::fs::read_to_string(log)?;
                    eprintln!("a client ended after {} bytes: {}", found.bytes(), said.trim_end());
                }
                Ok(well)
            }
        }
    }

    fn read(&self, process: &mut Process, begun: Instant, found: &mut Arrivals) -> Result<Read> {
        let mut stdout = process.stdout.take().context("curl has an output")?;
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
            ensure!(expected == Some(&buffer[..read]), "other bytes than were served at {have}");
            found.trace.push((begun.elapsed().as_secs_f64(), have + read as u64));
        }
    }
}

impl Arrivals {
    /// All that have come.
    pub(super) fn bytes(&self) -> u64 {
        self.trace.last().map_or(0, |(_, bytes)| *bytes)
    }

    /// Seconds of the longest time without a byte that did not end before `from`.
    pub(super) fn gap(&self, from: f64) -> f64 {
        let pairs = self.trace.windows(2).filter(|pair| pair[1].0 > from);
        pairs.map(|pair| pair[1].0 - pair[0].0).fold(0.0, f64::max)
    }

    /// Bytes that had come by this time.
    pub(super) fn by(&self, time: f64) -> u64 {
        let come = self.trace.iter().take_while(|(at, _)| *at <= time);
        come.last().map_or(0, |(_, bytes)| *bytes)
    }

    /// When the last came, in seconds.
    pub(super) fn end(&self) -> f64 {
        self.trace.last().map_or(f64::NAN, |(at, _)| *at)
    }
}
