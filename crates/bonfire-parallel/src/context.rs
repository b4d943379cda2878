//! Context parallelism: ranks have different tokens of the same sequences.
//!
//! Only attention looks at other tokens. There, keys and values are sent around the ring of the ranks, and each rank
//! adds the attention to its present block to its output (Liu et al. 2023, arXiv 2310.01889). So no rank ever has all
//! keys, or a matrix of all scores. In the backward pass they are sent again, with their gradients.
//!
//! Where tokens do not look at later ones, equal runs of the sequence are unequal work. Therefore it is cut into two
//! chunks per rank, of which rank r has the r-th from the front and the r-th from the end: a zig-zag. Each rank then
//! computes half of a block for each block of another rank.

pub(crate) mod attention;
mod block;
pub(crate) mod ring;
pub(crate) mod zigzag;

#[cfg(test)]
mod tests;
