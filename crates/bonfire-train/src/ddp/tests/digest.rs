//! Hashes of models.

use burn::module::Lora;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::Int;
use ring::digest::{SHA256, digest};

use super::*;
use crate::{BufferSync, Digest, Placement};

#[test]
fn a_digest_is_that_of_paths_types_shapes_and_elements() {
    let device = Device::flex();
    let values = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    let weight = Tensor::from_data([[1.5_f32], [-2.0]], &device);
    let linear = Linear {
        weight: Param::from_tensor(weight),
        bias: Some(Param::from_tensor(Tensor::from_data([0.25_f32], &device))),
    };
    let record = |text: &str, elements: &[f32]| {
        [text.as_bytes(), digest(&SHA256, &values(elements)).as_ref()].concat()
    };
    let bias = record("bias\nf32\n[1]\n", &[0.25]);
    let weight = record("weight\nf32\n[2, 1]\n", &[1.5, -2.0]);
    let expected: String = digest(&SHA256, &[bias, weight].concat())
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(Digest::of(&linear).unwrap().to_string(), expected);
}

#[test]
fn replicas_have_one_digest_and_others_are_named() {
    let digests = on_ranks(3, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let same = ddp.digest().unwrap();
        assert_eq!(same, Digest::of(ddp.module()).unwrap());
        // What no rank may do alone.
        let rank = world.rank();
        ddp.map_module(|model| match rank.get() {
            2 => Mlp { third: seeded(model.third.clone(), 5), ..model },
            _ => model,
        })
        .unwrap();
        assert_eq!(Digest::of(ddp.module()).unwrap() == same, rank.get() != 2);
        let error = ddp.digest().unwrap_err();
        let named = matches!(error, TrainError::ReplicasDiffer { rank } if rank.get() == 2);
        assert!(named, "{error}");
        same
    });
    assert_same(&digests);
}

/// An adapter is a parameter within another one.
#[test]
fn an_adapted_model_has_one_digest_in_every_placement() {
    let digests = on_ranks(2, |world| {
        let adapted = LinearConfig::new(64, 64).init(&world.device());
        let adapted: Linear = adapted.apply_lora(Lora::new(32, 4.0));
        let placements = [Placement::replicated(), Placement::zero1(), Placement::zero3()];
        placements.map(|placement| {
            let config = DdpConfig::default().with_placement(placement);
            let mut ddp = Ddp::with_config(adapted.clone(), &world, config).unwrap();
            let is_cut = (0..ddp.table.len()).any(|index| ddp.shards.is_cut(index));
            assert_eq!(is_cut, placement != Placement::replicated());
            ddp.digest().unwrap()
        })
    });
    let [replicated, zero1, zero3] = digests[0];
    assert_eq!((zero1, zero3), (replicated, replicated));
}

#[test]
fn running_statistics_of_each_rank_s_own_are_in_no_digest() {
    on_ranks(2, |world| {
        let device = world.device().autodiff();
        for buffers in [BufferSync::Broadcast, BufferSync::Local] {
            let config = DdpConfig::default().with_buffers(buffers);
            let norm = BatchNormConfig::new(3).init(&device);
            let mut ddp = Ddp::with_config(norm, &world, config).unwrap();
            let rank = i64::from(world.rank().get());
            let loss = |norm: &BatchNorm| {
                let x = Tensor::<1, Int>::arange(rank..rank + 6, &device);
                norm.forward(x.float().reshape([2, 3, 1])).mean()
            };
            ddp.digest().unwrap();
            ddp.no_sync(loss).unwrap();
            ddp.digest().unwrap();
            ddp.backward(loss).unwrap();
            ddp.digest().unwrap();
        }
    });
}
