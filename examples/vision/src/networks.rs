//! The networks of the examples with pictures.
//!
//! `trunk.rs`, `resnet.rs`, `botnet.rs` and `densenet.rs` are the networks; they do not depend on ranks.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

pub mod attention;
pub mod block;
pub mod botnet;
pub mod densenet;
mod draw;
pub mod norm;
pub mod resnet;
pub mod trunk;

/// Counts the trained numbers of a model that was made for training. Means and variances that a normalisation keeps do
/// not count.
pub fn trained_numbers<M: Module>(model: &M) -> usize {
    struct Counter(usize);
    impl ModuleVisitor for Counter {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            if tensor.is_require_grad() {
                self.0 += tensor.shape().num_elements();
            }
        }
    }
    let mut counter = Counter(0);
    model.visit(&mut counter);
    counter.0
}
