//! Models that change between steps.

use super::*;
use crate::Placement;

/// Two steps of a model on the ranks' samples, the first of them number `from`.
fn two_steps(ddp: &mut Ddp<Mlp>, world: &World, from: usize) {
    for step in from..from + 2 {
        let indices = share(world, step, 2);
        descend(ddp, 0.1, |model| model.loss(&indices));
    }
}

fn halved(model: Mlp) -> Mlp {
    struct Half;
    impl ModuleMapper for Half {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor * 0.5)
        }
    }
    model.map(&mut Half)
}

#[test]
fn a_part_that_was_made_without_autodiff_is_trained_too() {
    let trained = on_ranks(1, |world| {
        let mut model = Mlp::new(1, &world.device()).train();
        model.first = Mlp::new(1, &world.device()).first;
        model.third = model.third.no_grad();
        let mut ddp = Ddp::new(model, &world).unwrap();
        let gradients = ddp.backward(|model| model.loss(&[1, 2])).unwrap().gradients;
        let model = ddp.module();
        let weights = [&model.first.weight, &model.second.weight, &model.third.weight];
        weights.map(|weight| gradients.get(weight).is_some())
    });
    assert_eq!(trained[0], [true, true, false], "frozen parameters stay frozen");
}

#[test]
fn changed_values_are_trained_on() {
    let ended = on_ranks(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut changed = Ddp::with_config(model.clone(), &world, small_buckets()).unwrap();
        changed.map_module(halved).unwrap();
        two_steps(&mut changed, &world, 0);
        let mut fresh = Ddp::with_config(halved(model), &world, small_buckets()).unwrap();
        two_steps(&mut fresh, &world, 0);
        (bits(changed.module()), bits(fresh.module()))
    });
    let (changed, fresh) = one_of(ended);
    assert_eq!(changed, fresh);
}

/// The parameters of training one part, then the other, on one model and on two.
#[test]
fn other_parameters_can_be_trained_from_then_on() {
    let config = small_buckets();
    let ended = on_ranks(3, |world| {
        let head = |mut model: Mlp| {
            model = model.train();
            (model.first, model.second) = (model.first.no_grad(), model.second.no_grad());
            model
        };
        let rest = |model: Mlp| {
            let mut model = unfrozen(model);
            model.third = model.third.no_grad();
            model
        };
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(head(model.clone()), &world, config.clone()).unwrap();
        two_steps(&mut ddp, &world, 0);
        ddp.map_module(rest).unwrap();
        assert!(ddp.buckets().iter().all(|b| !b.parameters.contains(&"third.bias".into())));
        two_steps(&mut ddp, &world, 2);
        let changed = bits(ddp.module());

        let mut first = Ddp::with_config(head(model), &world, config.clone()).unwrap();
        two_steps(&mut first, &world, 0);
        let second = rest(first.into_module());
        let mut second = Ddp::with_config(second, &world, config.clone()).unwrap();
        two_steps(&mut second, &world, 2);
        (changed, bits(second.module()))
    });
    let (changed, fresh) = one_of(ended);
    assert_eq!(changed, fresh);
}

fn unfrozen(model: Mlp) -> Mlp {
    struct All;
    impl ModuleMapper for All {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.set_require_grad(true)
        }
    }
    model.map(&mut All)
}

fn first_frozen(mut model: Mlp) -> Mlp {
    model.first = model.first.no_grad();
    model
}

#[test]
fn ranks_that_change_differently_are_told() {
    let errors = on_ranks(2, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        let changed =
            ddp.map_module(|model| if world.is_main() { model } else { first_frozen(model) });
        changed.unwrap_err()
    });
    assert_each_says(errors, &["first.weight"]);
}

#[test]
fn micro_batches_of_other_parameters_are_not_lost() {
    on_ranks(1, |world| {
        let mut ddp = Ddp::new(Mlp::new(1, &world.device()), &world).unwrap();
        ddp.no_sync(|model| model.loss(&[1])).unwrap();
        ddp.map_module(halved).unwrap();
        let frozen = ddp.map_module(first_frozen);
        assert!(matches!(frozen, Err(TrainError::UnfinishedStep)), "{frozen:?}");
    });
}

#[test]
fn an_optimizer_of_whole_parameters_keeps_its_state_or_the_change_is_refused() {
    let config =
        DdpConfig { placement: Placement::zero1().of_whole_parameters(), ..small_buckets() };
    let errors = on_ranks(2, |world| {
        let model = Mlp::new(1, &world.device());
        let mut ddp = Ddp::with_config(model, &world, config.clone()).unwrap();
        ddp.map_module(first_frozen).unwrap();
        two_steps(&mut ddp, &world, 0);
        ddp.map_module(halved).unwrap();
        ddp.map_module(unfrozen).unwrap_err()
    });
    assert_each_says(errors, &["shard by rows"]);
}
