//! The reference against results worked out by hand.

use half::{bf16, f16};

use super::*;

fn in_place<T: Arithmetic>(fold: Fold, ranks: &[&[T]], divisor: u32) -> Vec<T> {
    let roles = vec![Role::Both; ranks.len()];
    let reduce = Reduce::new(T::ELEMENT, fold, &roles, Width::Vector).unwrap();
    let mut buffers: Vec<Vec<T>> = ranks.iter().map(|rank| rank.to_vec()).collect();
    let mut views: Vec<&mut [T]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
    reference(&reduce, &mut views, divisor);
    for buffer in &buffers[1..] {
        assert_eq!(bytes(buffer), bytes(&buffers[0]), "all targets get the same bits");
    }
    buffers.swap_remove(0)
}

fn bytes<T: Arithmetic>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

#[test]
fn floats_are_summed_in_the_order_of_the_sources() {
    // 2^24 + 1 is not an f32: the order decides.
    let big = 16_777_216.0_f32;
    assert_eq!(in_place(Fold::Sum, &[&[big], &[1.0], &[1.0]], 0), [big]);
    assert_eq!(in_place(Fold::Sum, &[&[1.0], &[1.0], &[big]], 0), [big + 2.0]);
}

#[test]
fn sixteen_bit_floats_are_rounded_once() {
    // Rounded after each step, 256 + 1 + 1 would stay 256 in bf16, and 2048 + 1 + 1 in f16.
    let bf = |value: f32| bf16::from_f32(value);
    let sum = in_place(Fold::Sum, &[&[bf(256.0)], &[bf(1.0)], &[bf(1.0)]], 0);
    assert_eq!(sum, [bf(258.0)]);
    let half = |value: f32| f16::from_f32(value);
    let sum = in_place(Fold::Sum, &[&[half(2048.0)], &[half(1.0)], &[half(1.0)]], 0);
    assert_eq!(sum, [half(2050.0)]);
    // 3 * 40000 is no f16, but its third is.
    let large = [half(40_000.0)];
    assert_eq!(in_place(Fold::Mean, &[&large, &large, &large], 3), large);
}

#[test]
fn a_mean_is_divided_not_multiplied_by_a_reciprocal() {
    let sum = 1.0_f32 + 4.0;
    assert_ne!(sum / 49.0, sum * (1.0 / 49.0), "5 and 49 tell the two apart");
    assert_eq!(in_place(Fold::Mean, &[&[1.0_f32], &[4.0]], 49), [sum / 49.0]);
}

#[test]
fn integers_wrap_around_and_are_divided_towards_zero() {
    assert_eq!(in_place(Fold::Sum, &[&[200_u8], &[100]], 0), [44]);
    assert_eq!(in_place(Fold::Product, &[&[i32::MIN], &[3]], 0), [i32::MIN]);
    assert_eq!(in_place(Fold::Mean, &[&[-4_i64], &[-3]], 2), [-3]);
    assert_eq!(in_place(Fold::Mean, &[&[100_i8], &[100]], 3), [-18]);
    assert_eq!(in_place(Fold::Mean, &[&[200_u8], &[55]], 256), [0]);
}

#[test]
fn nan_is_never_hidden() {
    for fold in [Fold::Min, Fold::Max] {
        for ranks in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            let [left, right] = ranks.map(|value| [value]);
            assert!(in_place(fold, &[&left, &right], 0)[0].is_nan(), "{fold:?}");
        }
    }
    assert_eq!(in_place(Fold::Min, &[&[3.0_f64], &[-1.0]], 0), [-1.0]);
    assert_eq!(in_place(Fold::Max, &[&[3.0_f64], &[-1.0]], 0), [3.0]);
}

#[test]
fn minimum_and_maximum_do_not_depend_on_the_order() {
    let odd_nan = f32::from_bits(0xffc0_1234);
    for fold in [Fold::Min, Fold::Max] {
        for ranks in [[odd_nan, 1.0], [1.0, odd_nan], [odd_nan, f32::NAN]] {
            let [left, right] = ranks.map(|value| [value]);
            let found = in_place(fold, &[&left, &right], 0)[0];
            assert_eq!(found.to_bits(), f32::NAN.to_bits(), "{fold:?}");
        }
        let zero = if fold == Fold::Min { -0.0_f64 } else { 0.0 };
        for ranks in [[0.0_f64, -0.0], [-0.0, 0.0]] {
            let [left, right] = ranks.map(|value| [value]);
            let found = in_place(fold, &[&left, &right], 0)[0];
            assert_eq!(found.to_bits(), zero.to_bits(), "{fold:?}");
        }
    }
    let [left, right] = [bf16::from_bits(0xffff), bf16::ONE].map(|value| [value]);
    assert_eq!(in_place(Fold::Max, &[&left, &right], 0)[0].to_bits(), bf16::NAN.to_bits());
}

#[test]
fn only_targets_are_written_and_only_sources_are_read() {
    let roles = [Role::Source, Role::Target, Role::Both];
    let reduce = Reduce::new(Element::U32, Fold::Or, &roles, Width::Element).unwrap();
    let (mut first, mut second, mut third) = ([1_u32], [64_u32], [4_u32]);
    reference(&reduce, &mut [&mut first, &mut second, &mut third], 1);
    assert_eq!([first, second, third], [[1], [5], [5]]);
}

#[test]
fn a_reduction_that_cannot_be_is_refused() {
    let make = |fold, roles: &[Role]| Reduce::new(Element::F32, fold, roles, Width::Vector);
    let fault = ReduceError::Fold { element: Element::F32, fold: Fold::Xor };
    assert_eq!(make(Fold::Xor, &[Role::Both]), Err(fault));
    assert_eq!(make(Fold::Sum, &[Role::Target]), Err(ReduceError::Roles));
    assert_eq!(make(Fold::Sum, &[Role::Source; 2]), Err(ReduceError::Roles));
    for count in [0, BUFFERS_MAX + 1] {
        let fault = ReduceError::Buffers { count };
        assert_eq!(make(Fold::Sum, &vec![Role::Both; count]), Err(fault));
    }
}

#[test]
fn a_vector_has_16_bytes() {
    assert_eq!(Width::Vector.elems(Element::Bf16), 8);
    assert_eq!(Width::Vector.align_bytes(Element::F64), 16);
    assert_eq!(Width::Element.align_bytes(Element::F64), 8);
}
