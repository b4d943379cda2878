//! Every variant becomes CUDA C++ that needs no headers and takes the arguments that its launches
//! give.

use super::*;
use crate::pack::{Segment, Tiles};

/// The bytes of `info_st`, as the C++ compiler lays it out.
fn info_bytes(source: &str) -> usize {
    let body = source.split("struct info_st {").nth(1).expect("a struct");
    let body = body.split("};").next().expect("its end");
    body.split(';')
        .map(str::trim)
        .filter(|field| !field.is_empty())
        .map(|field| {
            let (name, count) = field.split_once('[').expect("an array");
            let count: usize = count.trim_end_matches(']').parse().expect("a length");
            let size = match name.split(' ').next().expect("a type") {
                "double" | "int64_t" | "uint64_t" => 8,
                "float" | "int32_t" | "uint32_t" => 4,
                other => panic!("{other} in info_st"),
            };
            size * count
        })
        .sum()
}

const SPREAD: Spread = Spread { elems: 1_000_003, cubes_max: 264 };

fn check(source: &KernelSource, launch: &Launch) {
    assert!(!source.source.contains("#include"), "{}", source.entry);
    let signature =
        source.source.lines().find(|line| line.contains("__global__")).expect("a kernel");
    assert!(signature.contains(&source.entry), "{signature}");
    assert_eq!(signature.matches('*').count(), source.buffers, "{signature}");
    assert!(signature.contains(&format!("__launch_bounds__({})", source.units)));
    assert_eq!(launch.info().len(), info_bytes(&source.source), "{signature}");
    assert_eq!((launch.units, launch.shared_bytes), (source.units, source.shared_bytes));
}

#[test]
fn every_reduction_takes_what_its_launches_give() {
    for reduce in crate::variants::reductions() {
        let source = reduce.cuda_source().expect("a variant compiles");
        check(&source, &reduce.cuda_launch(SPREAD, 0, 3).expect("it fits"));
    }
}

#[test]
fn every_other_kernel_takes_what_its_launches_give() {
    for scale in crate::variants::scales() {
        let launch = scale.cuda_launch(SPREAD, 0.5).expect("it fits");
        check(&scale.cuda_source().expect("a variant compiles"), &launch);
    }
    for pack in crate::variants::packs() {
        let segment = Segment { source: 0, target: 0, elems: 1_000_003 };
        let launch = pack.cuda_launch(&Tiles::new(pack.element, &[segment]));
        check(&pack.cuda_source().expect("a variant compiles"), &launch);
    }
}

#[test]
fn a_range_that_32_bits_do_not_index_is_refused() {
    let elems = ELEMS_MAX + 1;
    let spread = Spread { elems, ..SPREAD };
    let scale = crate::variants::scales()[0];
    let fault = scale.cuda_launch(spread, 1.0).expect_err("it is too much");
    assert!(fault.to_string().contains("split the range"), "{fault}");
}

#[test]
fn a_grid_covers_its_work_and_no_more() {
    let cubes = |elems| Spread { elems, ..SPREAD }.steps(4).expect("it fits").grid.cubes;
    assert_eq!(cubes(0), 1);
    assert_eq!(cubes(4 * UNITS as usize), 1);
    assert_eq!(cubes(4 * UNITS as usize + 4), 2);
    assert_eq!(cubes(1 << 30), SPREAD.cubes_max);
}
