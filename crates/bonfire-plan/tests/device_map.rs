//! Device maps beside those of Hugging Face's accelerate, and what holds for all of them.
//!
//! `golden/device_maps.py` has made the golden ones.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;

use bonfire_plan::Bytes;
use bonfire_plan::device_map::{
    Budgets, DeviceMap, Inference, MapError, ModuleTree, Part, PartKind, Place, Strategy,
};
use proptest::prelude::*;
use serde_json::Value;

/// Where a map differs from accelerate's, and which of its faults is mended here.
const DIFFERENT: &[(Fault, &[usize])] = &[
    (
        Fault::Ties,
        &[10, 18, 51, 64, 70, 77, 87, 94, 95, 98, 103, 104, 116, 131, 149, 150, 173, 174, 189],
    ),
    (Fault::Gaps, &[25, 53, 76, 110]),
    (Fault::Room, &[58, 82, 152, 179]),
    (Fault::Buffers, &[14, 63, 66, 71, 79, 81, 130, 133, 159, 186]),
    (Fault::FirstOfClass, &[8]),
];

/// Faults of accelerate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It does not find what shares a parameter.
    Ties,
    /// `balanced_low_0` wants devices 0, 1, 2 and so on, with memory.
    Gaps,
    /// It keeps room for offloaded layers where there need be none.
    Room,
    /// Buffers of modules that are taken apart have no place.
    Buffers,
    /// `balanced` looks at the first module of a class.
    FirstOfClass,
}

/// A case of the golden file.
struct Case {
    parts: Vec<Part>,
    budgets: BTreeMap<Place, u64>,
    strategy: Strategy,
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
            kind: PartKind::Module { class: tree[0].as_str().unwrap().to_owned() },
        });
        parts.extend(tensors);
        parts.extend(list(&tree[2]).iter().map(|tensor| Part {
            path: below(&tensor[0]),
            kind: PartKind::Buffer { bytes: bytes(&tensor[1]) },
        }));
        let children = list(&tree[3]).iter().rev();
        pending.extend(children.map(|child| (below(&child[0]), &child[1])));
    }
    parts
}

impl Case {
    fn new(case: &Value) -> Self {
        let budgets = case[1].as_object().unwrap().iter();
        let budgets =
            budgets.map(|(place, bytes)| (place.parse().unwrap(), bytes.as_u64().unwrap()));
        let budgets: BTreeMap<Place, u64> = budgets.collect();
        let strategy: Strategy = case[2].as_str().unwrap().parse().unwrap();
        let mut inference =
            Inference::new(of(&budgets)).with_strategy(strategy).with_no_split(strings(&case[3]));
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
        Self { parts: parts(&case[0]), budgets, strategy, inference, expected }
    }

    /// Whether a fault shows in it, given the map that was found.
    fn shows(&self, fault: Fault, found: &DeviceMap) -> bool {
        let offloads = |map: &BTreeMap<String, Place>| map.values().any(|at| *at >= Place::Cpu);
        match (&self.expected, fault) {
            (Err(error), Fault::Ties) => error == "IndexError",
            (Err(error), Fault::Gaps) => error == "KeyError",
            (Err(_), _) | (Ok(_), Fault::Ties) => false,
            (Ok(_), Fault::Gaps) => {
                self.strategy == Strategy::BalancedLow0
                    && self.budgets.get(&Place::Device(0)) == Some(&0)
            }
            (Ok(map), Fault::Room) => offloads(map) && !offloads(&owned(found)),
            (Ok(_), Fault::Buffers) => self.parts.iter().any(|part| {
                let beside = |other: &Part| {
                    let parent = part.path.rsplit_once('.').map_or("", |(parent, _)| parent);
                    let below = other.path.strip_prefix(parent);
                    below.is_some_and(|below| below.contains('.') && !parent.is_empty())
                };
                matches!(part.kind, PartKind::Buffer { .. }) && self.parts.iter().any(beside)
            }),
            (Ok(_), Fault::FirstOfClass) => self.strategy != Strategy::Sequential,
        }
    }
}

