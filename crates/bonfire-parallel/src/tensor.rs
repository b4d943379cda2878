//! Layers that are divided among ranks.
//!
//! Each is cut from an ordinary layer of Burn, and can be joined to one again. So a model is initialised, or loaded
//! from any file, before it is cut, and starts from the same parameters on every mesh.

pub(crate) mod cross_entropy;
pub(crate) mod embedding;
pub(crate) mod linear;
mod part;
pub(crate) mod sequence;

#[cfg(test)]
mod tests;
