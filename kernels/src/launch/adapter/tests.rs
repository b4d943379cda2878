//! Every kernel on an adapter of wgpu against its reference; Mesa's software Vulkan will do.

use bytemuck::Pod;
use cubecl::Device;

use super::*;
use crate::cast::{self, FromF64};
use crate::element::{Arithmetic, FloatArithmetic, FloatElement, Fold};
use crate::reduce::{self, Role, Width};
use crate::scale;

mod values;

use values::Values;

/// The first adapter, or a line that says why there is none.
fn client(test: &str) -> Option<Client> {
    let found = std::panic::catch_unwind(|| Device::Wgpu(Default::default()).client());
    if found.is_err() {
        println!("{test} skipped: wgpu found no adapter; a software Vulkan driver will do");
    }
    found.ok()
}

/// Only for what an adapter lacks: other faults are the test's.
fn skip(test: &str, fault: &LaunchFault) {
    assert!(matches!(fault, LaunchFault::Unsupported { .. }), "{fault}");
    println!("{test} skipped: {fault}");
}

fn upload<T: Arithmetic>(client: &Client, elements: &[T]) -> Handle {
    client.create_from_slice(bytemuck::cast_slice(elements))
}

fn download<T: Arithmetic>(client: &Client, handle: &Handle) -> Vec<T> {
    let bytes = client
        .read_one(handle.clone())
        .expect("the kernel ran and its result can be read");
    bytemuck::pod_collect_to_vec(&bytes)
}

/// Reduces with every operation, shape and length, and compares the bits with the reference.
fn check_reduce<T: Values>(test: &str) {
    let Some(client) = client(test) else { return };
    let shapes = [
        vec![Role::Both; 2],
        vec![Role::Both; 3],
        vec![Role::Source, Role::Both, Role::Source],
        vec![Role::Target, Role::Source, Role::Target],
    ];
    for fold in Fold::ALL.into_iter().filter(|fold| fold.takes(T::ELEMENT)) {
        for (roles, elems) in shapes.iter().zip([1024, 1, 1003, 300_000]) {
            let wanted = Reduce::new(T::ELEMENT, fold, roles, Width::Vector)
                .expect("the fold takes these elements");
            let mut buffers: Vec<Vec<T>> = (0..roles.len() as u64)
                .map(|seed| T::values(seed, elems))
                .collect();
            let handles: Vec<Handle> = buffers.iter().map(|b| upload(&client, b)).collect();
            let extent = Extent { elems, divisor: 3 };
            if let Err(fault) = super::reduce(&client, &wanted, &handles, extent) {
                return skip(test, &fault);
            }
            let mut views: Vec<&mut [T]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            reduce::reference(&wanted, &mut views, extent.divisor);
            for (handle, buffer) in handles.iter().zip(&buffers) {
                let found: Vec<T> = download(&client, handle);
                T::assert_same(&found, buffer, &format!("{fold:?} {roles:?} of {elems}"));
            }
        }
    }
}

#[test]
fn f32_is_reduced_as_on_the_cpu() {
    check_reduce::<f32>("f32");
}

#[test]
fn f64_is_reduced_as_on_the_cpu() {
    check_reduce::<f64>("f64");
}

#[test]
fn f16_is_reduced_as_on_the_cpu() {
    check_reduce::<half::f16>("f16");
}

#[test]
fn bf16_is_reduced_as_on_the_cpu() {
    check_reduce::<half::bf16>("bf16");
}

#[test]
fn i32_is_reduced_as_on_the_cpu() {
    check_reduce::<i32>("i32");
}

#[test]
fn u32_is_reduced_as_on_the_cpu() {
    check_reduce::<u32>("u32");
}

#[test]
fn i64_is_reduced_as_on_the_cpu() {
    check_reduce::<i64>("i64");
}

#[test]
fn u64_is_reduced_as_on_the_cpu() {
    check_reduce::<u64>("u64");
}

#[test]
fn u8_is_reduced_as_on_the_cpu() {
    check_reduce::<u8>("u8");
}

