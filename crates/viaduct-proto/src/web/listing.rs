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
    /// Of the directory at `path`, which has these names; those of directories have a slash at their end.
    pub fn new(path: &[String], mut names: Vec<String>) -> Listing {
        names.sort_unstable();
        let page = Bytes::from(page(path, &names));
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

fn page(path: &[String], names: &[String]) -> String {
    let title = escape(&format!("/{}", path.join("/")));
    let mut page = format!(
        "<!doctype html>\n<meta charset=utf-8>\n<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n"
    );
    let up = (!path.is_empty()).then_some("../");
    for name in up.into_iter().chain(names.iter().map(String::as_str)) {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<li><a href=\"./{}\">{}</a>", path::encode(name), escape(name));
    }
    page.push_str("</ul>\n");
    page
}

fn escape(text: &str) -> String {
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
