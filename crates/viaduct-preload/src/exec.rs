//! The functions of libc that start programs. The new programs are wrapped as well, even if their
//! environment was cleared. Programs that this library misses, for example after `clearenv` and
//! `execl`, are still captured by seccomp.

use std::ffi::{c_char, c_int, c_void};

use crate::raw::{self, failed, returned};
use crate::real::real;
use crate::state::{PRELOAD, State, WRAP, Wrapped, entries, find, own_environment, state};

type Strings = *const *const c_char;

/// `execve(2)`.
///
/// # Safety
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    with_entries(envp, |envp| {
        let arguments = [path as usize, argv as usize, envp as usize, 0, 0, 0];
        // SAFETY: the caller guarantees valid arguments.
        returned(unsafe { raw::call(libc::SYS_execve, arguments) }) as c_int
    })
}

/// `execv(3)`.
///
/// # Safety
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { execve(path, argv, own_environment()) }
}

/// `execvpe(3)`.
///
/// # Safety
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvpe(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
) -> c_int {
    with_entries(
        envp,
        |envp| real!(c"execvpe" as fn(*const c_char, Strings, Strings) -> c_int; file, argv, envp),
    )
}

/// `execvp(3)`.
///
/// # Safety
/// As for libc's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller guarantees valid arguments.
    unsafe { execvpe(file, argv, own_environment()) }
}

/// Defines `posix_spawn(3)` or `posix_spawnp(3)`, which searches `PATH` for the file.
macro_rules! spawn {
    ($name:ident, $real:literal) => {
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As for libc's function.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            pid: *mut c_int,
            file: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: Strings,
            envp: Strings,
        ) -> c_int {
            with_entries(envp, |envp| {
                real!($real as fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings,
                    Strings) -> c_int; pid, file, actions, attributes, argv, envp)
            })
        }
    };
}

spawn!(posix_spawn, c"posix_spawn");
spawn!(posix_spawnp, c"posix_spawnp");

/// Calls `call` with `environment`, or with a copy to which our missing entries are added.
fn with_entries(environment: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    let Wrapped::By(state) = state() else { return call(environment) };
    let [preload, wrap] = state.entries();
    let library = preload.strip_prefix(PRELOAD).unwrap_or_default();
    let theirs = find(environment, PRELOAD);
    let has = theirs.is_some_and(|entry| entry[PRELOAD.len()..].starts_with(library));
    if has && find(environment, WRAP) == Some(wrap) {
        return call(environment);
    }
    let Some(copy) = Copy::of(state, environment, theirs.filter(|_| !has)) else {
        return failed(libc::ENOMEM);
    };
    call(copy.at.cast())
}

/// An environment in newly mapped pages: the child of a vfork must not change its parent's heap.
struct Copy {
    at: *mut u8,
    length: usize,
}

impl Copy {
    /// Copies `environment` and adds our entries. The libraries in `others`, an existing
    /// `LD_PRELOAD` entry, follow ours.
    fn of(state: &State, environment: Strings, others: Option<&[u8]>) -> Option<Copy> {
        let [preload, wrap] = state.entries();
        let others = others.map(|entry| &entry[PRELOAD.len()..]).unwrap_or_default();
        let pointers = entries(environment).count() + 3;
        let texts = preload.len() + 1 + others.len() + 1 + wrap.len() + 1;
        let copy = Copy::pages(pointers * size_of::<*const c_char>() + texts)?;
        let list: *mut *const c_char = copy.at.cast();
        // SAFETY: the pages have room for `pointers` pointers, and for the texts after them.
        unsafe {
            let mut text = list.add(pointers).cast::<u8>();
            let mut put = |parts: &[&[u8]]| {
                let entry = text;
                for part in parts {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), text, part.len());
                    text = text.add(part.len());
                }
                entry.cast::<c_char>().cast_const()
            };
            let separator: &[u8] = if others.is_empty() { b"" } else { b":" };
            let first = put(&[preload, separator, others, b"\0"]);
            let second = put(&[wrap, b"\0"]);
            let mut at = list;
            let kept = entries(environment)
                .filter(|entry| !entry.starts_with(PRELOAD) && !entry.starts_with(WRAP))
                .map(|entry| entry.as_ptr().cast());
            for pointer in kept.chain([first, second, std::ptr::null()]) {
                *at = pointer;
                at = at.add(1);
            }
        }
        Some(copy)
    }

    fn pages(length: usize) -> Option<Copy> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: new pages at an address that the kernel chooses.
        let at =
            unsafe { raw::call(libc::SYS_mmap, [0, length, protection, flags, usize::MAX, 0]) };
        (at > 0).then_some(Copy { at: at as *mut u8, length })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: the pages are ours, and are no longer used.
        unsafe { raw::call(libc::SYS_munmap, [self.at as usize, self.length, 0, 0, 0, 0]) };
    }
}
