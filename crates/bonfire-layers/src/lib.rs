//! Layers of networks on slices of 32-bit floats, forwards and backwards: [`Convolution`] and [`BatchNorm`].
//!
//! Computes in vectors as wide as the machine has them, on all threads of the rayon pool that it is called in. Sums have
//! a fixed order, whatever the number of threads; where the processor has fused multiplication and addition, they are
//! rounded less often. Knows neither tensors nor graphs.

#![forbid(unsafe_code)]

mod batch_norm;
mod convolution;

pub use batch_norm::{BatchNorm, Moments};
pub use convolution::{Convolution, Gradients, Wanted, Window};

use rayon::prelude::*;

fn in_pieces<T: Send>(target: &mut [T], len: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    if target.is_empty() {
        return;
    }
    if rayon::current_num_threads() == 1 {
        // Without waiting for another thread.
        let pieces = target.chunks_mut(len).enumerate();
        return pieces.for_each(|(index, piece)| run(index, piece));
    }
    let pieces = target.par_chunks_mut(len).enumerate();
    pieces.for_each(|(index, piece)| run(index, piece));
}
