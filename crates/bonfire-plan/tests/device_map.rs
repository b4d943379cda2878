//! Device maps beside those of Hugging Face's accelerate, and what holds for all of them.
//!
//! `golden/device_maps.py` has made the golden ones.

use std::collections::{BTreeMap, BTreeSet};

use bonfire_plan::Bytes;
use bonfire_plan::device_map::{
    Budgets, DeviceMap, Inference, Inferred, MapError, ModuleTree, Part, PartKind, Place, Strategy,
};
use proptest::prelude::*;
use serde_json::Value;

/// Why a map differs from accelerate's: which of its faults is mended here.
const DIFFERENT: &[(usize, &str)] = &[];

/// A case of the golden file.
struct Case {
    parts: Vec<Part>,
    inference: Inference,
    /// Accelerate's map, or the name of its error.
    expected: Result<BTreeMap<String, Place>, String>,
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().into_iter().flatten();
    list.map(|value| value.as_str().unwrap())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// The parts of a tree, in the order of a visit.
fn parts(tree: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut pending = vec![(String::new(), tree)];
    while let Some((path, tree)) = pending.pop() {
        let below = |name: &Value| {
            let name = name.as_str().unwrap();
            [path.as_str(), name].join(if path.is_empty() { "" } else { "." })
        };
        let bytes = |value: &Value| Bytes::new(value.as_u64().unwrap());
        let tensors = list(&tree[1]).iter().map(|tensor| Part {
            path: below(&tensor[0]),
            kind: PartKind::Parameter {
                bytes: bytes(&tensor[1]),
                identity: tensor[2].as_u64().unwrap(),
            },
        });
        parts.push(Part {
            path: path.clone(),
            kind: PartKind::Module {
                class: tree[0].as_str().unwrap().to_owned(),
            },
        });
        parts.extend(tensors);
        parts.extend(list(&tree[2]).iter().map(|tensor| Part {
            path: below(&tensor[0]),
            kind: PartKind::Buffer {
                bytes: bytes(&tensor[1]),
            },
        }));
        let children = list(&tree[3]).iter().rev();
        pending.extend(children.map(|child| (below(&child[0]), &child[1])));
    }
    parts
}

impl Case {
    fn new(case: &Value) -> Self {
        let budgets = case[1].as_object().unwrap().iter();
        let budgets = budgets.fold(Budgets::default(), |budgets, (place, bytes)| {
            budgets.with(place.parse().unwrap(), Bytes::new(bytes.as_u64().unwrap()))
        });
        let strategy: Strategy = case[2].as_str().unwrap().parse().unwrap();
        let mut inference = Inference::new(budgets)
            .with_strategy(strategy)
            .with_no_split(strings(&case[3]));
        if case[4].as_bool().unwrap() {
            inference = inference.with_fallback_allocation();
        }
        let expected = match &case[5] {
            Value::String(error) => Err(error.clone()),
            map => Ok(map
                .as_object()
                .unwrap()
                .iter()
                .map(|(path, place)| (path.clone(), place.as_str().unwrap().parse().unwrap()))
                .collect()),
        };
        Self {
            parts: parts(&case[0]),
            inference,
            expected,
        }
    }
}

fn owned(map: &DeviceMap) -> BTreeMap<String, Place> {
    map.iter()
        .map(|(path, place)| (path.to_owned(), place))
        .collect()
}

#[test]
fn maps_are_those_of_accelerate_but_for_its_faults() {
    let golden: Value = serde_json::from_str(include_str!("golden/device_maps.json")).unwrap();
    let cases = list(&golden["cases"]);
    assert_eq!(cases.len(), 200);
    let mut different = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let case = Case::new(case);
        let tree = ModuleTree::new(case.parts);
        let found = case.inference.infer(&tree).unwrap();
        found.map.check(&tree).unwrap();
        if case.expected.as_ref() != Ok(&owned(&found.map)) {
            println!("{number}: {:?}\n  {:?}", case.expected, owned(&found.map));
            different.push(number);
        }
    }
    let known: Vec<usize> = DIFFERENT.iter().map(|(number, _)| *number).collect();
    assert_eq!(different, known);
}
