//! Text of a config and of the files that it names: reading the text, and locating errors in it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Reads the text of the file `path`, of at most `most` bytes. Errors: the message describes the
/// fault of the file.
pub fn read(path: &Path, most: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    // Opening a pipe would block until a writer opens it.
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err("is not a regular file".to_owned()),
        _ => {}
    }
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > most {
        return Err(format!("is longer than {most} bytes, the maximum"));
    }
    String::from_utf8(bytes).map_err(|error| {
        format!("is not text: its byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1)
    })
}

/// Position for an error message: the line of `text` that contains byte `at`, and the key that is
/// set on that line.
pub fn position(text: &str, at: usize) -> String {
    let number = before(text, at).matches('\n').count() + 1;
    match key(text, at) {
        Some(key) => format!("line {number}: {key}: "),
        None => format!("line {number}: "),
    }
}

/// Key whose value contains byte `at` of `text`; `None` if the key itself is wrong, in which case
/// the parser's message names it.
fn key(text: &str, at: usize) -> Option<&str> {
    let line = before(text, at).rsplit('\n').next()?;
    line.split_once('=').map(|(key, _)| key.trim())
}

fn before(text: &str, at: usize) -> &str {
    text.get(..at).unwrap_or(text)
}

/// Rewords the TOML parser's message about byte `at` of `text` in terms that users of a config
/// know.
pub fn explain(text: &str, at: usize, message: &str) -> String {
    let message = message.replace('\n', " ");
    if let Some(key) = message.strip_prefix("missing field ") {
        return format!("{key} is missing");
    }
    match &message[..] {
        "invalid type: map, expected a sequence" => {
            let table = table(text, at).unwrap_or("[peer]");
            format!("a table with two brackets is expected: [{table}]")
        }
        _ if message.ends_with(", expected a sequence") => {
            format!("a list is expected, such as {}", example(key(text, at).unwrap_or_default()))
        }
        _ if message.ends_with(", expected a string") => "text in quotes is expected".to_owned(),
        _ => {
            message.replace("unknown field", "unknown key").replace(", expected literal string", "")
        }
    }
}

/// Example of a valid list for `key`.
fn example(key: &str) -> &'static str {
    match key {
        "ports" => "[\"22\", \"8000-8080\"]",
        "handlers" => "[\"count\", \"shape:rate=2M\"]",
        "peer" => "[\"KEY\"]",
        "endpoints" => "[\"192.0.2.1:7700\"]",
        "interleave" => "[1, 19, 41]",
        _ => "[\"10.1.0.0/16\"]",
    }
}

/// Header of the table that contains byte `at` of `text`, as written in the file: `[site]`.
pub fn table(text: &str, at: usize) -> Option<&str> {
    let end = text.get(at..)?.find('\n').map_or(text.len(), |length| at + length);
    text[..end].lines().rev().map(str::trim).find(|line| line.starts_with('['))
}

/// Checks that `name` can be a part of a file name, and can appear in a policy. Errors: the message
/// states the permitted form.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
        return Err(format!("{name:?}: letters, digits, - and _ are expected, at most 32"));
    }
    Ok(())
}
