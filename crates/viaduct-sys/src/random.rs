//! Random bytes from the kernel.

use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `out` with random bytes. Errors: the kernel provides no random bytes.
pub fn fill(out: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        match getrandom(&mut out[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(error) => {
                let why = io::Error::from(error);
                return Err(io::Error::other(format!(
                    "cannot get random bytes from the kernel: {why}"
                )));
            }
        }
    }
    Ok(())
}

/// Returns `N` random bytes. Errors: the kernel provides no random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_call_fills_the_whole_array_with_new_bytes() {
        let [one, other] = [(); 2].map(|()| super::random::<1_000>().unwrap());
        assert!(one != other && [one, other].iter().all(|bytes| bytes[968..] != [0; 32]));
    }
}
