//! Memory of this process.
#![allow(unsafe_code)]

use std::fs;
use std::io;

/// Drops the pages of the program's code and constants from this process's memory. A page is mapped
/// again from the page cache on its next access, which takes some microseconds. Pages that only the
/// start needed, such as the `--help` texts, stay unmapped. Errors: `/proc` is not mounted.
pub fn drop_clean_pages() -> io::Result<()> {
    for pages in constant(&fs::read_to_string("/proc/self/smaps")?) {
        // SAFETY: these are whole pages of a file, mapped read-only, and the kernel reports that
        // none was ever modified. Each page is equal to the file's, and is read from the file
        // again.
        unsafe { libc::madvise(pages.start as *mut _, pages.len(), libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Returns the read-only file mappings in `smaps` that were never modified.
fn constant(smaps: &str) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut current) = (Vec::new(), None);
    for line in smaps.lines() {
        match line.split_once(':') {
            Some(("Anonymous", size)) if size.trim() == "0 kB" => found.extend(current.take()),
            Some((name, _)) if !name.contains(' ') => {}
            _ => current = read_only_file(line),
        }
    }
    found
}

/// Parses a line such as `55d0-55e0 r-xp 00000000 fe:00 1234  /usr/bin/viaduct`; `None` if it is
/// not a read-only mapping of a file.
fn read_only_file(line: &str) -> Option<std::ops::Range<usize>> {
    let mut words = line.split_whitespace();
    let ((start, end), rights) = (words.next()?.split_once('-')?, words.next()?);
    let is_file = words.nth(3)?.starts_with('/');
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_file && matches!(rights, "r--p" | "r-xp")).then_some(address(start)?..address(end)?)
}

/// Returns freed pages, which the allocator keeps, to the kernel. After many small allocations,
/// glibc's allocator keeps nearly all freed pages. The call takes some milliseconds. Does nothing
/// without glibc.
pub fn trim_heap() {
    // SAFETY: the call touches only free memory, under the allocator's own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the resident set size of this process in bytes. Errors: `/proc` is not mounted.
pub fn resident() -> io::Result<usize> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.unwrap_or(0) * rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_pages_of_files_are_dropped() {
        let smaps = "\
55d0-55e0 r--p 00000000 fe:00 1  /usr/bin/viaduct\nRss: 4 kB\nAnonymous:        0 kB\n\
55e0-55f0 r-xp 00000000 fe:00 1  /usr/bin/viaduct\nRss: 4 kB\nAnonymous:        0 kB\n\
55f0-5600 r--p 00010000 fe:00 1  /usr/bin/viaduct\nRss: 4 kB\nAnonymous:        8 kB\n\
5600-5610 rw-p 00010000 fe:00 1  /usr/bin/viaduct\nRss: 4 kB\nAnonymous:        0 kB\n\
5610-5620 r-xp 00000000 00:00 0  [vdso]\nRss: 4 kB\nAnonymous:        0 kB\n";
        assert_eq!(constant(smaps), [0x55d0..0x55e0, 0x55e0..0x55f0]);
    }

    #[test]
    fn the_program_continues_to_run_without_its_clean_pages() {
        let before = resident().unwrap();
        drop_clean_pages().unwrap();
        let after = resident().unwrap();
        assert!(after < before, "{before} bytes, then {after}");
        assert_eq!("it still works".to_uppercase(), "IT STILL WORKS");
    }
}
