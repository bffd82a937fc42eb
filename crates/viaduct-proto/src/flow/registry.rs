//! Which handlers there are, by name, and the chain that a text such as
//! `+shape:rate=2M +count` asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::about::About;
use super::datagrams::Datagrams;
use super::handler::Handler;
use super::relay::Relay;

/// Makes a handler for each flow; what is shared by flows is shared here.
pub trait Factory: Send + Sync {
    /// The name that the handler is asked for by.
    fn name(&self) -> &'static str;

    /// A handler for a new flow.
    fn make(&self) -> Box<dyn Handler + Send>;

    /// What the kernel is to do on the plain socket, if it can do all of this handler's work.
    fn offload(&self) -> Option<Offload> {
        None
    }

    /// Bits a second that its handlers let pass towards the network and from it; `None` where there is no limit.
    fn rates(&self) -> [Option<u64>; 2] {
        [None; 2]
    }

    /// The kernel moves a flow from one socket to another, and does this handler's work while it does:
    /// no handler is made for it. `begins` says that the flow is new; the bytes have passed since this
    /// was called last, those that the application wrote and those that it is to read.
    fn relayed(&self, _begins: bool, _bytes: [u64; 2]) {}

    /// Whether its handlers ask what is known of paths ([`Handler::measure`]).
    fn measures(&self) -> bool {
        false
    }

    /// Whether its flows go over each other's connections: one loop must have them all.
    fn shares(&self) -> bool {
        false
    }

    /// Whether connections that are accepted may belong to a flow that is there: one loop must have them all.
    fn gathers(&self) -> bool {
        false
    }

    /// Whether a flow to `to` would go over a connection of such flows that is there.
    fn reaches(&self, _to: &super::Address) -> bool {
        false
    }

    /// What all its flows together have come to, for people: some lines, if there is something to say.
    fn state(&self) -> Option<String> {
        None
    }

    /// The same, of handlers whose handshake fails unless the other end's was made with the same `words`;
    /// `None` where nothing is shaken.
    fn bound(&self, words: &[u8]) -> Option<Arc<dyn Factory>> {
        let _ = words;
        None
    }

    /// Whether its handlers go to hosts by name, and nobody here need look one up.
    fn takes_names(&self) -> bool {
        false
    }

    /// What it does to the datagrams between two ends; `None`: it works on streams alone.
    fn datagrams(&self) -> Option<Box<dyn Datagrams + Send>> {
        None
    }

    /// A relay that datagrams go by from here; `None`: they go to the far end themselves.
    fn relay(&self) -> Option<Box<dyn Relay + Send>> {
        None
    }
}

/// What a socket is set to, so that no handler is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Bits a second towards the network at most (`SO_MAX_PACING_RATE`).
    pub rate: Option<u64>,
}

/// What sockets of a chain are set to if the kernel can do all of its work; the lowest rate counts.
pub fn offload(factories: &[Arc<dyn Factory>]) -> Option<Offload> {
    factories.iter().try_fold(Offload::default(), |all, factory| {
        let rate = factory.offload()?.rate;
        Some(Offload { rate: all.rate.into_iter().chain(rate).min() })
    })
}

/// A factory's settings: what stood behind its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    given: BTreeMap<String, String>,
}

impl Arguments {
    /// Takes the value of `key` as it was given.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.given.remove(key)
    }

    /// Takes the value of `key`, if it was given.
    ///
    /// # Errors
    /// `parse` refuses it; the error names the key and what is `expected`.
    pub fn take<T>(
        &mut self,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.given.remove(key) else { return Ok(None) };
        match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("{key}={text}: {expected} is expected")),
        }
    }
}

/// Makes a factory of its settings, or says what is wrong with them.
type Build = Box<dyn Fn(&mut Arguments) -> Result<Arc<dyn Factory>, String> + Send + Sync>;

/// The handlers that can be asked for.
#[derive(Default)]
pub struct Registry {
    known: BTreeMap<&'static str, (About, Build)>,
}

/// A handler that was asked for: `shape:in=10M,out=2M`, with or without a `+` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerSpec {
    name: String,
    arguments: Arguments,
}