#[test]
fn a_buffer_that_is_too_short_is_refused() {
    let Some(client) = client("a short buffer") else {
        return;
    };
    let buffers = [upload(&client, &[1_u32; 8]), upload(&client, &[1_u32; 4])];
    let sum = Reduce::new(Element::U32, Fold::Sum, &[Role::Both; 2], Width::Vector)
        .expect("integers are summed");
    let extent = Extent {
        elems: 8,
        divisor: 1,
    };
    let fault = LaunchFault::Short {
        buffer: 1,
        held: 16,
        wanted: 32,
    };
    assert_eq!(super::reduce(&client, &sum, &buffers, extent), Err(fault));
}

/// Scales buffers of several lengths.
fn check_scale<T: Values + FloatArithmetic>(test: &str, factor: T::Partial, wide: f64) {
    let Some(client) = client(test) else { return };
    for (width, elems) in [
        (Width::Vector, 4096),
        (Width::Vector, 1003),
        (Width::Element, 300_001),
    ] {
        let scale = Scale {
            element: T::FLOAT,
            width,
        };
        let mut buffer = T::values(1, elems);
        let handle = upload(&client, &buffer);
        if let Err(fault) = super::scale(&client, scale, &handle, elems, wide) {
            return skip(test, &fault);
        }
        scale::reference(&mut buffer, factor);
        let found: Vec<T> = download(&client, &handle);
        T::assert_same(&found, &buffer, &format!("{width:?} of {elems}"));
    }
}

#[test]
fn a_buffer_is_scaled_as_on_the_cpu() {
    check_scale::<f32>("scale of f32", 0.3, f64::from(0.3_f32));
    check_scale::<f64>("scale of f64", 0.3, 0.3);
    check_scale::<half::f16>("scale of f16", 0.3, f64::from(0.3_f32));
}

/// Converts buffers of several lengths, to nearest even.
fn check_cast<S, T>(test: &str, conversion: Conversion)
where
    S: Values + FloatArithmetic + Into<f64>,
    T: Values + FloatArithmetic + FromF64,
{
    let Some(client) = client(test) else { return };
    for elems in [1, 1003, 4096] {
        let cast = Cast {
            conversion,
            width: Width::Vector,
        };
        let source = S::values(2, elems);
        let mut target = vec![T::zeroed(); elems];
        let handles = [upload(&client, &source), upload(&client, &target)];
        let buffers = CastBuffers {
            source: &handles[0],
            target: &handles[1],
            elems,
        };
        if let Err(fault) = super::cast(&client, cast, buffers, Random::default()) {
            return skip(test, &fault);
        }
        cast::reference(&source, &mut target);
        let found: Vec<T> = download(&client, &handles[1]);
        T::assert_same(&found, &target, &format!("{conversion:?} of {elems}"));
    }
}

#[test]
fn floats_are_converted_as_on_the_cpu() {
    use FloatElement::{Bf16, F16, F64};
    check_cast::<f32, f64>("f32 to f64", Conversion::Narrow(F64));
    check_cast::<f64, f32>("f64 to f32", Conversion::Widen(F64));
    check_cast::<f32, half::f16>("f32 to f16", Conversion::Narrow(F16));
    check_cast::<half::f16, f32>("f16 to f32", Conversion::Widen(F16));
    check_cast::<f32, half::bf16>("f32 to bf16", Conversion::Narrow(Bf16));
}

#[test]
fn stochastic_rounding_has_the_bits_of_the_cpu() {
    let Some(client) = client("stochastic rounding") else {
        return;
    };
    let random = Random {
        seed: 0x1234_5678_9abc_def0,
        first: u64::from(u32::MAX) - 500,
    };
    for half in [Half::F16, Half::Bf16] {
        for elems in [1, 2, 1003, 100_000] {
            let mut source = f32::values(3, elems);
            // Magnitudes over the whole range of f16, its denormals and what is below them too.
            for (index, value) in source.iter_mut().enumerate() {
                *value *= f32::powi(2.0, (index % 48) as i32 - 30);
            }
            let mut target = vec![0_u16; elems.next_multiple_of(2)];
            let handles = [upload(&client, &source), upload(&client, &target)];
            let buffers = CastBuffers {
                source: &handles[0],
                target: &handles[1],
                elems,
            };
            let cast = Cast {
                conversion: Conversion::Stochastic(half),
                width: Width::Vector,
            };
            super::cast(&client, cast, buffers, random).expect("every adapter has words");
            cast::reference_stochastic(half, &source, &mut target[..elems], random);
            let found: Vec<u16> = download(&client, &handles[1]);
            for index in 0..target.len() {
                let (found, expected) = (found[index], target[index]);
                assert_eq!(found, expected, "{half:?} {index} of {elems}");
            }
        }
    }
}

