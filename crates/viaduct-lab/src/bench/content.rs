//! Content of the transferred bytes: constant, text or random; identical at both ends.

use viaduct_proto::rng::Rng;

/// Content of the transferred bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Content {
    /// A single byte, repeated
    #[default]
    Same,
    /// Words drawn at random from ARCHITECTURE.md
    Text,
    /// Random bytes, which do not compress
    Random,
}

/// Text from which words are drawn.
const WORDS: &str = include_str!("../../../../ARCHITECTURE.md");
/// Seed of the random content; both ends use the same.
const SEED: u64 = 11;

/// Endless generator of the bytes.
#[derive(Debug)]
pub(super) struct Source {
    content: Content,
    rng: Rng,
    words: Vec<&'static str>,
    /// Bytes already generated that did not fit into the last block.
    left: Vec<u8>,
}

impl Content {
    /// All kinds of content.
    pub(super) const ALL: [Content; 3] = [Content::Same, Content::Text, Content::Random];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Content::Same => "same",
            Content::Text => "text",
            Content::Random => "random",
        }
    }
}

impl Source {
    /// Starts a source at its first byte.
    pub(super) fn new(content: Content) -> Source {
        let words = WORDS.split_ascii_whitespace().collect();
        Source { content, rng: Rng::from_seed(SEED), words, left: Vec::new() }
    }

    /// Fills `into` with the next bytes; constant content leaves it unchanged.
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
