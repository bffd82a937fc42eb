//! Keys of sites, and Noise with the caller's randomness, as gateways and tunnels use them to
//! authenticate each other.

mod noise;
mod site;

pub use noise::Entropy;
pub(crate) use noise::{Resolver, random};
pub(crate) use site::SharedSecret;
pub use site::{KeyError, PublicKey, SecretKey};
