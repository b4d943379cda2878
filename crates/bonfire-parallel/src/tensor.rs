//! Layers of which each rank has a part.
//!
//! Each is cut from an ordinary layer of Burn, and can be put together to one again. So a model is initialised, or
//! loaded from any file, as a whole, and starts from the same parameters on every mesh.

pub(crate) mod cross_entropy;
pub(crate) mod divided;
pub(crate) mod embedding;
pub(crate) mod linear;
mod part;
pub(crate) mod sequence;

#[cfg(test)]
mod tests;
