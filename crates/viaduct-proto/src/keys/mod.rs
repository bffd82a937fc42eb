//! Keys of sites, and Noise with the caller's randomness: what gateways and tunnels have in common
//! where they prove to each other who they are.

mod noise;
mod site;

pub use noise::Entropy;
pub(crate) use noise::Resolver;
pub(crate) use site::Shared;
pub use site::{KeyError, PublicKey, SecretKey};
