//! Linux for Viaduct.
