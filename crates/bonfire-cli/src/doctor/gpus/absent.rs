//! A program that was built without CUDA knows of no GPU.

use super::Gpus;

pub(crate) fn gpus() -> Gpus {
    Gpus::Missing {
        reason: "this program was built without CUDA: build it with `--features cuda`".to_owned(),
    }
}
