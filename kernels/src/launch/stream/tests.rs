//! What can be told without a device, and a reduction on one where there is one.

use bonfire_sys::cuda::{DeviceRegion, Driver, Priority};

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
#[should_panic(expected = "no whole number of f32")]
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
    let key = |elems| LaunchKey {
        elems,
        skip: 3,
        divisor: 2,
        cubes_max: 8,
    };
    let first = prepare(&mut launches, &reduce, key(1)).clone();
    assert_eq!(*prepare(&mut launches, &reduce, key(1)), first);
    for elems in 1..3 * LAUNCHES_MAX {
        prepare(&mut launches, &reduce, key(elems));
        assert!(launches.len() <= LAUNCHES_MAX, "{}", launches.len());
    }
    assert_eq!(*prepare(&mut launches, &reduce, key(1)), first);
}

#[test]
fn a_sum_in_place_has_heads_and_tails() {
    let test = "a_sum_in_place_has_heads_and_tails";
    let found = Driver::load().and_then(|driver| {
        let device = driver.device(0)?;
        Ok((Context::retain(&device)?, device, Nvrtc::load()?))
    });
    let (context, device, nvrtc) = match found {
        Ok(found) => found,
        Err(error) => {
            println!("{test} skipped: {error}");
            return;
        }
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
    let launch = ReduceLaunch {
        buffers: &spans,
        divisor: 1,
        cubes_max: 2,
    };
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
