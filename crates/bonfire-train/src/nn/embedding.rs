//! The lookup of vectors in a table.

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(all(test, feature = "cuda"))]
mod tests;

use burn::tensor::{Int, Tensor, module};

/// Looks up rows of `table`, `[rows, width]`, by `indices`, `[batch, tokens]`: returns `[batch, tokens, width]`, as
/// Burn's [`embedding`](module::embedding) does. Indices must be below the number of rows, which is not checked.
///
/// On CUDA devices the gradient of the table is computed by one block for each token, where Burn has one thread for each
/// column. A row's gradient is summed in f32, in the order of its tokens, and rounded once: its bits do not depend on
/// the device. On other devices it calls Burn's.
pub fn embedding(table: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
    #[cfg(feature = "cuda")]
    if device::is_there(&table, &indices) {
        let ([rows, _], kept) = (table.dims(), indices.clone().without_autodiff());
        let forward = |table| module::embedding(table, indices);
        return crate::custom_gradient(table, forward, move |gradient| {
            device::sums_of_rows(gradient, kept, rows)
        });
    }
    module::embedding(table, indices)
}
