//! State that the library has received from the master: written once, read by all threads.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering};

use viaduct_wrap::wire::{Answer, Request, Welcome};
use viaduct_wrap::{Rules, SECRET, Secret};

use crate::ask;

/// Maximum length of the socket name and of each environment entry, in bytes.
const MAX_TEXT: usize = 1024;
/// Prefix of the environment entry that loads the library.
pub(crate) const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Prefix of the environment entry that names the library's master.
pub(crate) const WRAP: &[u8] = b"VIADUCT_WRAP=";

pub(crate) struct State {
    /// Configuration that the master has announced, such as its rules and rendezvous addresses.
    pub(crate) welcome: Welcome,
    /// Word that exempts a call from seccomp's report.
    pub(crate) word: u64,
    /// Authenticates requests of this program to the master.
    pub(crate) secret: Secret,
    /// Name of the master's socket.
    name: Text,
    /// Environment entries that load the library into programs that this program starts.
    entries: [Text; 2],
}

#[derive(Clone, Copy)]
struct Text {
    bytes: [u8; MAX_TEXT],
    length: usize,
}

const UNINITIALIZED: u8 = 0;
const INITIALIZING: u8 = 1;
const READY: u8 = 2;
/// No master wraps this program.
const NOT_WRAPPED: u8 = 3;
/// A master wraps this program, but cannot be reached.
const UNREACHABLE: u8 = 4;

struct Cell(UnsafeCell<State>);

// SAFETY: the state is written only by the thread that has set `STAGE` to INITIALIZING, and read
// only at a later stage.
unsafe impl Sync for Cell {}

const NOTHING: Text = Text { bytes: [0; MAX_TEXT], length: 0 };
static STAGE: AtomicU8 = AtomicU8::new(UNINITIALIZED);
static STATE: Cell = Cell(UnsafeCell::new(State {
    welcome: Welcome {
        rules: Rules::EVERYTHING,
        rendezvous: [None; 2],
        offload: None,
        reports: false,
        has_seccomp: false,
    },
    word: 0,
    secret: Secret::new([0; SECRET]),
    name: NOTHING,
    entries: [NOTHING; 2],
}));

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Initialises the state before `main`. A call from an earlier constructor also initialises it.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        state();
    }
    begin
};

#[derive(Clone, Copy)]
pub(crate) enum Wrapped {
    No,
    By(&'static State),
    /// Wrapped by a master that cannot be reached: no flow may begin.
    Unreachable,
}

/// Returns the state. The first call requests it from the master.
pub(crate) fn state() -> Wrapped {
    if STAGE.load(Ordering::Acquire) == UNINITIALIZED {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if STAGE.compare_exchange(UNINITIALIZED, INITIALIZING, success, failure).is_ok() {
            // SAFETY: no other thread reads or writes the state at this stage.
            let stage = unsafe { (*STATE.0.get()).begin() };
            STAGE.store(stage, Ordering::Release);
        }
    }
    match STAGE.load(Ordering::Acquire) {
        // SAFETY: the state is no longer written at this stage.
        READY => Wrapped::By(unsafe { &*STATE.0.get() }),
        NOT_WRAPPED => Wrapped::No,
        // Includes the case in which another thread is still asking the master, before `main`.
        _ => Wrapped::Unreachable,
    }
}

impl State {
    /// Requests the state from the master. Returns the next stage.
    fn begin(&mut self) -> u8 {
        let Some(wrap) = find(own_environment(), WRAP) else { return NOT_WRAPPED };
        let value = wrap.strip_prefix(WRAP).unwrap_or_default();
        let mut parts = value.split(|&byte| byte == b';');
        let (Some(name), Some(word), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return UNREACHABLE;
        };
        let word = std::str::from_utf8(word).ok();
        let word = word.and_then(|word| u64::from_str_radix(word, 16).ok());
        let (Some(word), Some(secret)) = (word, Secret::parse(secret)) else { return UNREACHABLE };
        (self.word, self.secret) = (word, secret);
        let preload = find(own_environment(), PRELOAD).unwrap_or_default();
        let known =
            self.name.set(name) && self.entries[0].set(preload) && self.entries[1].set(wrap);
        if !known {
            return UNREACHABLE;
        }
        match ask::ask(self, &Request::Hello, None) {
            Ok(Answer::Welcome(welcome)) => {
                self.welcome = welcome;
                READY
            }
            _ => UNREACHABLE,
        }
    }

    /// Name of the master's socket.
    pub(crate) fn name(&self) -> &[u8] {
        self.name.get()
    }

    /// Returns the environment entries that name this library and its master.
    pub(crate) fn entries(&self) -> [&[u8]; 2] {
        [self.entries[0].get(), self.entries[1].get()]
    }
}

impl Text {
    /// Sets the text. Returns false if it is too long.
    fn set(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(..bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.length = bytes.len();
        true
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Returns the current environment of this program.
pub(crate) fn own_environment() -> *const *const c_char {
    // SAFETY: libc owns `environ`. A program that changes it in another thread at the same time has
    // a data race even without this library.
    unsafe { environ }
}

/// Returns the entry that begins with `name`.
pub(crate) fn find<'a>(environment: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    entries(environment).find(|entry| entry.starts_with(name))
}

pub(crate) fn entries<'a>(environment: *const *const c_char) -> impl Iterator<Item = &'a [u8]> {
    let mut at = environment;
    std::iter::from_fn(move || {
        // SAFETY: an environment is null, or a list of strings that ends with a null pointer.
        let entry = unsafe { at.as_ref() }.filter(|entry| !entry.is_null())?;
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(*entry) };
        // SAFETY: the end has not been reached.
        at = unsafe { at.add(1) };
        Some(text.to_bytes())
    })
}
