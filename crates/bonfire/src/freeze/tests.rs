//! Patterns, and training of which a part stands still.

use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, TensorData};
use proptest::prelude::*;

use super::*;
use crate::{Ddp, spawn};

#[derive(Module, Debug)]
struct Net {
    body: Vec<Linear>,
    norm: BatchNorm,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(3, 3).init(device);
        Self {
            body: vec![layer(), layer()],
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(3, 2).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.body.iter().fold(x, |x, layer| layer.forward(x));
        self.head.forward(self.norm.forward(x))
    }
}

fn autodiff() -> Device {
    Device::flex().autodiff()
}

/// The values of all floats, by path.
fn values(net: &Net) -> Vec<(String, Vec<f32>)> {
    #[derive(Default)]
    struct Reader(Lister, Vec<(String, Vec<f32>)>);
    impl ModuleVisitor for Reader {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter_module(name, container);
        }
        fn exit_module(&mut self, name: &str, container: &str) {
            self.0.exit_module(name, container);
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().into_data().try_to_vec().unwrap();
            self.1.push((self.0.path.join("."), values));
        }
    }
    let mut reader = Reader::default();
    net.visit(&mut reader);
    reader.1
}

const BODY: [&str; 4] = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"];

#[test]
fn what_is_named_is_frozen_and_listed() {
    let (net, frozen) = freeze(Net::new(&autodiff()), &["body.*"]).unwrap();
    assert_eq!(frozen, BODY);
    assert!(!net.body[1].weight.val().is_require_grad());
    assert!(net.head.weight.val().is_require_grad());
    // What is frozen already is not frozen again, and running statistics never were.
    let (_, more) = freeze_all_but(net, &["head.?????t"]).unwrap();
    assert_eq!(more, ["norm.gamma", "norm.beta", "head.bias"]);
    // A model without autodiff is put in training mode.
    let (net, frozen) = freeze(Net::new(&Device::flex()), &["*.bias", "norm.*"]).unwrap();
    let expected = ["body.0.bias", "body.1.bias", "norm.gamma", "norm.beta", "head.bias"];
    assert_eq!(frozen, expected);
    assert!(net.head.weight.val().is_require_grad());
}

#[test]
fn a_body_that_was_loaded_without_autodiff_stands_still() {
    let net = |head: &Device| Net {
        head: LinearConfig::new(3, 2).init(head),
        ..Net::new(&Device::flex())
    };
    let (frozen_net, frozen) = freeze_all_but(net(&autodiff()), &["head.*"]).unwrap();
    assert_eq!(frozen, [&BODY[..], &["norm.gamma", "norm.beta"]].concat());
    let buckets = spawn(1, |world| -> crate::Result<_> {
        let ddp = Ddp::new(frozen_net.clone(), &world)?;
        let buckets = ddp.buckets().into_iter();
        Ok(buckets.flat_map(|bucket| bucket.parameters).collect())
    });
    let mut trained: Vec<String> = buckets.unwrap().remove(0);
    trained.sort();
    assert_eq!(trained, ["head.bias", "head.weight"]);
    let (_, frozen) = freeze(net(&autodiff()), &["body.*"]).unwrap();
    assert_eq!(frozen, BODY);
}

#[test]
fn a_pattern_that_names_nothing_suggests_what_might_be_meant() {
    let error = |pattern: &str| {
        let error = freeze(Net::new(&autodiff()), &["head.*", pattern]).unwrap_err();
        error.to_string()
    };
    let misspelt = error("boddy.*");
    assert!(
        misspelt.starts_with("no trainable parameter is called boddy.*, did you mean body.*?"),
        "{misspelt}"
    );
    // The whole name counts, not a part of it.
    assert!(error("head").contains("did you mean head.*?"));
}

proptest! {
    #[test]
    fn a_star_stands_for_any_part(name in "[ab.]{0,8}", from in 0_usize..9, to in 0_usize..9) {
        let (from, to) = (from.min(to).min(name.len()), from.max(to).min(name.len()));
        let with_star = format!("{}*{}", &name[..from], &name[to..]);
        prop_assert!(matches(&with_star, &name), "{with_star} {name}");
        let with_question = format!("{}{}{}", &name[..from], "?".repeat(to - from), &name[to..]);
        prop_assert!(matches(&with_question, &name));
        let longer = format!("{name}c");
        prop_assert!(!matches(&name, &longer));
        prop_assert!(!matches(&longer, &name));
    }

    /// Against the definition: a star takes nothing, or one character and goes on.
    #[test]
    fn patterns_match_as_they_are_defined(pattern in "[ab*?]{0,7}", name in "[ab]{0,8}") {
        fn defined(pattern: &[u8], name: &[u8]) -> bool {
            match (pattern.split_first(), name.split_first()) {
                (None, None) => true,
                (Some((b'*', rest)), None) => defined(rest, name),
                (Some((b'*', rest)), Some((_, shorter))) => {
                    defined(rest, name) || defined(pattern, shorter)
                }
                (Some((expected, rest)), Some((found, shorter))) => {
                    (*expected == b'?' || expected == found) && defined(rest, shorter)
                }
                (Some(_), None) | (None, Some(_)) => false,
            }
        }
        prop_assert_eq!(matches(&pattern, &name), defined(pattern.as_bytes(), name.as_bytes()));
    }
}

#[test]
fn frozen_parameters_are_sent_once_and_stand_still() {
    let nets = spawn(2, |world| -> crate::Result<_> {
        let device = world.device().autodiff();
        let (net, frozen) = freeze(Net::new(&device), &["body.*", "head.bias"]).unwrap();
        assert_eq!(frozen.len(), 5);
        let mut ddp = Ddp::new(net, &world).unwrap();
        let mut bucketed: Vec<String> =
            ddp.buckets().into_iter().flat_map(|bucket| bucket.parameters).collect();
        bucketed.sort();
        assert_eq!(bucketed, ["head.weight", "norm.beta", "norm.gamma"]);

        let before = values(ddp.module());
        let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
        for step in 0..3 {
            let x = (0..12).map(|at| ((at * 7 + step) % 5) as f32 - world.rank().get() as f32);
            let data = TensorData::new(x.collect::<Vec<_>>(), [4, 3]);
            let x = Tensor::<2>::from_data(data, &device);
            let loss = |net: &Net| (net.forward(x) - 1.0).powi_scalar(2).mean();
            let gradients = ddp.backward(loss).unwrap().gradients;
            ddp.step(&mut optimizer, 0.1, gradients).unwrap();
        }
        Ok((before, values(ddp.module())))
    });
    let nets = nets.unwrap();
    let [(before, after), (other_before, other_after)] = &nets[..] else { panic!("two ranks") };
    assert_eq!(before, other_before, "all have the parameters of rank 0");
    for (((name, before), (_, after)), (_, other)) in before.iter().zip(after).zip(other_after) {
        let is_frozen = name.starts_with("body.") || name == "head.bias";
        assert_eq!(before == after, is_frozen, "{name}");
        if !name.starts_with("norm.running") {
            assert_eq!(after, other, "{name} is the same on both ranks");
        }
    }
}
