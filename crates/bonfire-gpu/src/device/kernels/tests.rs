//! Every step of every schedule has a kernel, and its CUDA C++ can be made without a GPU.

use bonfire_plan::{Collective, WorldSize};

use super::*;
use crate::program::{Key, Layout, Place, Programs};

#[test]
fn kernels_have_the_sizes_of_their_elements() {
    for &dtype in DType::ALL {
        assert_eq!(element(dtype).bytes(), dtype.size_bytes(), "{dtype}");
        assert_eq!(bits(dtype).bytes(), dtype.size_bytes(), "{dtype}");
    }
}

#[test]
fn only_a_mean_divides_and_only_at_the_end() {
    for &reduce in ReduceOp::ALL {
        let by = if reduce == ReduceOp::Mean { 3 } else { 1 };
        assert_eq!(divisor(reduce, 3), by, "{reduce}");
        let divides = reduce == ReduceOp::Mean;
        assert_eq!(how(reduce, Stage::Final) == Fold::Mean, divides, "{reduce}");
        assert_ne!(how(reduce, Stage::Partial), Fold::Mean, "{reduce}");
    }
}

fn folds(world: u32, me: u32, collective: Collective, layout: Layout) -> Vec<program::Fold> {
    let key = Key { collective, layout, count: 1000 };
    let place = Place { me: Rank::new(me), world_size: WorldSize::new(world).unwrap() };
    let programs = Programs::default().get(key, place).unwrap();
    let folds = programs.iter().flat_map(|program| program.folds());
    folds.cloned().collect()
}

#[test]
fn every_fold_of_every_schedule_has_a_kernel() {
    let root = Rank::new(1);
    let kinds = [
        (Collective::AllReduce, Layout::Direct, Some(ReduceOp::Mean)),
        (Collective::AllReduce, Layout::Rings(3), Some(ReduceOp::Mean)),
        (Collective::AllReduce, Layout::Chains(2), Some(ReduceOp::Mean)),
        (Collective::ReduceScatter, Layout::Direct, Some(ReduceOp::Max)),
        (Collective::Reduce { root }, Layout::Direct, Some(ReduceOp::Sum)),
        (Collective::AllGather, Layout::Direct, None),
        (Collective::Broadcast { root }, Layout::Direct, None),
    ];
    for (collective, layout, reduce) in kinds {
        for me in 0..4 {
            for fold in folds(4, me, collective, layout) {
                let key = ReduceKey::new(DType::BF16, reduce, &fold);
                assert_eq!(key.roles.len(), fold.buffers().count());
                if key.writes() {
                    let made = key.reduce().unwrap();
                    made.cuda_source().unwrap();
                }
            }
        }
    }
}

#[test]
fn sources_are_folded_in_the_order_of_the_step() {
    for fold in folds(5, 2, Collective::AllReduce, Layout::Rings(1)) {
        let buffers: Vec<Rank> = fold.buffers().copied().collect();
        let (sources, others) = buffers.split_at(fold.sources.len());
        assert_eq!(sources, fold.sources.as_slice());
        assert!(others.iter().all(|rank| fold.targets.contains(rank)));
        let key = ReduceKey::new(DType::F32, Some(ReduceOp::Sum), &fold);
        for (rank, role) in buffers.iter().zip(&key.roles) {
            let read = fold.sources.contains(rank);
            assert_eq!(role.is_source(), read, "{fold:?}");
            let writes = fold.targets.contains(rank) && (fold.sources.len() > 1 || !read);
            assert_eq!(role.is_target(), writes, "{fold:?}");
        }
    }
}

#[test]
fn a_copy_moves_bits_and_leaves_its_source_alone() {
    let fold = program::Fold {
        range: bonfire_plan::ElemRange::up_to(4),
        sources: [Rank::new(1)].into_iter().collect(),
        targets: [0, 1, 2].map(Rank::new).into_iter().collect(),
        stage: Stage::Final,
    };
    let key = ReduceKey::new(DType::BF16, None, &fold);
    assert_eq!((key.element, key.fold), (Element::U16, Fold::Or));
    assert_eq!(key.roles.as_slice(), [Role::Source, Role::Target, Role::Target]);
    let alone = program::Fold { targets: fold.sources.clone(), ..fold };
    assert!(!ReduceKey::new(DType::BF16, None, &alone).writes());
}
