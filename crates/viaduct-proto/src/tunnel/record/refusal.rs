//! Verdict of the listener, in the second message of a link's handshake.

const WELCOME: u8 = 0;
const UNKNOWN_KEY: u8 = 1;
const OTHER_VERSION: u8 = 2;

/// Reason why the far end refuses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The dialler's key is not that of any of the far end's peers.
    #[error(
        "the far end does not know this site's public key: it needs a peer with that key, as \
         `viaduct key show` prints it here"
    )]
    UnknownKey,
    /// The far end supports only this version of the format.
    #[error(
        "the far end speaks version {0} of the tunnel, and this one speaks {ours}: update the \
            older one",
        ours = crate::tunnel::wire::VERSION
    )]
    Version(u8),
    /// The far end has given a reason that this version does not know.
    #[error("the far end refuses the link for the unknown reason {0}")]
    Other(u8),
}

/// Byte that tells a dialler the reason of its refusal, or that it is accepted.
pub(super) fn verdict(refusal: Option<Refusal>) -> u8 {
    refusal.map_or(WELCOME, Refusal::code)
}

/// Reads the verdict of a far end of `version`.
pub(super) fn check(version: u8, verdict: u8) -> Result<(), Refusal> {
    match verdict {
        WELCOME => Ok(()),
        UNKNOWN_KEY => Err(Refusal::UnknownKey),
        OTHER_VERSION => Err(Refusal::Version(version)),
        other => Err(Refusal::Other(other)),
    }
}

impl Refusal {
    /// Reads the code with which a QUIC connection was closed; `None` unless it is that of
    /// [`Refusal::UnknownKey`]. The code of [`Refusal::Version`] does not tell the version.
    pub fn from_code(code: u8) -> Option<Refusal> {
        (code == UNKNOWN_KEY).then_some(Refusal::UnknownKey)
    }

    /// Code of the refusal in the handshake, which also closes a QUIC connection.
    pub fn code(self) -> u8 {
        match self {
            Refusal::UnknownKey => UNKNOWN_KEY,
            Refusal::Version(_) => OTHER_VERSION,
            Refusal::Other(code) => code,
        }
    }
}
