//! The schedules that there are.

use crate::types::named_codes;

named_codes! {
    /// A way to order the passes of a pipeline.
    pub enum Kind as "pipeline schedule" {
        /// All forward passes, then all backward passes (Huang et al. 2018, arXiv 1811.06965).
        GPipe = 1, "gpipe";
        /// A backward pass after each forward pass as soon as there is one to do: PipeDream-flush
        /// (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1).
        OneForwardOneBackward = 2, "1f1b";
        /// The same with several stages on each rank, distributed round the ranks (the same, section 2.2.2).
        Interleaved = 3, "interleaved";
        /// 1F1B whose weight gradients fill the bubble, with the activations of 1F1B's first rank on every
        /// rank (Qi et al. 2023, arXiv 2401.10241, section 3.1).
        ZeroBubbleH1 = 4, "zb_h1";
        /// Two stages on each rank, placed in a V, so that the first and the last are on rank 0
        /// (the same, section 6).
        ZeroBubbleV = 5, "zbv";
    }
}
