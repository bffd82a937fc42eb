//! `--via preload`, the interposer of the TESLA paper: a library in the program, between the
//! program and libc.
//!
//! The library itself selects the calls that connect directly, and sends every other call to the
//! master on a new connection. The library marks its system calls with a number, the *word*, in an
//! unused argument. Seccomp reports calls without the word, from static programs, other runtimes or
//! libc itself, and the rules are applied to them here, so nothing bypasses the chain.
//!
//! ```text
//!   program ──connect──▶ library ── goes direct, with the word ──▶ kernel
//!      │                    └────── a flow ──▶ master: Interposition::begin
//!      └── system call without the word ──▶ super::seccomp: Interposition::begin
//! ```

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use tracing::warn;
use viaduct_proto::wrap::wire::{Answer, REQUEST, Request, Welcome};
use viaduct_proto::wrap::{Errno, SECRET, Secret};
use viaduct_sys::random::random;
use viaduct_sys::seccomp::SeccompError;
use viaduct_sys::socket::seqpacket;

use super::pending::Interposition;
use super::seccomp::{self, send_timeout};
use super::{admission, control_socket};
use crate::master::send_answer;

/// File name of the library; the same file works with the loaders of glibc and musl.
const LIBRARY: &str = "libviaduct_preload.so";
/// Environment variable with the name of the master's socket, the word of the library's calls and
/// the run's secret: `NAME;WORD;SECRET`, where the last two are in hexadecimal digits.
const WRAP: &str = "VIADUCT_WRAP";

/// Control socket for the libraries of programs.
#[derive(Debug)]
pub struct PreloadServer {
    /// State from which requests are answered.
    pub interposition: Arc<Interposition>,
    library: PathBuf,
    name: String,
    word: u64,
    secret: Secret,
}

/// Starts to listen for the libraries of programs.
pub fn start(interposition: Arc<Interposition>) -> Result<PreloadServer> {
    let library = find_library()?;
    let random = u128::from_ne_bytes(random()?);
    let name = format!("@viaduct-{:x}", random >> 64);
    let listener = seqpacket::listen(&name).context("cannot listen for programs")?;
    let (serving, secret) = (interposition.clone(), admission::secret()?);
    let serve =
        move || control_socket::serve(&listener, |socket| answer(socket, &secret, &serving));
    thread::Builder::new().name("libraries".to_owned()).spawn(serve)?;
    Ok(PreloadServer { interposition, library, name, word: random as u64, secret })
}

impl PreloadServer {
    /// Starts `command` with the library preloaded, and returns its process ID. If seccomp cannot
    /// be used, the start fails with `--strict`; otherwise the command that `fresh` builds is
    /// started instead, without seccomp.
    pub fn start(&self, mut command: Command, fresh: impl Fn() -> Command) -> Result<u32> {
        self.set_environment(&mut command);
        match seccomp::start(&self.interposition, command, Some(self.word)) {
            Ok(pid) => Ok(pid),
            Err(SeccompError::Spawn(error)) => Err(error.into()),
            Err(why) if self.interposition.rules.strict => {
                Err(why).context("--via preload --strict needs seccomp for static programs")
            }
            Err(why) => {
                warn!("static programs can bypass the library: {why}");
                self.interposition.set_no_seccomp();
                let mut command = fresh();
                self.set_environment(&mut command);
                Ok(command.spawn()?.id())
            }
        }
    }

    fn set_environment(&self, command: &mut Command) {
        let mut preload = OsString::from(&self.library);
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let wrap = format!("{};{:x};{}", self.name, self.word, self.secret.digits());
        command.env("LD_PRELOAD", preload).env(WRAP, wrap);
    }
}

/// Finds the library, in the directory of this program or where packages install the library.
fn find_library() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find the path of this program")?;
    let beside = program.parent().context("the path of this program has no directory")?;
    let places = [beside.join(LIBRARY), beside.join("../lib/viaduct").join(LIBRARY)];
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(place.canonicalize()?),
        None => {
            bail!("{LIBRARY} is neither at {} nor at {}", places[0].display(), places[1].display())
        }
    }
}

/// Answers a request. Returns the socket if no request has arrived yet.
fn answer(socket: OwnedFd, secret: &Secret, interposition: &Arc<Interposition>) -> Option<OwnedFd> {
    let mut bytes = [0; SECRET + REQUEST];
    let (length, beside) = match seqpacket::receive(&socket, &mut bytes) {
        Ok(received) => received,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(socket),
        Err(_) => return None,
    };
    match Request::parse(secret.open(&bytes[..length])?)? {
        Request::Hello => {
            let rendezvous = [true, false].map(|v4| interposition.rendezvous.at(v4));
            let Interposition { rules, offload, .. } = **interposition;
            let (reports, has_seccomp) =
                (interposition.report.is_some(), interposition.has_seccomp());
            send_answer(
                &socket,
                &Answer::Welcome(Welcome { rules, rendezvous, offload, reports, has_seccomp }),
            );
        }
        Request::Names { cookie } => {
            let [peer, own] = interposition.addresses_of(cookie);
            send_answer(&socket, &Answer::Named { peer, own });
        }
        Request::Error { cookie } => {
            let errno = interposition.take_refusal(cookie).unwrap_or(Errno::NONE);
            send_answer(&socket, &Answer::Done(errno));
        }
        Request::Refused { call, datagrams, to, errno } => {
            interposition.report_refused(call, datagrams, to, errno);
        }
        Request::Connect { to, wait } => {
            let caller = Arc::new(socket);
            // If the socket is missing, this process may be out of descriptors.
            let Some(program) = beside else {
                send_answer(&caller, &Answer::Done(Errno::NFILE));
                return None;
            };
            if !admission::is_tcp(&program) {
                send_answer(&caller, &Answer::Done(Errno::PROTONOSUPPORT));
                return None;
            }
            let later = caller.clone();
            let later = wait.then(|| {
                let waits = Some(later.clone());
                let mut answer = super::pending::Answer::new(send_timeout(&program), move |done| {
                    // The duplicate of the program's socket must be closed before the program gets
                    // the answer.
                    let errno = done.map(drop).err().unwrap_or(Errno::NONE);
                    send_answer(&later, &Answer::Done(errno));
                });
                answer.caller = waits;
                answer
            });
            if let Some(errno) = interposition.begin(program, to, later) {
                send_answer(&caller, &Answer::Done(errno));
            }
        }
    }
    None
}
