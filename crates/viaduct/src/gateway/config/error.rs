//! Errors in a config, without the name of its file.

use std::fmt;

/// Place of an error, and its description.
pub(super) type Invalid = (String, String);

pub(super) fn invalid<T>(place: impl fmt::Display, what: impl fmt::Display) -> Result<T, Invalid> {
    Err((place.to_string(), what.to_string()))
}

/// Checks that `name` can name a site.
///
/// # Errors
/// Description of the problem.
pub fn check_site_name(name: &str) -> Result<(), String> {
    check_name("", name).map_err(|(_, what)| what)
}

pub(super) fn check_name(place: &str, name: &str) -> Result<(), Invalid> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fine) || name.starts_with('.') {
        return invalid(
            place,
            format!("{name:?}: 1 to 64 letters, digits, '-', '_' or '.' are expected"),
        );
    }
    Ok(())
}
