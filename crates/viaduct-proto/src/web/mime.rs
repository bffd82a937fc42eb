//! Media type of a file, by its name.

/// File name extensions and media types.
const TYPES: [(&str, &str); 34] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("xml", "application/xml"),
    ("json", "application/json"),
    ("map", "application/json"),
    ("wasm", "application/wasm"),
    ("pdf", "application/pdf"),
    ("zip", "application/zip"),
    ("gz", "application/gzip"),
    ("tar", "application/x-tar"),
    ("zst", "application/zstd"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("png", "image/png"),
    ("gif", "image/gif"),
    ("svg", "image/svg+xml"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("ico", "image/vnd.microsoft.icon"),
    ("mp4", "video/mp4"),
    ("webm", "video/webm"),
    ("mp3", "audio/mpeg"),
    ("ogg", "audio/ogg"),
    ("wav", "audio/wav"),
    ("flac", "audio/flac"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("ttf", "font/ttf"),
];
const UNKNOWN: &str = "application/octet-stream";

/// Media type of a file of this name.
pub(super) fn of(name: &[u8]) -> &'static str {
    let dot = name.iter().rposition(|&byte| byte == b'.');
    let ending = dot.map_or(&[][..], |dot| &name[dot + 1..]);
    let found = TYPES.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(ending));
    found.map_or(UNKNOWN, |(_, kind)| kind)
}
