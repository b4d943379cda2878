//! Budgets under which devices get about the same.

use std::collections::BTreeMap;

use super::{Budgets, ModuleTree, Place};
use crate::Bytes;

/// Lowers the budgets of all devices but the last to an even share of a model, and a layer more, because layers do not
/// divide. With `spares_first` the first gets only what the others have no room for.
pub(super) fn balanced(
    tree: &ModuleTree,
    budgets: &Budgets,
    no_split: &[String],
    spares_first: bool,
) -> Budgets {
    let mut places = budgets.places.clone();
    let is_used =
        |(place, bytes): &(&Place, &Bytes)| matches!(place, Place::Device(_)) && bytes.get() > 0;
    let devices = places.iter().filter(is_used);
    let devices: Vec<Place> = devices.map(|(place, _)| *place).collect();
    let [first, .., _] = devices[..] else {
        return budgets.clone();
    };
    let total = tree.bytes().get();
    let shares = devices.len() - usize::from(spares_first);
    let share = total / shares as u64 + buffer(tree, no_split);
    for place in &devices[..devices.len() - 1] {
        if !(spares_first && *place == first) {
            lower(&mut places, *place, share);
        }
    }
    if spares_first {
        let others: u64 = devices[1..].iter().map(|place| places[place].get()).sum();
        lower(&mut places, first, total.saturating_sub(others));
    }
    Budgets { places }
}

fn lower(places: &mut BTreeMap<Place, Bytes>, place: Place, most: u64) {
    let budget = places.entry(place);
    budget.and_modify(|bytes| *bytes = Bytes::new(most.min(bytes.get())));
}

/// How much more than its share a device may get: 1.25 times the largest module that stays whole, or the mean of the
/// innermost modules.
fn buffer(tree: &ModuleTree, no_split: &[String]) -> u64 {
    let whole = tree.all().skip(1).filter(|&node| {
        let class = tree.class(node);
        class.is_some_and(|class| no_split.iter().any(|one| one == class))
    });
    let whole = whole.map(|node| tree.bytes_of(node)).max().unwrap_or(0);
    let innermost = tree.all().skip(1).filter(|&node| {
        let is_filled = tree.class(node).is_some() && tree.has_tensors(node);
        is_filled && !tree.modules(node).any(|module| tree.has_tensors(module))
    });
    let innermost: Vec<i64> = innermost.map(|node| tree.bytes_of(node)).collect();
    let sum: i64 = innermost.iter().sum();
    let mean = (sum as f64 / innermost.len().max(1) as f64) as i64;
    (1.25 * whole.max(mean) as f64) as u64
}
