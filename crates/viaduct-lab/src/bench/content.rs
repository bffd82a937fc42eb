//! What the bytes are: all the same, text, or at random; the same at both ends.

use viaduct_proto::rng::Rng;

/// What is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Content {
    /// The same byte again and again
    #[default]
    Same,
    /// Words of the project's own description, as often as they are there, in any order
    Text,
    /// Nothing that can be compressed
    Random,
}

/// A description that words are drawn from.
const WORDS: &str = include_str!("../../../../ARCHITECTURE.md");
/// Of everything random in it: the ends agree on it.
const SEED: u64 = 11;

/// The bytes, without end.
#[derive(Debug)]
pub(super) struct Source {
    content: Content,
    rng: Rng,
    words: Vec<&'static str>,
    /// What was drawn and did not fit.
    left: Vec<u8>,
}

impl Content {
    /// All of them.
    pub(super) const ALL: [Content; 3] = [Content::Same, Content::Text, Content::Random];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Content::Same => "same",
            Content::Text => "text",
            Content::Random => "random",
        }
    }
}

impl Source {
    /// From the beginning.
    pub(super) fn new(content: Content) -> Source {
        let words = WORDS.split_ascii_whitespace().collect();
        Source { content, rng: Rng::from_seed(SEED), words, left: Vec::new() }
    }

    /// The next bytes; those that are all the same stay as they are.
    pub(super) fn fill(&mut self, into: &mut [u8]) {
        match self.content {
            Content::Same => {}
            Content::Random => {
                for piece in into.chunks_mut(8) {
                    piece.copy_from_slice(&self.rng.next_u64().to_le_bytes()[..piece.len()]);
                }
            }
            Content::Text => {
                while self.left.len() < into.len() {
                    let word = self.words[self.rng.next_u64() as usize % self.words.len()];
                    self.left.extend(word.as_bytes());
                    self.left.push(b' ');
                }
                into.copy_from_slice(&self.left[..into.len()]);
                self.left.drain(..into.len());
            }
        }
    }
}
