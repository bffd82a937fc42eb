//! Registry of handlers by name, and chains built from text such as `+shape:rate=2M +count`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::about::About;
use super::datagrams::Datagrams;
use super::handler::Handler;
use super::relay::Relay;

/// Creates a handler for each flow, and holds the state that its flows share.
pub trait Factory: Send + Sync {
    /// Name of the handler in a chain's specification.
    fn name(&self) -> &'static str;

    /// Creates a handler for a new flow.
    fn make(&self) -> Box<dyn Handler + Send>;

    /// Socket settings with which the kernel does all of the handler's work; `None` if the kernel
    /// cannot do it.
    fn offload(&self) -> Option<Offload> {
        None
    }

    /// Rate limits in bits a second, towards the network and from it; `None` is no limit.
    fn rates(&self) -> [Option<u64>; 2] {
        [None; 2]
    }

    /// Accounts for a flow that the kernel relays between two sockets, without a handler. `begins`
    /// is true in the first call for a flow. `bytes` are the numbers of bytes relayed since the
    /// last call: from the application, and to it.
    fn relayed(&self, _begins: bool, _bytes: [u64; 2]) {}

    /// Returns whether the factory's handlers use path measurements ([`Handler::measure`]).
    fn measures(&self) -> bool {
        false
    }

    /// Returns whether the factory's flows share connections and must therefore be driven by one
    /// event loop.
    fn shares(&self) -> bool {
        false
    }

    /// Returns whether accepted connections may belong to existing flows of this factory; one event
    /// loop must then drive all of these flows.
    fn gathers(&self) -> bool {
        false
    }

    /// Returns whether a flow to `to` would go over an existing shared connection.
    fn reaches(&self, _to: &super::Address) -> bool {
        false
    }

    /// Human-readable summary of the state of all flows of the factory, in a few lines; `None` if
    /// there is none.
    fn state(&self) -> Option<String> {
        None
    }

    /// Returns a copy of the factory whose handlers include the bytes `words` in their handshake,
    /// which fails unless the other end includes the same bytes. `None` if the handler has no
    /// handshake.
    fn bound(&self, words: &[u8]) -> Option<Arc<dyn Factory>> {
        let _ = words;
        None
    }

    /// Returns whether the factory's handlers connect by name, so that names need no local
    /// resolution.
    fn takes_names(&self) -> bool {
        false
    }

    /// Creates a handler for datagrams between two ends; `None` if the handler works only on
    /// streams.
    fn datagrams(&self) -> Option<Box<dyn Datagrams + Send>> {
        None
    }

    /// Creates a relay for datagrams; `None` if they are sent directly to the far end.
    fn relay(&self) -> Option<Box<dyn Relay + Send>> {
        None
    }
}

/// Socket settings that replace a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Maximum rate towards the network in bits a second (`SO_MAX_PACING_RATE`).
    pub rate: Option<u64>,
}

/// Socket settings with which the kernel does all of a chain's work; `None` if the kernel cannot do
/// it. The rate is the lowest of the handlers' rates.
pub fn offload(factories: &[Arc<dyn Factory>]) -> Option<Offload> {
    factories.iter().try_fold(Offload::default(), |all, factory| {
        let rate = factory.offload()?.rate;
        Some(Offload { rate: all.rate.into_iter().chain(rate).min() })
    })
}

/// Settings of a handler: the text after its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    given: BTreeMap<String, String>,
}

impl Arguments {
    /// Takes the value of `key` as text.
    pub fn text(&mut self, key: &str) -> Option<String> {
        self.given.remove(key)
    }

    /// Takes and parses the value of `key`, if given. Errors: `parse` rejects the value; the error
    /// names the key and what is `expected`.
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

/// Constructor of a factory from its settings; the error describes the invalid setting.
type Build = Box<dyn Fn(&mut Arguments) -> Result<Arc<dyn Factory>, String> + Send + Sync>;

/// Set of known handlers.
#[derive(Default)]
pub struct Registry {
    known: BTreeMap<&'static str, (About, Build)>,
}

/// Specification of a handler: `shape:in=10M,out=2M`, with or without a leading `+`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerSpec {
    name: String,
    arguments: Arguments,
}

/// Error in the specification of a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no such handler.
    #[error("no handler is named {name:?}; there are {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// Known names.
        known: String,
    },
    /// The handler has no such setting.
    #[error("{handler}: it has no setting {key:?}; {known}")]
    Key {
        /// Name of the handler.
        handler: String,
        /// Key of the setting.
        key: String,
        /// Known settings.
        known: String,
    },
    /// A setting is given more than once.
    #[error("{text:?}: {key} is given twice")]
    Twice {
        /// The specification.
        text: String,
        /// Key of the setting.
        key: String,
    },
    /// The value of a setting is invalid.
    #[error("{handler}: {what}")]
    Value {
        /// Name of the handler.
        handler: String,
        /// Error, and what is expected.
        what: String,
    },
    /// The text is not a handler's specification.
    #[error("{0:?} is not a handler; write it like shape:in=10M,out=2M")]
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

    /// Descriptions of all handlers, by name.
    pub fn about(&self) -> impl Iterator<Item = &About> {
        self.known.values().map(|(about, _)| about)
    }

    /// Returns whether a handler hides or protects data, so that no flow may bypass the chain.
    pub fn guards(&self, specs: &[HandlerSpec]) -> bool {
        let about = |spec: &HandlerSpec| self.known.get(&spec.name[..]).map(|(about, _)| about);
        specs.iter().filter_map(about).any(|about| about.guards)
    }

    /// Returns, for each handler of a chain, whether it is needed at both ends.
    pub fn both_ends(&self, specs: &[HandlerSpec]) -> Vec<bool> {
        let both = |spec: &HandlerSpec| {
            self.known.get(&spec.name[..]).is_some_and(|(about, _)| about.both_ends)
        };
        specs.iter().map(both).collect()
    }

    /// Names of all handlers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.keys().copied()
    }

    /// Factories of a chain. Errors: a handler is unknown, or rejects its settings.
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
    /// Name of the handler.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the first key, in alphabetical order, that is not a setting of the handler; `None`
    /// if all keys are.
    fn unknown(&self, about: &About) -> Option<String> {
        let is_known = |key: &str| about.settings.iter().any(|setting| setting.key == key);
        self.arguments.given.keys().find(|key| !is_known(key)).cloned()
    }

    /// Applies `build` to the handler's settings. Errors: `build` returns one, or leaves a given
    /// setting unused.
    pub fn read<T>(
        &self,
        about: &About,
        build: impl FnOnce(&mut Arguments) -> Result<T, String>,
    ) -> Result<T, SpecError> {
        let HandlerSpec { name: handler, mut arguments } = self.clone();
        let built = build(&mut arguments);
        // If a required key is misspelt, the error is that the given key is unknown, not that the
        // required one is missing.
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
