//! Keys of `viaduct top`, as terminals send them.

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Quits.
    Quit,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Opens the selected service or peer.
    Open,
    /// Returns to the list.
    Back,
    /// Shows or hides the list of keys.
    Help,
    /// Switches between all details of a service and a list of its peers.
    Details,
    /// Does nothing.
    Other,
}

const CTRL_C: u8 = 3;
const BACKSPACE: u8 = 0x7f;
pub(super) const ESCAPE: u8 = 27;

impl Key {
    /// Parses the keys in `bytes`. Empty `bytes` mean that the input has ended, which quits.
    pub(super) fn parse_all(bytes: &[u8]) -> Vec<Key> {
        if bytes.is_empty() {
            return vec![Key::Quit];
        }
        let mut rest = bytes;
        let next = || {
            let (key, after) = Key::parse(rest)?;
            rest = after;
            Some(key)
        };
        std::iter::from_fn(next).collect()
    }

    /// Parses the first key of `bytes`, and returns it with the remaining bytes. An escape
    /// goes back, unless `[` or `O` follows and makes it the beginning of another key.
    fn parse(bytes: &[u8]) -> Option<(Key, &[u8])> {
        let (&first, rest) = bytes.split_first()?;
        if first != ESCAPE {
            return Some((Key::of_letter(first), rest));
        }
        let Some((b'[' | b'O', sequence)) = rest.split_first() else {
            return Some((Key::Back, rest));
        };
        // Parameters, followed by the final byte (ECMA-48, 5.4).
        let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
        let (sequence, rest) = sequence.split_at(end.map_or(sequence.len(), |end| end + 1));
        let key = match sequence {
            b"A" => Key::Up,
            b"B" => Key::Down,
            b"C" => Key::Open,
            b"D" => Key::Back,
            b"5~" => Key::PageUp,
            b"6~" => Key::PageDown,
            b"H" | b"1~" => Key::Home,
            b"F" | b"4~" => Key::End,
            _ => Key::Other,
        };
        Some((key, rest))
    }

    fn of_letter(letter: u8) -> Key {
        match letter {
            b'q' | b'Q' | CTRL_C => Key::Quit,
            b'k' => Key::Up,
            b'j' => Key::Down,
            b'l' | b'\r' | b'\n' => Key::Open,
            BACKSPACE => Key::Back,
            b'b' => Key::PageUp,
            b' ' | b'f' => Key::PageDown,
            b'g' => Key::Home,
            b'G' => Key::End,
            b'?' | b'h' => Key::Help,
            b'd' => Key::Details,
            _ => Key::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_move_and_an_escape_alone_goes_back() {
        for (bytes, key) in [
            (&b"\x1b[A"[..], Key::Up),
            (b"\x1bOB", Key::Down),
            (b"\x1b[5~", Key::PageUp),
            (b"\x1b[6~", Key::PageDown),
            (b"\x1b[C", Key::Open),
            (b"\x1b[D", Key::Back),
            (b"\r", Key::Open),
            (b"\x7f", Key::Back),
            (b"\x1b[Z", Key::Other),
            (b"\x1b[15~", Key::Other),
            (b"\x1b", Key::Back),
            (b"q", Key::Quit),
            (b"\x03", Key::Quit),
            (b"", Key::Quit),
            (b"?", Key::Help),
            (b"x", Key::Other),
        ] {
            assert_eq!(Key::parse_all(bytes), [key], "{bytes:?}");
        }
        assert_eq!(Key::parse_all(b"j\x1b[Aq"), [Key::Down, Key::Up, Key::Quit]);
    }
}
