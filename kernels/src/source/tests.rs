//! Every variant becomes CUDA C++ that needs no headers and takes the arguments that its launches
//! give.

use super::*;
use crate::reduce::ReduceSize;

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

fn check(source: &KernelSource, launch: &Launch) {
    assert!(!source.source.contains("#include"), "{}", source.entry);
    let signature = source
        .source
        .lines()
        .find(|line| line.contains("__global__"))
        .expect("a kernel");
    assert!(signature.contains(&source.entry), "{signature}");
    assert_eq!(
        signature.matches('*').count(),
        source.buffers,
        "{signature}"
    );
    assert!(signature.contains(&format!("__launch_bounds__({})", source.units)));
    assert_eq!(
        launch.info().len(),
        info_bytes(&source.source),
        "{signature}"
    );
    assert_eq!(
        (launch.units, launch.shared_bytes),
        (source.units, source.shared_bytes)
    );
}

#[test]
fn every_reduction_takes_what_its_launches_give() {
    for reduce in crate::variants::reductions() {
        let size = ReduceSize {
            elems: 1_000_003,
            divisor: 3,
            cubes_max: 264,
        };
        let source = reduce.cuda_source().expect("a variant compiles");
        check(&source, &reduce.cuda_launch(size).expect("it fits"));
    }
}
