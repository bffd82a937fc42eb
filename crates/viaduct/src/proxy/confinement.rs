//! Confinement of a proxy, as an option of its command line: `USER:MEMORY:DESCRIPTORS:PARENT`.

use viaduct_sys::process::confine::Confinement;

/// Text for the command line.
pub fn text(of: Confinement) -> String {
    let Confinement { user, memory, descriptors, parent } = of;
    format!("{user}:{memory}:{descriptors}:{parent}")
}

/// Parses the text of the command line.
pub(super) fn parse(text: &str) -> Result<Confinement, String> {
    let read = || {
        let mut parts = text.split(':');
        let of = Confinement {
            user: parts.next()?.parse().ok()?,
            memory: parts.next()?.parse().ok()?,
            descriptors: parts.next()?.parse().ok()?,
            parent: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(of)
    };
    read().ok_or_else(|| "USER:MEMORY:DESCRIPTORS:PARENT is expected".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confinement_is_parsed_from_its_text() {
        let of = Confinement { user: 1, memory: 2, descriptors: 3, parent: 4 };
        assert_eq!(parse(&text(of)), Ok(of));
        for wrong in ["", "1:2:3", "1:2:3:4:5", "1:2:3:x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
