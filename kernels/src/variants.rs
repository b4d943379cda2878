//! The kernels that tests compile and compare: every element type with every operation, and every
//! shape of buffers with one of them.

use crate::element::{Element, FloatElement, Fold};
use crate::pack::Pack;
use crate::reduce::{Reduce, Role, Width};
use crate::scale::Scale;

const WIDTHS: [Width; 2] = [Width::Vector, Width::Element];

#[must_use]
pub fn reductions() -> Vec<Reduce> {
    let mut variants = Vec::new();
    for element in Element::ALL {
        for fold in Fold::ALL.into_iter().filter(|fold| fold.takes(element)) {
            for width in WIDTHS {
                variants.push((element, fold, vec![Role::Both; 2], width));
            }
        }
    }
    for element in [Element::F32, Element::Bf16, Element::I64] {
        for roles in shapes() {
            variants.push((element, Fold::Sum, roles, Width::Vector));
        }
    }
    let made = variants.iter().map(|(element, fold, roles, width)| {
        Reduce::new(*element, *fold, roles, *width).expect("each fold takes its elements")
    });
    made.collect()
}

/// One buffer, direct all-reduces, reduce-scatters with the target at either end, a reduction into
/// a buffer of its own, broadcasts.
fn shapes() -> Vec<Vec<Role>> {
    use Role::{Both, Source, Target};
    vec![
        vec![Both],
        vec![Both; 3],
        vec![Both; 8],
        vec![Both; 64],
        vec![Both, Source],
        vec![Source, Source, Both],
        vec![Source, Source, Source, Target],
        vec![Target, Source, Target, Target],
    ]
}

fn floats() -> impl Iterator<Item = (FloatElement, Width)> {
    let widths = |element| WIDTHS.map(|width| (element, width));
    FloatElement::ALL.into_iter().flat_map(widths)
}

#[must_use]
pub fn scales() -> Vec<Scale> {
    let scale = |(element, width)| Scale { element, width };
    floats().map(scale).collect()
}

#[must_use]
pub fn packs() -> Vec<Pack> {
    let elements = [Element::U8, Element::Bf16, Element::F32, Element::F64];
    elements.map(|element| Pack { element }).to_vec()
}
