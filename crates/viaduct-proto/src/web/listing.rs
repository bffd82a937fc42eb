//! Page that lists the names in a directory.

use std::fmt::Write as _;

use bytes::Bytes;
use ring::digest;

use super::path;

/// Page of a directory. Clones share the page and contain its hash, so a caller that keeps a
/// listing need not create it again for each packet of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    page: Bytes,
    fingerprint: [u8; 32],
}

impl Listing {
    /// Creates the page of the directory at `path` with these names. The names of directories end
    /// with a slash. `more` is true if there are further names; the page then says so.
    pub fn new(path: &[Vec<u8>], mut names: Vec<Vec<u8>>, more: bool) -> Listing {
        names.sort_unstable();
        let page = Bytes::from(page(path, &names, more));
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest::digest(&digest::SHA256, &page).as_ref());
        Listing { page, fingerprint }
    }

    /// Page, HTML in UTF-8.
    pub fn page(&self) -> &Bytes {
        &self.page
    }

    /// SHA-256 of the page.
    pub(super) fn fingerprint(&self) -> &[u8] {
        &self.fingerprint
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
            "<p>This directory has more names than are listed: {} are shown, chosen arbitrarily. \
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

/// Escapes a name for HTML. Bytes that are not UTF-8 become U+FFFD.
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