fn of(budgets: &BTreeMap<Place, u64>) -> Budgets {
    budgets.iter().fold(Budgets::default(), |budgets, (place, bytes)| {
        budgets.with(*place, Bytes::new(*bytes))
    })
}

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/device_maps.json")).unwrap()
}

fn owned(map: &DeviceMap) -> BTreeMap<String, Place> {
    map.iter().map(|(path, place)| (path.to_owned(), place)).collect()
}

#[test]
fn maps_are_those_of_accelerate_but_for_its_faults() {
    let golden = golden();
    let cases = list(&golden["cases"]);
    assert_eq!(cases.len(), 200);
    let mut different: Vec<(Fault, Vec<usize>)> =
        DIFFERENT.iter().map(|(fault, _)| (*fault, Vec::new())).collect();
    for (number, case) in cases.iter().enumerate() {
        let case = Case::new(case);
        let tree = ModuleTree::new(case.parts.clone());
        let map = case.inference.infer(&tree).unwrap().map;
        map.check(&tree).unwrap();
        if case.expected.as_ref() == Ok(&owned(&map)) {
            continue;
        }
        let known = DIFFERENT.iter().position(|(_, known)| known.contains(&number));
        let Some(known) = known.filter(|&known| case.shows(DIFFERENT[known].0, &map)) else {
            panic!("case {number}: accelerate {:?}, here {map}", case.expected);
        };
        different[known].1.push(number);
    }
    for ((fault, found), (_, known)) in different.iter().zip(DIFFERENT) {
        assert_eq!(found, known, "{fault:?}");
    }
}

/// A parameter, by its path, bytes and number.
fn parameter(path: &str, bytes: u64, identity: u64) -> Part {
    Part { path: path.to_owned(), kind: PartKind::Parameter { bytes: Bytes::new(bytes), identity } }
}

fn module(path: &str, class: &str) -> Part {
    Part { path: path.to_owned(), kind: PartKind::Module { class: class.to_owned() } }
}

/// The map as text, on one line.
fn text(inference: &Inference, parts: impl IntoIterator<Item = Part>) -> String {
    let tree = ModuleTree::new(parts);
    let inferred = inference.infer(&tree).unwrap();
    inferred.map.check(&tree).unwrap();
    inferred.map.to_string().trim().replace('\n', ", ")
}

fn sequential<'a>(budgets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Inference {
    Inference::new(Budgets::new(budgets).unwrap()).with_strategy(Strategy::Sequential)
}

#[test]
fn what_shares_parameters_stays_together() {
    // With a parameter of a module that is taken apart; two of one module; through a third; names that end alike.
    for (bytes, expected, parts) in [
        (
            "45",
            "m.inner: 1, m.w: 0, x: 0, z: 1",
            vec![("x.w", 10, 1), ("m.w", 10, 1), ("m.inner.w", 30, 2), ("z.w", 31, 3)],
        ),
        (
            "25",
            "(all): 0",
            vec![("a.w", 10, 1), ("a.v", 5, 2), ("b.w", 10, 1), ("b.v", 5, 2), ("b.u", 5, 3)],
        ),
        (
            "45",
            "a: 0, b: 0, c: 0, d: 1, e: 1",
            vec![
                ("a.w", 9, 1),
                ("b.w", 9, 1),
                ("b.v", 9, 2),
                ("c.v", 9, 2),
                ("d.w", 26, 3),
                ("e.w", 27, 4),
            ],
        ),
        (
            "62",
            "1: 0, 11: 0, 2: 1, 3: 1",
            vec![("1.w", 12, 1), ("2.w", 22, 2), ("11.w", 12, 1), ("3.w", 50, 3)],
        ),
    ] {
        let parts = parts.into_iter();
        let parts = parts.map(|(path, bytes, identity)| parameter(path, bytes, identity));
        assert_eq!(text(&sequential([("0", bytes), ("1", "99")]), parts), expected);
    }
}

