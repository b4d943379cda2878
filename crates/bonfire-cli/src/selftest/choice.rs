//! Which algorithm the ranks choose by what they measure, and that the bits of a result do not depend on it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bonfire_collective::{DType, FoldOrder, ReduceOp};
use bonfire_gpu::{
    CudaAlgorithm, CudaChoice, CudaGroup, CudaOptions, CudaPath, CudaSync, Elements,
};
use half::bf16;

use super::SelftestArgs;
use super::ranks::on_threads_adding;
use super::value::{Sample, samples};

/// Sums of f32 that are looked at.
const SIZES: [(&str, usize); 5] = [
    ("1 KiB", 1 << 10),
    ("64 KiB", 64 << 10),
    ("1 MiB", 1 << 20),
    ("64 MiB", 64 << 20),
    ("1 GiB", 1 << 30),
];

/// Elements of the sums that are done: a few, some that no number of ranks divides, and several pieces of a chain.
const COUNTS: [usize; 3] = [5, 40_001, 1_400_003];

struct Decided {
    choice: CudaChoice,
    by: Vec<CudaAlgorithm>,
    cases: usize,
}

pub(super) fn table(args: &SelftestArgs) -> anyhow::Result<()> {
    use CudaAlgorithm::{Chain, Direct, Ring};
    for &ranks in &args.ranks {
        let chosen = decide(ranks, None, FoldOrder::Canonical)?;
        println!("{ranks} ranks: {}", chosen.choice);
        if let Some(pairs) = chosen.choice.bandwidths() {
            println!("{pairs}");
        }
        println!("  in canonical order: {}", by_size(&chosen.by));
        let free = decide(ranks, None, FoldOrder::Any)?;
        println!("  in any order: {}", by_size(&free.by));
        for asked in [Direct, Chain, Ring] {
            let forced = decide(ranks, Some(asked), FoldOrder::Canonical)?;
            let (by, cases) = (by_size(&forced.by), forced.cases);
            println!("  as asked: {by}: {cases} cases, bits as on the CPU");
        }
        let cases = chosen.cases + free.cases;
        println!("  as chosen: {cases} cases, bits as on the CPU");
    }
    Ok(())
}

fn by_size(by: &[CudaAlgorithm]) -> String {
    let named = SIZES.iter().zip(by);
    let named: Vec<String> =
        named.map(|((size, _), algorithm)| format!("{size} by {algorithm:?}")).collect();
    named.join(", ")
}

fn decide(
    ranks: u32,
    algorithm: Option<CudaAlgorithm>,
    order: FoldOrder,
) -> anyhow::Result<Decided> {
    let options = CudaOptions::default()
        .with_timeout(Duration::from_secs(20))
        .with_algorithm(algorithm)
        .with_sync(Some(CudaSync::Stream));
    let decided = on_threads_adding(order, ranks, &options, |group| {
        let sum = |bytes: usize| Elements::first(DType::F32, bytes / 4);
        let by = SIZES.map(|(_, bytes)| group.algorithm_of(&sum(bytes), ReduceOp::Sum));
        // A ring has an order of its own, unless the order does not show.
        let is_canonical = order == FoldOrder::Canonical && algorithm != Some(CudaAlgorithm::Ring);
        let mut cases = compare::<i32>(&group)?;
        if is_canonical || group.path() == CudaPath::Host {
            cases += compare::<f32>(&group)?;
            if algorithm != Some(CudaAlgorithm::Chain) {
                cases += compare::<bf16>(&group)?;
            }
        }
        Ok(Decided { choice: group.choice(), by: by.to_vec(), cases })
    })?;
    let alike =
        decided.iter().all(|other| other.choice == decided[0].choice && other.by == decided[0].by);
    ensure!(alike, "the ranks decided differently");
    decided.into_iter().next().context("there is a rank")
}

/// Sums and means of one type against the process group on the CPU; how many.
fn compare<T: Sample>(group: &CudaGroup) -> anyhow::Result<usize> {
    let largest = COUNTS.iter().max().copied().unwrap_or(0);
    let buffer = group.allocate(largest * size_of::<T>())?;
    let mut cases = 0;
    for reduce in [ReduceOp::Sum, ReduceOp::Mean] {
        for count in COUNTS {
            cases += 1;
            let mut expected: Vec<T> = samples(group.rank().get(), cases as u64, count);
            group.write(&buffer, 0, &expected)?;
            let elements = Elements::first(T::DTYPE, count);
            let by = group.algorithm_of(&elements, reduce);
            group.all_reduce(&buffer, &elements, reduce)?;
            let mut found = expected.clone();
            group.read(&buffer, 0, &mut found)?;
            group.process_group().all_reduce(&mut expected, reduce)?;
            ensure!(
                found == expected,
                "rank {}: {reduce} of {} x {count} by {by:?} differs from the CPU",
                group.rank(),
                T::DTYPE
            );
        }
    }
    group.release(buffer)?;
    Ok(cases)
}
