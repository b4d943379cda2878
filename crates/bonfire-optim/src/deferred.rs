//! Factors of gradients: an optimizer that has a handle on them multiplies as it reads.

use std::sync::Arc;

use bonfire_sys::lock::Mutex;

use crate::gradient::Factors;

/// A handle that passes optimizers the pending factors of gradients: the factor of clipping, and one over the scale of
/// the loss. They multiply as they read, which saves a pass over the memory of all gradients. Every optimizer of a
/// module has to have it. Each rank makes its own.
///
/// ```
/// # mod bonfire { pub mod optim { pub use bonfire_optim::*; } }
/// use bonfire::optim::{AdamWConfig, DeferredScale};
/// use burn::optim::ModuleOptimizer;
///
/// let deferred = DeferredScale::default();
/// let adamw = AdamWConfig::new().build().with_deferred_scale(deferred.clone());
/// let optimizer = ModuleOptimizer::from(adamw);
/// // In each step: ddp.step_with(&mut optimizer, rate, gradients, options.with_deferred_scale(&deferred))
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeferredScale(Arc<Mutex<Option<Step>>>);

#[derive(Debug)]
struct Step {
    factors: Factors,
    taken: usize,
}

impl DeferredScale {
    /// Runs a step in which optimizers that have this handle multiply. Returns how many gradients they did it to.
    ///
    /// # Panics
    /// Where another step with this handle has not ended.
    #[doc(hidden)]
    pub fn during<R>(&self, factors: Factors, step: impl FnOnce() -> R) -> (R, usize) {
        self.begin(factors);
        let under_way = UnderWay(self);
        let result = step();
        let taken = self.0.lock().as_ref().map_or(0, |step| step.taken);
        drop(under_way);
        (result, taken)
    }

    #[track_caller]
    fn begin(&self, factors: Factors) {
        let mut step = self.0.lock();
        let is_free = step.is_none();
        if is_free {
            *step = Some(Step { factors, taken: 0 });
        }
        drop(step);
        assert!(is_free, "a DeferredScale is for one rank: each rank makes its own");
    }

    pub(crate) fn take(&self) -> Factors {
        let mut step = self.0.lock();
        step.as_mut().map_or_else(Factors::default, |step| {
            step.taken += 1;
            step.factors.clone()
        })
    }
}

/// Clears the step when dropped, however it ends.
struct UnderWay<'a>(&'a DeferredScale);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}
