//! Freezes parameters, chosen by their names.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

use bonfire_train::trainable;

/// A pattern that names no trainable parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no trainable parameter is called {pattern}{}; `*` stands for any part of a name and `?` for one character",
    .nearest.as_ref().map_or_else(String::new, |name| format!(", did you mean {name}?"))
)]
pub struct UnknownParameter {
    /// The pattern as it was given.
    pub pattern: String,
    /// The most similar name, or beginning of names.
    pub nearest: Option<String>,
}

/// Freezes all parameters whose paths match one of `patterns`: they have no gradient from now on. [`Ddp`](crate::Ddp)
/// puts them in no bucket, and broadcasts the values of rank 0 once. Returns the names of the frozen parameters in the
/// order of the model's definition.
///
/// In a pattern `*` stands for any part of a path, dots included, and `?` for one character: `layer1.*`, `*.bias`. The
/// running statistics of normalization layers are not parameters; in training mode they are still updated. A model, or
/// a part of one, made on a device without autodiff is put in training mode.
///
/// # Errors
/// An error that names the nearest parameter, for a pattern that matches none.
pub fn freeze<M: Module>(
    model: M,
    patterns: &[impl AsRef<str>],
) -> Result<(M, Vec<String>), UnknownParameter> {
    choose(model, patterns, Side::Matching)
}

/// Freezes all parameters but those that match one of `patterns`; see [`freeze`]. `["fc.*"]` trains
/// the head of a network only.
///
/// # Errors
/// An error that names the nearest parameter, for a pattern that matches none.
pub fn freeze_all_but<M: Module>(
    model: M,
    patterns: &[impl AsRef<str>],
) -> Result<(M, Vec<String>), UnknownParameter> {
    choose(model, patterns, Side::Others)
}

/// The parameters to freeze: those that match, or the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Matching,
    Others,
}

fn choose<M: Module>(
    model: M,
    patterns: &[impl AsRef<str>],
    side: Side,
) -> Result<(M, Vec<String>), UnknownParameter> {
    let patterns: Vec<&str> = patterns.iter().map(AsRef::as_ref).collect();
    // Before names are compared: what is not in training mode yet has no gradients to turn off.
    let model = trainable(model);
    let mut lister = Lister::default();
    model.visit(&mut lister);
    for pattern in &patterns {
        if !lister.names.iter().any(|name| matches(pattern, name)) {
            return Err(UnknownParameter {
                pattern: (*pattern).to_owned(),
                nearest: nearest(pattern, &lister.names),
            });
        }
    }
    let mut freezer = Freezer { patterns, side, path: Vec::new(), frozen: Vec::new() };
    let model = model.map(&mut freezer);
    Ok((model, freezer.frozen))
}

/// Returns true if a name matches a pattern. After each `*`, only the latest has to be reconsidered when something
/// does not fit, so the time is bounded by the product of the lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut place) = (0, 0);
    // Behind the latest `*`, and how much of the name it does not stand for.
    let mut retry: Option<(usize, usize)> = None;
    while place < name.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                retry = Some((at, place));
            }
            Some(&expected) if expected == '?' || expected == name[place] => {
                (at, place) = (at + 1, place + 1);
            }
            _ => {
                let Some((behind, from)) = retry else {
                    return false;
                };
                (at, place) = (behind, from + 1);
                retry = Some((behind, from + 1));
            }
        }
    }
    pattern[at..].iter().all(|&rest| rest == '*')
}

fn nearest(pattern: &str, names: &[String]) -> Option<String> {
    let beginnings = |name: &String| {
        let ends: Vec<usize> = name.match_indices('.').map(|(at, _)| at).collect();
        let part = |end: usize| format!("{}.*", &name[..end]);
        ends.into_iter().map(part).chain([name.clone()]).collect::<Vec<_>>()
    };
    let likeness = |name: &str| strsim::jaro_winkler(pattern, name);
    names.iter().flat_map(beginnings).max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
}

#[derive(Default)]
struct Lister {
    path: Vec<String>,
    names: Vec<String>,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.names.push(self.path.join("."));
        }
    }
}

struct Freezer<'a> {
    patterns: Vec<&'a str>,
    side: Side,
    path: Vec<String>,
    frozen: Vec<String>,
}

impl ModuleMapper for Freezer<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let named = self.patterns.iter().any(|pattern| matches(pattern, &name));
        let chosen = named == (self.side == Side::Matching);
        if !chosen || !param.val().is_require_grad() {
            return param;
        }
        self.frozen.push(name);
        param.set_require_grad(false)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