/// The norm, against the reference with an error that an adapter may make by not fusing a product
/// with its addition: half a unit in the last place of each term.
fn check_norm<T: Values + FloatArithmetic<Partial: Pod + Into<f64>>>(test: &str, epsilon: f64) {
    let Some(client) = client(test) else { return };
    for elems in [0, 5, 1003, 1 << 20] {
        let norm = SquaredNorm {
            element: T::FLOAT,
            width: if elems % 8 == 0 {
                Width::Vector
            } else {
                Width::Element
            },
        };
        let finite = |element: &T| FloatArithmetic::is_finite(*element);
        let mut buffer = T::values(4, 2 * elems);
        buffer.retain(finite);
        buffer.truncate(elems);
        let handle = upload(&client, &buffer);
        let total = match super::squared_norm(&client, norm, &handle, elems) {
            Ok(total) => total,
            Err(fault) => return skip(test, &fault),
        };
        let bytes = client.read_one(total).expect("the kernels ran");
        let found: f64 = bytemuck::pod_read_unaligned::<T::Partial>(&bytes).into();
        let expected: f64 = norm::reference(norm, &buffer).into();
        let error = (found - expected).abs();
        // Terms of one unit, its lanes, the tree, the cubes: each rounds once more.
        let roundings = elems.div_ceil(norm::CUBES * norm::UNITS) + 32;
        let allowed = roundings as f64 * epsilon * expected;
        assert!(
            error <= allowed,
            "{test} of {elems}: {found}, not {expected}"
        );
    }
}

#[test]
fn the_norm_is_that_of_the_cpu() {
    check_norm::<f32>("norm of f32", f64::from(f32::EPSILON));
    check_norm::<f64>("norm of f64", f64::EPSILON);
    check_norm::<half::f16>("norm of f16", f64::from(f32::EPSILON));
}

#[test]
fn one_element_that_is_not_finite_is_found_wherever_it_is() {
    let Some(client) = client("the search for NaN") else {
        return;
    };
    for (width, elems) in [(Width::Vector, 4096), (Width::Element, 1003)] {
        let search = NonFinite {
            element: FloatElement::F32,
            width,
        };
        let fault = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let places = [None, Some(0), Some(elems / 2), Some(elems - 1)];
        for (index, place) in places.into_iter().enumerate() {
            let mut buffer = vec![f32::MAX; elems];
            if let Some(place) = place {
                buffer[place] = fault[index - 1];
            }
            let flag = upload(&client, &[0_u32]);
            let handle = upload(&client, &buffer);
            super::non_finite(&client, search, &handle, elems, &flag).expect("f32 is supported");
            let found: Vec<u32> = download(&client, &flag);
            assert_eq!(found, [u32::from(place.is_some())], "{place:?} of {elems}");
        }
    }
}

#[test]
fn segments_are_copied_there_and_back() {
    let Some(client) = client("the copy of segments") else {
        return;
    };
    let segment = |source, target, elems| Segment {
        source,
        target,
        elems,
    };
    // Together 40 000 words, out of order, one of them longer than a tile, one empty.
    let segments = [
        segment(50_000, 0, 20_000),
        segment(3, 20_000, 1),
        segment(100, 20_001, 0),
        segment(1000, 20_001, 19_999),
    ];
    let pack = Pack {
        element: Element::F32,
    };
    let source = u32::values(5, 70_000);
    let mut bucket = vec![7_u32; 40_010];
    let handles = [upload(&client, &source), upload(&client, &bucket)];
    super::pack(&client, pack, &segments, &handles[0], &handles[1]).expect("they fit");
    crate::pack::reference(&segments, &source, &mut bucket);
    assert_eq!(download::<u32>(&client, &handles[1]), bucket);

    let back = segments.map(Segment::reversed);
    let empty = upload(&client, &vec![0_u32; 70_000]);
    super::pack(&client, pack, &back, &handles[1], &empty).expect("they fit");
    let mut expected = vec![0; 70_000];
    crate::pack::reference(&back, &bucket, &mut expected);
    assert_eq!(download::<u32>(&client, &empty), expected);
}
