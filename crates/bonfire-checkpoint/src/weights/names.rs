//! Maps the names of a file to those of a model.

use std::collections::{BTreeMap, BTreeSet};

use burn_store::burn_pack::Tensor as StoredTensor;

/// The prefix that a file's names have and a model's have not: `module.` of PyTorch's wrappers, `state_dict.` of a
/// checkpoint that has more in it. There is one if no name begins as the model's do, and if most of what the model
/// begins with comes behind one prefix, and behind that alone.
pub(super) fn prefix(in_file: &[&str], in_model: &[&str]) -> Option<String> {
    let heads: BTreeSet<&str> = in_model.iter().map(|name| head(name)).collect();
    let mut behind: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for name in in_file {
        let starts = name.match_indices('.').map(|(dot, _)| dot + 1);
        let start = [0].into_iter().chain(starts);
        let found = start.into_iter().find(|&at| heads.contains(head(&name[at..])));
        if let Some(at) = found {
            behind.entry(&name[..at]).or_default().insert(head(&name[at..]));
        }
    }
    let (prefix, found) = behind.pop_first()?;
    let is_alone = behind.is_empty() && !prefix.is_empty();
    (is_alone && 2 * found.len() >= heads.len()).then(|| prefix.to_owned())
}

fn head(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

pub(super) fn by_name(
    tensors: Vec<StoredTensor>,
) -> Result<BTreeMap<String, StoredTensor>, String> {
    let mut named = BTreeMap::new();
    for tensor in tensors {
        if let Some(other) = named.insert(tensor.name.clone(), tensor) {
            return Err(other.name);
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: [&str; 3] = ["conv1.weight", "layer1.0.conv1.weight", "fc.bias"];

    #[test]
    fn a_wrapper_of_the_whole_model_is_found() {
        for (in_file, expected) in [
            (&["conv1.weight", "fc.bias"][..], None),
            (&["module.conv1.weight", "module.layer1.0.bn.weight"], Some("module.")),
            (
                &[
                    "epoch",
                    "optimizer.state.0.step",
                    "state_dict.module.conv1.weight",
                    "state_dict.module.fc.bias",
                ],
                Some("state_dict.module."),
            ),
            // Which of the two is not for us to say.
            (&["model.conv1.weight", "model.fc.bias", "ema.conv1.weight", "ema.fc.bias"], None),
            // One layer of that name is by chance.
            (&["head.fc.bias", "trunk.0.weight"], None),
            (&["blocks.0.weight"], None),
        ] {
            assert_eq!(prefix(in_file, &MODEL).as_deref(), expected, "{in_file:?}");
        }
    }
}