#[test]
fn every_place_is_used_by_its_number() {
    let layers = || (0..4_u64).map(|layer| parameter(&format!("{layer}.w"), 10, layer));
    let budgets = Budgets::new([("3", "1KB"), ("1", "1KB")]).unwrap();
    let inference = Inference::new(budgets).with_strategy(Strategy::BalancedLow0);
    assert_eq!(text(&inference, layers()), "(all): 3");
    // 40 / 2 and 1.25 layers, less the room for one.
    let budgets = Budgets::new([("3", "1KB"), ("1", "1KB")]).unwrap();
    let parts = text(&Inference::new(budgets), layers());
    assert_eq!(parts, "0: 1, 1: 1, 2: 3, 3: 3");
}

#[test]
fn a_model_that_fits_is_not_offloaded_to_keep_room() {
    let layers = || (0..4_u64).map(|layer| parameter(&format!("{layer}.w"), 10, layer));
    for (bytes, expected) in [("40", "(all): 0"), ("39", "0: 0, 1: 0, 2: cpu, 3: cpu")] {
        assert_eq!(text(&sequential([("0", bytes), ("cpu", "99")]), layers()), expected);
    }
    for (bytes, expected) in
        [("20", "0: 0, 1: cpu, 2: disk, 3: disk"), ("30", "0: 0, 1: 0, 2: cpu, 3: cpu")]
    {
        assert_eq!(text(&sequential([("0", bytes), ("cpu", "20")]), layers()), expected);
    }
}

#[test]
fn the_largest_of_a_class_counts_and_buffers_have_places() {
    let mut parts: Vec<Part> = (0..4_u64)
        .map(|layer| parameter(&format!("{layer}.w"), 10 + 30 * (layer / 3), layer))
        .collect();
    parts.extend((0..4).map(|layer| module(&layer.to_string(), "Block")));
    // 70 / 2 + 1.25 * 40 is more than the model but for its last layer.
    let budgets = Budgets::new([("0", "1KB"), ("1", "1KB")]).unwrap();
    let inference = Inference::new(budgets).with_no_split(["Block"]);
    assert_eq!(text(&inference, parts), "(all): 0");
    let buffer = PartKind::Buffer { bytes: Bytes::new(3) };
    let parts = [
        module("a", "Block"),
        Part { path: "a.mean".to_owned(), kind: buffer },
        parameter("a.one.w", 10, 1),
        parameter("a.two.w", 10, 2),
    ];
    assert_eq!(
        text(&sequential([("0", "20"), ("1", "99")]), parts),
        "a.mean: 1, a.one: 0, a.two: 0"
    );
}

#[test]
fn a_later_part_takes_the_place_of_one_that_does_not_fit() {
    let parts = || [parameter("a.w", 50, 1), parameter("b.w", 3, 2), parameter("c.w", 5, 3)];
    let inference = sequential([("0", "60"), ("1", "99")]);
    let plain = inference.infer(&ModuleTree::new(parts())).unwrap();
    assert!(plain.unused.is_empty());
    let inference = sequential([("0", "54"), ("1", "52"), ("2", "99")]);
    let tree = ModuleTree::new(parts());
    let plain = inference.infer(&tree).unwrap();
    assert_eq!(plain.map.place("b"), Some(Place::Device(2)));
    assert_eq!(plain.unused[0].to_string(), "nothing fits 0: give it 55 B, or split more classes");
    assert_eq!(text(&inference.with_fallback_allocation(), parts()), "a: 1, b: 0, c: 2");
}

