//! Shares of classes of many sizes.

use proptest::prelude::*;

use super::*;
use crate::images::PictureSize;
use crate::images::fixtures::plain;

/// Pictures of classes of given sizes.
#[derive(Debug)]
struct Classes {
    names: Vec<String>,
    labels: Vec<usize>,
}

impl Classes {
    fn shared(sizes: &[usize]) -> Arc<dyn Pictures> {
        let of_class = |(label, &size): (usize, &usize)| std::iter::repeat_n(label, size);
        Arc::new(Self {
            names: (0..sizes.len()).map(|class| format!("class {class}")).collect(),
            labels: sizes.iter().enumerate().flat_map(of_class).collect(),
        })
    }
}

impl Pictures for Classes {
    fn name(&self) -> &str {
        "the test"
    }
    fn classes(&self) -> &[String] {
        &self.names
    }
    fn labels(&self) -> &[usize] {
        &self.labels
    }
    fn picture(&self, index: usize) -> Result<Picture, PictureError> {
        Ok(plain(1 + index, [0; 3]))
    }
}

fn members(subset: &Subset, class: usize) -> usize {
    subset.labels().iter().filter(|&&label| label == class).count()
}

proptest! {
    #[test]
    fn every_picture_is_in_one_part_and_every_class_in_both(
        sizes in prop::collection::vec(2_usize..60, 1..6), held_out in 0.01_f64..0.99,
        seed in any::<u64>(),
    ) {
        let source = Classes::shared(&sizes);
        let (kept, held) = split_pictures(&source, held_out, seed).unwrap();
        let mut all = [kept.indices(), held.indices()].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..source.count()).collect::<Vec<_>>());
        for (class, &size) in sizes.iter().enumerate() {
            let share = ((size as f64 * held_out).round() as usize).clamp(1, size - 1);
            prop_assert_eq!(members(&held, class), share);
        }
        let (again, _) = split_pictures(&source, held_out, seed).unwrap();
        prop_assert_eq!(again.indices(), kept.indices());
    }
}

#[test]
fn another_seed_holds_out_others_and_labels_go_with_pictures() {
    let source = Classes::shared(&[50, 50]);
    let (_, held) = split_pictures(&source, 0.2, 1).unwrap();
    let (_, other) = split_pictures(&source, 0.2, 2).unwrap();
    assert_ne!(held.indices(), other.indices());
    for (place, &index) in held.indices().iter().enumerate() {
        assert_eq!(held.labels()[place], usize::from(index >= 50));
        let picture = held.picture(place).unwrap();
        assert_eq!(picture.size(), PictureSize::square(1 + index));
    }
}

#[test]
fn what_cannot_be_divided_is_named() {
    let error = |sizes: &[usize], share| {
        let error = split_pictures(&Classes::shared(sizes), share, 0).unwrap_err();
        error.to_string()
    };
    let lonely = error(&[3, 1], 0.5);
    assert!(lonely.contains("class 1 has only one picture"), "{lonely}");
    for share in [0.0, 1.0, -1.0, f64::NAN] {
        let wrong = error(&[3], share);
        assert!(wrong.contains("number between 0 and 1"), "{wrong}");
    }
}
