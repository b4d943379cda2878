//! Which parameters the ranks of a world have parts of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_plan::Cut;
use burn::module::ParamId;

/// How parameters are divided. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts(Arc<Mutex<HashMap<ParamId, Cut>>>);

impl Cuts {
    pub(crate) fn note(&self, parameter: ParamId, cut: Cut) {
        let mut cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.insert(parameter, cut);
    }

    pub(crate) fn get(&self, parameter: ParamId) -> Option<Cut> {
        let cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.get(&parameter).copied()
    }
}