#[test]
fn errors_say_everything_at_once() {
    let tree = ModuleTree::new([
        parameter("a.w", 4, 1),
        parameter("b.w", 4, 2),
        parameter("c.w", 4, 1),
        module("b", "Block"),
    ]);
    let map = DeviceMap::new([("a", "0"), ("c", "cpu"), ("x.y", "disk"), ("z", "0")]).unwrap();
    assert_eq!(
        map.check(&tree).unwrap_err().to_string(),
        "the device map does not fit the model: there is no x.y, z; no place for b.w; shared, but in different places: \
         a.w = c.w"
    );
    let all = DeviceMap::new([("", "1")]).unwrap();
    assert_eq!(all.check(&tree), Ok(()));
    let inference = sequential([("0", "9")]).with_no_split(["Blok"]);
    assert_eq!(
        inference.infer(&tree).unwrap_err().to_string(),
        "no module of the model is a Blok; its classes are Block"
    );
    let error = |place, bytes| Budgets::new([(place, bytes)]).unwrap_err().to_string();
    assert!(error("gpu", "1GB").contains("\"gpu\" is not a place"));
    assert!(error("0", "1XB").contains("the memory of 0: `1XB` is not a number of bytes"));
    assert!(matches!("none".parse::<Strategy>(), Err(MapError::UnknownStrategy(_))));
}

#[test]
fn memory_is_written_as_people_do() {
    for (text, bytes) in [
        ("4096", 4096),
        ("64K", 65_536),
        ("1GiB", 1 << 30),
        ("1.5gib", 3 << 29),
        ("10GB", 10_000_000_000),
        ("10Gb", 1_250_000_000),
        ("8Kb", 1000),
        ("0.5MB", 500_000),
        ("2 TiB", 2 << 40),
        ("0", 0),
    ] {
        assert_eq!(text.parse::<Bytes>().map(Bytes::get), Ok(bytes), "{text}");
    }
    for text in ["", "GB", "1.5", "-1GB", "1PB", "1e40GB", "ten", "infGB"] {
        assert!(text.parse::<Bytes>().is_err(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Every parameter has one place, places are filled in their order, and none has more than it may.
    #[test]
    fn places_are_filled_in_order_and_within_their_budgets(
        case in 0_usize..200,
        shares in prop::collection::vec(0_u64..150, 0..5),
        host in prop::option::of(0_u64..150),
        strategy in prop::sample::select(vec![Strategy::Sequential, Strategy::Balanced, Strategy::BalancedLow0]),
    ) {
        let golden = golden();
        let parts = parts(&golden["cases"][case][0]);
        let tree = ModuleTree::new(parts.clone());
        let share = |percent: u64| tree.bytes().get() * percent / 100;
        let devices = shares.iter().enumerate();
        let mut budgets: BTreeMap<Place, u64> =
            devices.map(|(device, &percent)| (Place::Device(device), share(percent))).collect();
        budgets.extend(host.map(|percent| (Place::Cpu, share(percent))));
        let map = Inference::new(of(&budgets)).with_strategy(strategy).infer(&tree).unwrap().map;
        map.check(&tree).unwrap();
        let paths: Vec<&str> = map.iter().map(|(path, _)| path).collect();
        for path in &paths {
            let above = path.match_indices('.').map(|(end, _)| &path[..end]);
            let once = above.into_iter().chain([""]).all(|above| above == *path || !paths.contains(&above));
            prop_assert!(once, "{} in {:?}", path, paths);
        }
        let (mut used, mut seen, mut order) = (BTreeMap::<Place, u64>::new(), Vec::new(), Vec::new());
        for part in &parts {
            let (bytes, tie) = match part.kind {
                PartKind::Module { .. } => continue,
                PartKind::Buffer { bytes } => (bytes, None),
                PartKind::Parameter { bytes, identity } => (bytes, Some(identity)),
            };
            let place = map.place(&part.path).unwrap();
            if tie.is_none_or(|tie| !seen.contains(&tie)) {
                *used.entry(place).or_default() += bytes.get();
            }
            seen.extend(tie);
            order.push(place);
        }
        used.remove(&Place::Disk);
        for (place, bytes) in used {
            prop_assert!(budgets.get(&place).is_some_and(|budget| bytes <= *budget), "{} of {}", bytes, place);
        }
        let has_buffers = parts.iter().any(|part| matches!(part.kind, PartKind::Buffer { .. }));
        let (count, unique) = (seen.len(), seen.iter().collect::<std::collections::BTreeSet<_>>().len());
        if count == unique && !has_buffers {
            prop_assert!(order.is_sorted(), "{:?}", order);
        }
    }
}
