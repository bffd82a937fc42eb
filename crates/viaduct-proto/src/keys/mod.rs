//! Keys of sites, and Noise with randomness from the caller. Gateways and tunnels use both to
//! authenticate each other.

mod noise;
mod site;

pub use noise::Entropy;
pub(crate) use noise::{Resolver, random};
pub(crate) use site::SharedSecret;
pub use site::{KeyError, PublicKey, SecretKey};
