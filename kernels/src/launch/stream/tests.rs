//! What can be tested without a device, and a reduction on one where there is one.

use bonfire_cuda::{Device, DeviceRegion, Driver, Priority};

use super::pack::{Range, check_ranges};
use super::*;
use crate::element::{Element, Fold};
use crate::reduce::Role;

fn sum(roles: &[Role], width: Width) -> Reduce {
    Reduce::new(Element::F32, Fold::Sum, roles, width).unwrap()
}

#[test]
fn ranges_that_begin_alike_are_taken() {
    let reduce = sum(&[Role::Both, Role::Both], Width::Vector);
    check_addresses(&reduce, &[4096, 8192], 4096);
    check_addresses(&reduce, &[4096 + 12, 4 + 8], 64);
    check_addresses(&sum(&[Role::Both; 2], Width::Element), &[4096, 8196], 4);
}

#[test]
#[should_panic(expected = "same distance behind a multiple of 16")]
fn ranges_that_begin_differently_are_refused() {
    check_addresses(&sum(&[Role::Both; 2], Width::Vector), &[4096, 8196], 4);
}

#[test]
#[should_panic(expected = "not a whole number of f32")]
fn parts_of_elements_are_refused() {
    check_addresses(&sum(&[Role::Both], Width::Vector), &[4096], 6);
}

#[test]
#[should_panic(expected = "overlap at 0x1010")]
fn a_range_that_overlaps_a_written_one_is_refused() {
    let reduce = sum(&[Role::Source, Role::Target], Width::Vector);
    check_addresses(&reduce, &[4096, 4112], 32);
}

#[test]
fn ranges_that_are_only_read_may_overlap() {
    let reduce = sum(&[Role::Source, Role::Source, Role::Target], Width::Vector);
    check_addresses(&reduce, &[4096, 4112, 8192], 32);
}

#[test]
fn launches_are_kept_and_do_not_pile_up() {
    let reduce = sum(&[Role::Both; 2], Width::Vector);
    let mut launches = HashMap::new();
    let key = |elems| LaunchKey { elems, skip: 3, divisor: 2, cubes_max: 8 };
    let first = prepare(&mut launches, &reduce, key(1)).clone();
    assert_eq!(*prepare(&mut launches, &reduce, key(1)), first);
    for elems in 1..3 * LAUNCHES_MAX {
        prepare(&mut launches, &reduce, key(elems));
        assert!(launches.len() <= LAUNCHES_MAX, "{}", launches.len());
    }
    assert_eq!(*prepare(&mut launches, &reduce, key(1)), first);
}

/// The first device; nothing without one.
fn device(test: &str) -> Option<(Context, Device, Nvrtc)> {
    let found = Driver::load().and_then(|driver| {
        let device = driver.device(0)?;
        Ok((Context::retain(&device)?, device, Nvrtc::load()?))
    });
    found.inspect_err(|error| println!("{test} skipped: {error}")).ok()
}

#[test]
fn a_sum_in_place_has_heads_and_tails() {
    let test = "a_sum_in_place_has_heads_and_tails";
    let Some((context, device, nvrtc)) = device(test) else {
        return;
    };
    let reduce = sum(&[Role::Both; 2], Width::Vector);
    let code = ReduceCode::compile(reduce, nvrtc, device.capability()).unwrap();
    let mut kernel = code.load(&context).unwrap();
    let stream = Stream::new(&context, Priority::Normal).unwrap();
    let elems = 1003;
    let spans: Vec<Span> = (0..2_u8)
        .map(|rank| {
            let region = DeviceRegion::allocate(&context, elems * 4).unwrap();
            let values = (0..elems).map(|index| index as f32 + f32::from(rank));
            let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
            stream.write(&region.span(), &bytes).unwrap();
            region.span().part(4..elems * 4).unwrap()
        })
        .collect();
    let launch = ReduceLaunch { buffers: &spans, divisor: 1, cubes_max: 2 };
    kernel.launch(&stream, &launch).unwrap();
    for span in &spans {
        let mut bytes = vec![0; span.len()];
        stream.read(span, &mut bytes).unwrap();
        for (index, word) in bytes.chunks_exact(4).enumerate() {
            let found = f32::from_ne_bytes(word.try_into().unwrap());
            assert_eq!(found, 2.0 * (index + 1) as f32 + 1.0, "element {index}");
        }
    }
}

