//! A page that names what is in a directory.

use std::fmt::Write as _;

use bytes::Bytes;
use ring::digest;

use super::path;

/// The page. Copies share it, and what it is known by: who keeps one makes it once, however often its
/// response is made again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    page: Bytes,
    print: [u8; 32],
}

impl Listing {
    /// Of the directory at `path`, which has these names; those of directories have a slash at their end. If there are
    /// `more` names than these, the page says so.
    pub fn new(path: &[Vec<u8>], mut names: Vec<Vec<u8>>, more: bool) -> Listing {
        names.sort_unstable();
        let page = Bytes::from(page(path, &names, more));
        let mut print = [0; 32];
        print.copy_from_slice(digest::digest(&digest::SHA256, &page).as_ref());
        Listing { page, print }
    }

    /// Its bytes, HTML in UTF-8.
    pub fn page(&self) -> &Bytes {
        &self.page
    }

    /// Their digest.
    pub(super) fn print(&self) -> &[u8] {
        &self.print
    }
}

fn page(path: &[Vec<u8>], names: &[Vec<u8>], more: bool) -> String {
    let title = format!("/{}", escape(&path.join(&b'/')));
    let mut page = format!(
        "<!doctype html>\n<meta charset=utf-8>\n<title>{title}</title>\n<h1>{title}</h1>\n"
    );
    if more {
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<p>This directory has more names than are listed: {} are shown, in no certain choice. \
             All of them can be fetched.</p>",
            names.len()
        );
    }
    page.push_str("<ul>\n");
    let up = (!path.is_empty()).then_some(&b"../"[..]);
    for name in up.into_iter().chain(names.iter().map(Vec::as_slice)) {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<li><a href=\"./{}\">{}</a>", path::encode(name), escape(name));
    }
    page.push_str("</ul>\n");
    page
}

/// Text for people: bytes that are no UTF-8 are shown as U+FFFD.
fn escape(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}
