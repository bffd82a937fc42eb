//! Description of a handler for users.

/// Name, settings and properties of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Name in a chain's specification.
    pub name: &'static str,
    /// Summary in one line.
    pub line: &'static str,
    /// Settings, in the form `key=value`.
    pub settings: Vec<Setting>,
    /// True if the handler hides or protects data: a flow that bypassed it would leak.
    pub guards: bool,
    /// True if the handler is needed at both ends of a flow.
    pub both_ends: bool,
    /// True if the handler also works on datagrams: its factory makes a datagram handler.
    pub datagrams: bool,
}

/// Setting of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key before the `=`.
    pub key: &'static str,
    /// Placeholder of the value, such as `FILE`.
    pub value: &'static str,
    /// Summary in one line, with the default.
    pub help: &'static str,
}

impl About {
    /// Handler that is needed at one end, and neither hides nor protects data.
    pub fn new(name: &'static str, line: &'static str) -> About {
        About {
            name,
            line,
            settings: Vec::new(),
            guards: false,
            both_ends: false,
            datagrams: false,
        }
    }

    /// Adds a setting.
    #[must_use]
    pub fn setting(mut self, key: &'static str, value: &'static str, help: &'static str) -> About {
        self.settings.push(Setting { key, value, help });
        self
    }

    /// Marks the handler as hiding or protecting data.
    #[must_use]
    pub fn guards(mut self) -> About {
        self.guards = true;
        self
    }

    /// Marks the handler as working on datagrams too.
    #[must_use]
    pub fn datagrams(mut self) -> About {
        self.datagrams = true;
        self
    }

    /// Marks the handler as needed at both ends.
    #[must_use]
    pub fn both_ends(mut self) -> About {
        self.both_ends = true;
        self
    }
}
