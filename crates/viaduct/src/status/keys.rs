//! Keys of `viaduct top`, as terminals send them.

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The end.
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// The list of keys.
    Help,
    /// All of each peer, or one line.
    Details,
    /// Nothing.
    Other,
}

const CTRL_C: u8 = 3;
const ESCAPE: u8 = 27;

impl Key {
    /// The key that sent `bytes`, which one read brought; none of them is the end of the input. An
    /// escape alone ends; with more behind it, it is the beginning of another key.
    pub(super) fn parse(bytes: &[u8]) -> Key {
        match bytes {
            [] | [b'q' | b'Q' | CTRL_C, ..] | [ESCAPE] => Key::Quit,
            [ESCAPE, b'[' | b'O', b'A', ..] | [b'k', ..] => Key::Up,
            [ESCAPE, b'[' | b'O', b'B', ..] | [b'j' | b'\r' | b'\n', ..] => Key::Down,
            [ESCAPE, b'[', b'5', b'~', ..] | [b'b', ..] => Key::PageUp,
            [ESCAPE, b'[', b'6', b'~', ..] | [b' ' | b'f', ..] => Key::PageDown,
            [ESCAPE, b'[' | b'O', b'H', ..] | [ESCAPE, b'[', b'1', b'~', ..] | [b'g', ..] => {
                Key::Home
            }
            [ESCAPE, b'[' | b'O', b'F', ..] | [ESCAPE, b'[', b'4', b'~', ..] | [b'G', ..] => {
                Key::End
            }
            [b'?' | b'h', ..] => Key::Help,
            [b'd', ..] => Key::Details,
            _ => Key::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_scroll_and_an_escape_alone_ends() {
        for (bytes, key) in [
            (&b"\x1b[A"[..], Key::Up),
            (b"\x1bOB", Key::Down),
            (b"\x1b[5~", Key::PageUp),
            (b"\x1b[6~", Key::PageDown),
            (b"\x1b[C", Key::Other),
            (b"\x1b[15~", Key::Other),
            (b"\x1b", Key::Quit),
            (b"q", Key::Quit),
            (b"\x03", Key::Quit),
            (b"", Key::Quit),
            (b"?", Key::Help),
            (b"x", Key::Other),
        ] {
            assert_eq!(Key::parse(bytes), key, "{bytes:?}");
        }
    }
}
