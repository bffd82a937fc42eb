//! libc's own functions with the names that this library defines.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Function in the next library (`RTLD_NEXT`), looked up once, or twice by racing threads.
pub(crate) struct Real {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Real {
        Real { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the address of the function; null if no library has it.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Release);
        found
    }
}

/// Calls libc's own function of this name and type. Returns -1 and sets `ENOSYS` if libc lacks it.
macro_rules! real {
    ($name:literal as fn($($type:ty),*) -> $result:ty; $($argument:expr),*) => {{
        static REAL: crate::real::Real = crate::real::Real::new($name);
        let at = REAL.get();
        if at.is_null() {
            crate::raw::failed(libc::ENOSYS) as $result
        } else {
            // SAFETY: libc's function of this name has this type; the arguments are the
            // program's own.
            unsafe {
                let real: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(at);
                real($($argument),*)
            }
        }
    }};
}

pub(crate) use real;
