//! Links the library so that its only dependency is libc, and the loaders of both glibc and musl
//! can load it.
//!
//! Rust's standard library for GNU targets depends on three libraries. `libgcc_s.so.1` is replaced
//! by a static copy. The dependency on `ld-linux`, which musl does not have, is left out: a program
//! that uses glibc has loaded glibc's loader anyway. `libc.so.6` stays: musl's loader treats any
//! name that begins with `libc.` as its own, and ignores symbol versions.

use std::path::PathBuf;
use std::{env, fs, io};

/// Linker scripts that replace the libraries of these names.
const INSTEAD: [(&str, &str); 2] = [
    ("libgcc_s.so", "INPUT(-lgcc_eh -lgcc)\n"),
    ("libc.so", "INPUT(-l:libc.so.6 -l:libc_nonshared.a)\n"),
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
        for (name, script) in INSTEAD {
            fs::write(out.join(name), script)?;
        }
        println!("cargo::rustc-link-search=native={}", out.display());
    }
    Ok(())
}
