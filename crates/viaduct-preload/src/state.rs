//! What is known of the master: written once, read by all.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering};

use viaduct_proto::wrap::wire::{Answer, Request, Welcome};
use viaduct_proto::wrap::{Rules, SECRET, Secret};

use crate::ask;

/// Bytes of a name or of an entry of the environment that are remembered.
const ROOM: usize = 1024;
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const WRAP: &[u8] = b"VIADUCT_WRAP=";

/// What a program's library knows.
pub(crate) struct State {
    /// Which calls are the master's, and where flows meet.
    pub(crate) welcome: Welcome,
    /// Lets a call pass that seccomp would tell of.
    pub(crate) word: u64,
    /// Has the master hear what this program asks.
    pub(crate) secret: Secret,
    /// Where the master listens.
    name: Text,
    /// Entries of the environment that put us into what this program starts.
    entries: [Text; 2],
}

#[derive(Clone, Copy)]
struct Text {
    bytes: [u8; ROOM],
    length: usize,
}

const UNBORN: u8 = 0;
const BEING_BORN: u8 = 1;
const READY: u8 = 2;
/// Nobody wraps this program.
const ALONE: u8 = 3;
/// Somebody does, but cannot be asked.
const DEAF: u8 = 4;

struct Cell(UnsafeCell<State>);

// SAFETY: it is written only by the one that has moved `STAGE` to BEING_BORN, and read only when it is
// beyond.
unsafe impl Sync for Cell {}

const NOTHING: Text = Text { bytes: [0; ROOM], length: 0 };
static STAGE: AtomicU8 = AtomicU8::new(UNBORN);
static STATE: Cell = Cell(UnsafeCell::new(State {
    welcome: Welcome {
        rules: Rules::EVERYTHING,
        meeting: [None; 2],
        offload: None,
        tells: false,
        heard: false,
    },
    word: 0,
    secret: Secret::new([0; SECRET]),
    name: NOTHING,
    entries: [NOTHING; 2],
}));

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Before the program begins, or earlier, when another constructor calls.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        state();
    }
    begin
};

/// Who wraps this program.
#[derive(Clone, Copy)]
pub(crate) enum Wrapped {
    /// Nobody.
    No,
    /// A master, of which this is known.
    By(&'static State),
    /// A master that cannot be asked: no flow may begin.
    Deaf,
}

/// What is known; asked for, if nobody has.
pub(crate) fn state() -> Wrapped {
    if STAGE.load(Ordering::Acquire) == UNBORN {
        let (unborn, born) = (Ordering::AcqRel, Ordering::Acquire);
        if STAGE.compare_exchange(UNBORN, BEING_BORN, unborn, born).is_ok() {
            // SAFETY: nobody else reads or writes it at this stage.
            let stage = unsafe { (*STATE.0.get()).begin() };
            STAGE.store(stage, Ordering::Release);
        }
    }
    match STAGE.load(Ordering::Acquire) {
        // SAFETY: it is written no more.
        READY => Wrapped::By(unsafe { &*STATE.0.get() }),
        ALONE => Wrapped::No,
        // Or another thread is just asking, before main.
        _ => Wrapped::Deaf,
    }
}

impl State {
    /// The stage that it comes to.
    fn begin(&mut self) -> u8 {
        let Some(wrap) = find(own_environment(), WRAP) else { return ALONE };
        let value = wrap.strip_prefix(WRAP).unwrap_or_default();
        let mut parts = value.split(|&byte| byte == b';');
        let (Some(name), Some(word), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return DEAF;
        };
        let word = std::str::from_utf8(word).ok();
        let word = word.and_then(|word| u64::from_str_radix(word, 16).ok());
        let (Some(word), Some(secret)) = (word, Secret::parse(secret)) else { return DEAF };
        (self.word, self.secret) = (word, secret);
        let preload = find(own_environment(), PRELOAD).unwrap_or_default();
        let known =
            self.name.set(name) && self.entries[0].set(preload) && self.entries[1].set(wrap);
        if !known {
            return DEAF;
        }
        match ask::ask(self, &Request::Hello, None) {
            Ok(Answer::Welcome(welcome)) => {
                self.welcome = welcome;
                READY
            }
            _ => DEAF,
        }
    }

    /// Where the master listens.
    pub(crate) fn name(&self) -> &[u8] {
        self.name.get()
    }

    /// The entry of the environment that names this library, and the one that names its master.
    pub(crate) fn entries(&self) -> [&[u8]; 2] {
        [self.entries[0].get(), self.entries[1].get()]
    }
}

impl Text {
    /// Whether there was room.
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

/// This program's environment as it is now.
pub(crate) fn own_environment() -> *const *const c_char {
    // SAFETY: libc keeps it; whoever changes it in another thread at this moment has lost already.
    unsafe { environ }
}

/// The entry that begins with `name`.
pub(crate) fn find<'a>(environment: *const *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    entries(environment).find(|entry| entry.starts_with(name))
}

/// The entries of an environment.
pub(crate) fn entries<'a>(environment: *const *const c_char) -> impl Iterator<Item = &'a [u8]> {
    let mut at = environment;
    std::iter::from_fn(move || {
        // SAFETY: an environment is a list of strings that ends with a null pointer; none is one too.
        let entry = unsafe { at.as_ref() }.filter(|entry| !entry.is_null())?;
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(*entry) };
        // SAFETY: the end has not been reached.
        at = unsafe { at.add(1) };
        Some(text.to_bytes())
    })
}
