//! Context parallelism: ranks have different tokens of the same sequences.
//!
//! Only attention looks at other tokens. There, keys and values travel around the ring of the ranks, and each rank adds
//! to its output what its queries find in the block that is with it (Liu et al. 2023, arXiv 2310.01889); so no rank ever
//! has all keys, or a matrix of all scores. In the backward pass they travel again, and their gradients with them.
//!
//! Where tokens do not look at later ones, equal runs of the sequence are unequal work. Therefore it is cut into two
//! chunks per rank, of which rank r has the r-th from the front and the r-th from the end: a zig-zag. Each rank then has
//! half of a block to compute for each block of another's that is with it.

pub(crate) mod attention;
mod block;
pub(crate) mod ring;
pub(crate) mod zigzag;

#[cfg(test)]
mod tests;