fn copy(source: u64, target: u64, bytes: u64) -> Range {
    Range { source, target, bytes }
}

#[test]
fn copies_may_read_twice_and_touch_each_other() {
    let ranges =
        [copy(4096, 8192, 64), copy(4096, 8256, 64), copy(8320, 8128, 64), copy(8128, 0, 0)];
    check_ranges(4, &ranges);
    check_ranges(4, &[]);
}

#[test]
#[should_panic(expected = "two copies write to 0x203c")]
fn copies_that_write_the_same_are_refused() {
    check_ranges(4, &[copy(0, 8192, 64), copy(4096, 8252, 4)]);
}

#[test]
#[should_panic(expected = "is read by one copy and written by another")]
fn copies_that_read_what_others_write_are_refused() {
    check_ranges(4, &[copy(0, 8192, 64), copy(8188, 4096, 8)]);
}

#[test]
#[should_panic(expected = "not whole elements of 8 bytes")]
fn copies_of_parts_of_elements_are_refused() {
    check_ranges(8, &[copy(4, 8, 16)]);
}

/// Tensors of odd sizes, into a buffer whose slots begin at multiples of 16 bytes, multiplied there,
/// and back.
#[test]
fn tensors_are_packed_scaled_and_unpacked() {
    let Some((context, _, nvrtc)) = device("tensors_are_packed_scaled_and_unpacked") else {
        return;
    };
    let stream = Stream::new(&context, Priority::Normal).unwrap();
    let elems = [1, 5, 8192, 8193, 16_387];
    let mut offset = 0;
    let buffer = DeviceRegion::allocate(&context, 1 << 20).unwrap().span();
    stream.fill(&buffer, 0).unwrap();
    let pieces: Vec<Piece> = elems
        .iter()
        .enumerate()
        .map(|(index, &elems)| {
            let tensor = DeviceRegion::allocate(&context, 4 * elems + 4).unwrap();
            let tensor = tensor.span().part(4..4 * elems + 4).unwrap();
            let values = (0..elems).map(|element| (element * (index + 1)) as f32);
            let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
            stream.write(&tensor, &bytes).unwrap();
            let slot = buffer.part(offset..offset + 4 * elems).unwrap();
            offset = (offset + 4 * elems).next_multiple_of(16);
            Piece { tensor, slot }
        })
        .collect();
    let pack = PackKernel::load(&context, nvrtc, 4).unwrap();
    let scale = ScaleKernel::load(&context, nvrtc, crate::FloatElement::F32).unwrap();
    let sizes = || elems.iter().map(|elems| 4 * elems);
    let mut there = PackTable::new(&context, sizes()).unwrap();
    let mut back = PackTable::new(&context, sizes()).unwrap();
    for (table, direction) in [(&mut there, Direction::Pack), (&mut back, Direction::Unpack)] {
        pack.launch(&stream, table, &pieces, direction).unwrap();
        scale.launch(&stream, &buffer.part(0..offset).unwrap(), 0.5, 8).unwrap();
    }
    for (index, piece) in pieces.iter().enumerate() {
        let mut bytes = vec![0; piece.tensor.len()];
        stream.read(&piece.tensor, &mut bytes).unwrap();
        for (element, word) in bytes.chunks_exact(4).enumerate() {
            let found = f32::from_ne_bytes(word.try_into().unwrap());
            let expected = (element * (index + 1)) as f32 * 0.5;
            assert_eq!(found, expected, "tensor {index}, element {element}");
        }
    }
}
