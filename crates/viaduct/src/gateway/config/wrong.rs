//! Errors of a config, before it is known which file they are in.

use std::fmt;

/// Place of an error, and its description.
pub(super) type Wrong = (String, String);

pub(super) fn wrong<T>(place: impl fmt::Display, what: impl fmt::Display) -> Result<T, Wrong> {
    Err((place.to_string(), what.to_string()))
}

pub(super) fn check_name(place: &str, name: &str) -> Result<(), Wrong> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fine) || name.starts_with('.') {
        return wrong(
            place,
            format!("{name:?}: 1 to 64 letters, digits, '-', '_' or '.' are expected"),
        );
    }
    Ok(())
}
