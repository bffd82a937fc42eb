//! Has the library name no other library but libc, so that glibc's loader and musl's both take it.
//!
//! Rust's library for GNU systems names three. Of `libgcc_s.so.1` a copy that is linked in will do, and
//! `ld-linux`, which musl does not have, is there wherever glibc is. `libc.so.6` stays: for musl's loader
//! any name that begins with `libc.` is itself, and versions of symbols are nothing to it.

use std::path::PathBuf;
use std::{env, fs, io};

/// What the linker finds in place of what it is told to link: a script for each name.
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
