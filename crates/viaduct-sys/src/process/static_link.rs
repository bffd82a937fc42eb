//! Host names in a statically linked program.
//!
//! glibc looks names up by the services that `/etc/nsswitch.conf` lists, and loads the services
//! that it does not contain. A static program would load them, and with them the machine's own
//! glibc, whose version may differ from that of the glibc in the program: such a look-up may crash
//! the process.
#![allow(unsafe_code)]

/// Restricts look-ups of host names to `/etc/hosts` and DNS if this program is linked statically;
/// both services are part of the program. Must be called before the first look-up.
pub fn restrict_host_lookups() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        use std::ffi::{c_char, c_int};

        unsafe extern "C" {
            // Declared in `nss.h`.
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        // SAFETY: both arguments are C strings, which the function copies.
        let done = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
        debug_assert_eq!(done, 0, "the database `hosts` exists");
    }
}