/// A chain that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No such handler.
    #[error("no handler is named {name:?}; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A setting that the handler does not have.
    #[error("{handler}: it has no setting {key:?}; {known}")]
    Key {
        /// The handler.
        handler: String,
        /// The setting.
        key: String,
        /// What it has.
        known: String,
    },
    /// A setting that was given more than once.
    #[error("{text:?}: {key} is given twice")]
    Twice {
        /// What was asked for.
        text: String,
        /// The setting.
        key: String,
    },
    /// A setting that is wrong.
    #[error("{handler}: {what}")]
    Value {
        /// The handler.
        handler: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// No handler and no settings.
    #[error("{0:?} is no handler; write it like shape:in=10M,out=2M")]
    Syntax(String),
}

impl Registry {
    /// Adds a handler.
    pub fn add(
        &mut self,
        about: About,
        build: impl Fn(&mut Arguments) -> Result<Arc<dyn Factory>, String> + Send + Sync + 'static,
    ) {
        self.known.insert(about.name, (about, Box::new(build)));
    }

    /// What there is to say about each handler, by name.
    pub fn about(&self) -> impl Iterator<Item = &About> {
        self.known.values().map(|(about, _)| about)
    }

    /// Whether a chain of these hides or protects data, so that no flow may go around it.
    pub fn guards(&self, specs: &[HandlerSpec]) -> bool {
        let about = |spec: &HandlerSpec| self.known.get(&spec.name[..]).map(|(about, _)| about);
        specs.iter().filter_map(about).any(|about| about.guards)
    }

    /// Of each handler of a chain, whether it is needed at both ends.
    pub fn both_ends(&self, specs: &[HandlerSpec]) -> Vec<bool> {
        let both = |spec: &HandlerSpec| {
            self.known.get(&spec.name[..]).is_some_and(|(about, _)| about.both_ends)
        };
        specs.iter().map(both).collect()
    }

    /// The names of all handlers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.keys().copied()
    }

    /// The factories of a chain.
    ///
    /// # Errors
    /// An unknown handler, or settings that it does not take.
    pub fn chain(&self, specs: &[HandlerSpec]) -> Result<Arc<[Arc<dyn Factory>]>, SpecError> {
        specs.iter().map(|spec| self.factory(spec)).collect()
    }

    fn factory(&self, spec: &HandlerSpec) -> Result<Arc<dyn Factory>, SpecError> {
        let Some((about, build)) = self.known.get(spec.name()) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            return Err(SpecError::Unknown { name: spec.name.clone(), known });
        };
        spec.read(about, build)
    }
}

impl HandlerSpec {
    /// The name that it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A setting that was given and that the handler does not have.
    fn unknown(&self, about: &About) -> Option<String> {
        let is_known = |key: &str| about.settings.iter().any(|setting| setting.key == key);
        self.arguments.given.keys().find(|key| !is_known(key)).cloned()
    }

    /// What `build` makes of the settings of the handler that `about` speaks of.
    ///
    /// # Errors
    /// `build` refuses one, or does not take it.
    pub fn read<T>(
        &self,
        about: &About,
        build: impl FnOnce(&mut Arguments) -> Result<T, String>,
    ) -> Result<T, SpecError> {
        let HandlerSpec { name: handler, mut arguments } = self.clone();
        let built = build(&mut arguments);
        // A word that is written wrong is no word that is missing.
        let unknown = match built {
            Ok(_) => arguments.given.into_keys().next(),
            Err(_) => self.unknown(about),
        };
        if let Some(key) = unknown {
            let keys: Vec<_> = about.settings.iter().map(|setting| setting.key).collect();
            let known = match keys[..] {
                [] => "it has none".to_owned(),
                _ => format!("there are {}", keys.join(", ")),
            };
            return Err(SpecError::Key { handler, key, known });
        }
        built.map_err(|what| SpecError::Value { handler, what })
    }
}

impl std::str::FromStr for HandlerSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = || SpecError::Syntax(text.to_owned());
        let bare = text.strip_prefix('+').unwrap_or(text);
        let (name, list) = bare.split_once(':').unwrap_or((bare, ""));
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || !name.chars().all(fine) {
            return Err(wrong());
        }
        let mut arguments = Arguments::default();
        for pair in list.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            if arguments.given.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(SpecError::Twice { text: text.to_owned(), key: key.to_owned() });
            }
        }
        Ok(HandlerSpec { name: name.to_owned(), arguments })
    }
}

impl fmt::Debug for dyn Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
