//! Pseudoterminal with a program, and its screen.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::until;

/// Escape sequences of `viaduct top`: at the start of a frame, at its end, and at the end of
/// a line.
const HOME: &str = "\x1b[H";
const WIPE_BELOW: &str = "\x1b[J";
const WIPE_LINE: &str = "\x1b[K";

/// Program on a terminal. It is killed on drop.
pub(crate) struct Pty {
    child: Child,
    master: File,
    /// Kept open, so that the terminal outlives the program.
    terminal: OwnedFd,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    /// Runs `command` on a terminal of this size.
    pub(crate) fn new(mut command: Command, columns: u16, rows: u16) -> Pty {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let terminal = ioctl_tiocgptpeer(&master, flags).unwrap();
        tcsetwinsize(&master, size(columns, rows)).unwrap();
        let end = || terminal.try_clone().unwrap();
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(master);
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, sink) = (master.try_clone().unwrap(), Arc::clone(&output));
        // The thread ends with the last descriptor of the terminal.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Pty { child, master, terminal, output }
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the terminal.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.master, size(columns, rows)).unwrap();
    }

    /// All output so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Last complete frame.
    pub(crate) fn screen(&self) -> String {
        let output = self.output();
        let Some((before, _)) = output.rsplit_once(WIPE_BELOW) else { return String::new() };
        let frame = before.rsplit_once(HOME).map_or("", |(_, frame)| frame);
        frame.replace(WIPE_LINE, "").replace('\r', "")
    }

    /// Waits until the screen meets the condition; panics after 20 s.
    pub(crate) fn wait_for(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                last = self.screen();
                is(&last)
            });
        }));
        assert!(seen.is_ok(), "{what}; the screen is:\n{last}");
        last
    }

    /// Returns whether keys are echoed and read in lines, as before the program.
    pub(crate) fn is_restored(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits for the end of the program.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the end of the program", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
