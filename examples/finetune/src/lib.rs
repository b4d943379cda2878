//! A pretrained residual network, trained on a folder of pictures of other classes.
//!
//! `options.rs` is the command line, `data.rs` the pictures, `model.rs` the network and what of it is
//! trained, `train.rs` the epochs.

#![forbid(unsafe_code)]

pub mod data;
pub mod model;
pub mod options;
pub mod train;
