//! What a user is told about a handler.

/// A handler's name, its settings and its nature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The name that it is asked for by.
    pub name: &'static str,
    /// What it does, in one line.
    pub line: &'static str,
    /// What can be set: `key=`, and what follows.
    pub settings: Vec<Setting>,
    /// It hides or protects what passes: a flow that went around it would leak.
    pub guards: bool,
    /// It is needed at both ends of a flow.
    pub both_ends: bool,
    /// It works on datagrams too: its factory makes something for them.
    pub datagrams: bool,
}

/// One of a handler's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What stands before the `=`.
    pub key: &'static str,
    /// What stands behind it, such as `FILE`.
    pub value: &'static str,
    /// What it does, in one line, with its default.
    pub help: &'static str,
}

impl About {
    /// A handler that is needed at one end, and neither hides nor protects anything.
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

    /// With one more setting.
    #[must_use]
    pub fn setting(mut self, key: &'static str, value: &'static str, help: &'static str) -> About {
        self.settings.push(Setting { key, value, help });
        self
    }

    /// One that hides or protects.
    #[must_use]
    pub fn guards(mut self) -> About {
        self.guards = true;
        self
    }

    /// One that works on datagrams too.
    #[must_use]
    pub fn datagrams(mut self) -> About {
        self.datagrams = true;
        self
    }

    /// One that is needed at both ends.
    #[must_use]
    pub fn both_ends(mut self) -> About {
        self.both_ends = true;
        self
    }
}
