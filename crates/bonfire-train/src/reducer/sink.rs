//! How gradients get to a reducer that its hooks did not take while the backward pass ran.

use super::Reducer;
use crate::TrainError;
use crate::reducer::harvest::{Gradient, GradientSink, Site};
use bonfire_values::Entering;

/// After the backward pass: what has not been taken while it ran.
impl GradientSink for Reducer {
    fn site(&self) -> Site {
        Self::site(self)
    }

    fn wants(&self, parameter: usize) -> bool {
        !self.parameters[parameter].taken
    }

    fn take(&mut self, parameter: usize, gradient: Option<Gradient<'_>>) -> Result<(), TrainError> {
        self.put(parameter, gradient)
    }
}

/// Adds up micro-batches that do not travel by themselves.
pub(crate) struct Accumulate<'a> {
    pub(crate) reducer: &'a mut Reducer,
    pub(crate) entering: Entering,
}

impl GradientSink for Accumulate<'_> {
    fn site(&self) -> Site {
        self.reducer.site()
    }

    fn wants(&self, _parameter: usize) -> bool {
        true
    }

    fn take(&mut self, parameter: usize, gradient: Option<Gradient<'_>>) -> Result<(), TrainError> {
        if let Some(gradient) = gradient {
            let home = self.reducer.homes[parameter];
            self.reducer
                .buckets
                .accumulate(home, gradient, self.entering);
        }
        Ok(())
    }
}
