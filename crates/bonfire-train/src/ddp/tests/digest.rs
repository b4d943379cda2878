//! Hashes of models.

use ring::digest::{SHA256, digest};

use super::*;
use crate::Digest;

#[test]
fn a_digest_is_that_of_paths_types_shapes_and_elements() {
    let device = Device::flex();
    let values = |values: &[f32]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
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
        let device = world.device();
        let mut ddp = Ddp::new(Mlp::new(1, &device), &world).unwrap();
        let same = ddp.digest().unwrap();
        assert_eq!(same, Digest::of(ddp.module()).unwrap());
        // What no rank may do alone.
        let rank = world.rank();
        ddp.map_module(|model| match rank.get() {
            2 => Mlp {
                third: seeded(model.third.clone(), 5),
                ..model
            },
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
