//! The wrapper: the process that its parent sees as the program. It forwards signals, stops when
//! the program stops, and ends with the program's exit status or signal.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTSTP};
use viaduct_sys::bpf::Group;
use viaduct_sys::process::signals::{self, BlockedSignals, ReceivedSignal};
use viaduct_sys::process::supervise::{self, StateChange};
use viaduct_sys::process::{inherited_fds, inherited_state};
use viaduct_sys::socket::seqpacket;

use crate::stdout::print_error;

/// Messages of the master to the wrapper: one line of JSON each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The program has started with this process ID.
    Started(u32),
    /// The program's state has changed.
    Changed(StateChange),
    /// The program cannot be started: exit status, and reason.
    Failed(u8, String),
    /// A line for the user.
    Print(String),
}

/// Starts the master, which starts the program, and waits for the program's end. `arguments` is the
/// command line.
pub fn run(arguments: Vec<OsString>) -> Result<ExitCode> {
    let signals = BlockedSignals::block().context("cannot block signals")?;
    // If the master is killed, the program becomes a child of this process.
    supervise::adopt_orphans()?;
    // Inherited descriptors other than 0 to 2 are for the program, which gets them through the
    // master. This process closes its copies when the master has started, so that the far end of a
    // pipe or socket notices when the program closes its own copy.
    let left = inherited_fds::take_rest().context("cannot list the open descriptors")?;
    let (ours, theirs) = UnixStream::pair()?;
    let (_reader, store) = seqpacket::pair()?;
    let mut arguments = arguments.into_iter();
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments.by_ref().nth(1));
    command.arg(format!("--master-fd={}", theirs.as_raw_fd()));
    command.arg(format!("--store-fd={}", store.as_raw_fd())).args(arguments);
    inherited_fds::leave_open(&mut command, &[theirs.as_fd(), store.as_fd()]);
    signals.release(&mut command);
    inherited_state::restore_in(&mut command);
    let master = command.spawn().context("cannot start the master")?.id();
    drop((theirs, store, left));
    supervise::detach_stdio().context("cannot detach from standard input and output")?;
    let mut wrapper = Wrapper { signals, master, program: None, early: Vec::new() };
    wrapper.wait(ours)
}

struct Wrapper {
    signals: BlockedSignals,
    master: u32,
    program: Option<u32>,
    /// Signals that arrived before the program's process ID was known.
    early: Vec<ReceivedSignal>,
}

impl Wrapper {
    fn wait(&mut self, master: UnixStream) -> Result<ExitCode> {
        let mut lines = BufReader::new(master);
        let mut line = String::new();
        loop {
            // Buffered lines are handled before the next wait.
            if lines.buffer().is_empty() && !self.wait_for(lines.get_ref())? {
                continue;
            }
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                return self.wait_alone();
            }
            if let Some(code) = self.handle(&line)? {
                return Ok(code);
            }
        }
    }

    /// Waits for a message of the master, and forwards signals in the meantime. Returns false if
    /// the caller must wait again.
    fn wait_for(&mut self, master: &UnixStream) -> Result<bool> {
        let mut both =
            [PollFd::new(master, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        match poll(&mut both, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let [spoken, signalled] = both.map(|fd| !fd.revents().is_empty());
        if signalled {
            let came = self.signals.read()?;
            match self.program {
                Some(_) => self.forward(came),
                // The terminal stops the entire process group, so this process stops even before
                // the program has started.
                None if came.signal == SIGTSTP && !came.sent => signals::stop(SIGTSTP),
                None => self.early.push(came),
            }
        }
        Ok(spoken)
    }

    /// Forwards a signal to the program if a process has sent it. Signals of the terminal are not
    /// forwarded, because the program also gets them. The exception is SIGHUP when the terminal
    /// closes, which only the session leader gets. SIGCONT is forwarded unless its sender has also
    /// continued the program. SIGCHLD is never forwarded, because it concerns a child of this
    /// process.
    fn forward(&self, ReceivedSignal { signal, sent }: ReceivedSignal) {
        let ours = signal == SIGCHLD;
        let alone = signal == SIGCONT || signal == SIGHUP && supervise::leads_session();
        if let (Some(program), true, false) = (self.program, sent || alone, ours)
            && !(signal == SIGCONT && self.is_woken(program))
        {
            // The send fails if the program has just ended.
            let _ = signals::send(program, signal);
        }
    }

    /// Returns whether the sender of SIGCONT has also continued the program, as a shell continues
    /// an entire process group. A second SIGCONT could undo a later stop by the terminal.
    fn is_woken(&self, program: u32) -> bool {
        let stopped_since = self.signals.is_pending(SIGTSTP);
        supervise::is_in_own_group(program) && (stopped_since || !supervise::is_stopped(program))
    }

    fn handle(&mut self, line: &str) -> Result<Option<ExitCode>> {
        let message: Message = serde_json::from_str(line)
            .with_context(|| format!("the master has sent an invalid message: {line:?}"))?;
        match message {
            Message::Started(pid) => {
                self.program = Some(pid);
                std::mem::take(&mut self.early).into_iter().for_each(|came| self.forward(came));
            }
            Message::Changed(change) => return Ok(end(change)),
            Message::Failed(code, why) => {
                print(&why);
                return Ok(Some(ExitCode::from(code)));
            }
            Message::Print(text) => print(&text),
        }
        Ok(None)
    }

    /// Waits for the program after the master has ended: the master's flows are reset, and the
    /// program becomes a child of this process.
    fn wait_alone(&self) -> Result<ExitCode> {
        // When a process ends, the kernel first closes its descriptors and then reparents its
        // children. So the end of the master's stream comes too early: this process has adopted the
        // program only when the master itself has ended.
        let ended = loop {
            match supervise::wait(self.master).context("cannot wait for the master")? {
                StateChange::Stopped(_) | StateChange::Continued => {}
                ended => break ended,
            }
        };
        let Some(program) = self.program else {
            // A signal that the terminal sent to the whole group is also meant for this process.
            if let StateChange::Killed(signal @ (SIGINT | SIGQUIT | SIGHUP)) = ended {
                signals::end_by(signal);
            }
            bail!("the master ended before it could start the program");
        };
        print_error("the master has ended: flows that it carried are reset");
        Group::thaw_after(self.master);
        loop {
            while let Some(change) =
                supervise::changed(program).context("cannot wait for the program")?
            {
                if let Some(code) = end(change) {
                    return Ok(code);
                }
            }
            // A change of the program's state also raises SIGCHLD, which ends this read.
            self.forward(self.signals.read()?);
        }
    }
}

/// Returns the exit status if the program has exited. If a signal has stopped or killed the
/// program, stops or ends this process with the same signal.
fn end(change: StateChange) -> Option<ExitCode> {
    match change {
        StateChange::Stopped(signal) => signals::stop(signal),
        StateChange::Continued => {}
        StateChange::Exited(status) => return Some(ExitCode::from(status as u8)),
        StateChange::Killed(signal) => signals::end_by(signal),
    }
    None
}

fn print(text: &str) {
    print_error(&text.replace('\n', " "));
}
