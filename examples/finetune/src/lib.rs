//! A pretrained residual network, trained on a folder of pictures of other classes.
//!
//! `options.rs` is the command line, `data.rs` the pictures, `model.rs` the network and its trained layers, `train.rs`
//! the epochs.

#![expect(missing_docs, reason = "an example: the names say it")]
#![forbid(unsafe_code)]

pub mod data;
pub mod model;
pub mod options;
pub mod train;
